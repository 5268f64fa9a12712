"""Queues that real message stores keep in a RocksDB: our readers find the units that Java's readers find."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.interop.plain_stores import PlainStores
from tests.rocketmq.test_rocksdb import units_of
from tests.support.groups import eventually

ROCKSDB = {"storeType": "defaultRocksDB"}
SMALL = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "400"}


@pytest.mark.java
@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("5.3.3", ROCKSDB),
        ("5.3.3", {"rocksdbCQDoubleWriteEnable": "true"}),
        ("5.4.0", ROCKSDB),
        ("5.4.0", {"rocksdbCQDoubleWriteEnable": "true"}),
        ("5.5.0", ROCKSDB),
        ("5.5.0", {**ROCKSDB, "useSeparateStorePathForRocksdbCQ": "true"}),
    ],
)
def test_units_are_those_that_java_reads(version: str, settings: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    root = tmp_path / "root"
    paths = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    with closing(PlainStores(version, tmp_path)) as stores:
        stores.open({**paths, **SMALL, **settings}, "ASYNC_MASTER")
        stores.put(300, "Orders", 3)
        stores.put(50, "Payments", 1)
        eventually(lambda: sum(end for _, end in stores.queues().values()) == 350)
        received, queues = stores.dump().messages, stores.queues()
        stores.close_store()
    found = units_of(root)
    assert found == {(*each.queue, each.queue_offset): each.physical_offset for each in received}
    assert len(found) == 350
    ends = {name: max(offset for *queue, offset in found if tuple(queue) == name) + 1 for name in queues}
    assert ends == {name: end for name, (_, end) in queues.items()}
