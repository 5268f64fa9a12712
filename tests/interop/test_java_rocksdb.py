"""Queues that real message stores keep in a RocksDB: our readers find the units that Java's readers find."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pyspark_dledger as dl
from tests.interop.plain_stores import ByVersion
from tests.rocketmq.test_rocksdb import units_of
from tests.support.groups import eventually
from tests.support.long_runs import BREADTH, SECONDS, first

ROCKSDB = {"storeType": "defaultRocksDB"}
ALL_FILES = {**ROCKSDB, "commitLogRecoverMaxNum": "1000"}
SMALL = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "400"}


@pytest.mark.java
@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("5.3.3", ROCKSDB),
        ("5.3.3", {"rocksdbCQDoubleWriteEnable": "true"}),
        ("5.5.0", ROCKSDB),
        ("5.5.0", {**ROCKSDB, "useSeparateStorePathForRocksdbCQ": "true"}),
        ("5.4.0", ROCKSDB),
        ("5.4.0", {"rocksdbCQDoubleWriteEnable": "true"}),
    ][: None if SECONDS or BREADTH else 4],
)
def test_units_are_those_that_java_reads(
    version: str, settings: dict[str, str], tmp_path: Path, plain_stores: ByVersion
) -> None:
    pytest.importorskip("rocksdict")
    root = tmp_path / "root"
    paths = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    stores = plain_stores(version)
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


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize("version", first(["5.5.0", "5.3.3"], 1))
def test_units_that_a_truncation_left_are_not_of_a_queue(version: str, tmp_path: Path, plain_stores: ByVersion) -> None:
    pytest.importorskip("rocksdict")
    root = tmp_path / "root"
    settings = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog"), **SMALL, **ROCKSDB}
    stores = plain_stores(version)
    stores.open(settings, "ASYNC_MASTER")
    stores.put(300, "Orders", 3)
    eventually(lambda: sum(end for _, end in stores.queues().values()) == 300)
    stores.close_store()
    file = root / "commitlog" / f"{0:020d}"
    kept = sorted(units_of(root).values())[270]
    file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\0"))
    (root / "abort").touch()
    stores.open(settings, "ASYNC_MASTER")
    stores.put(3, "Orders", 3)
    eventually(lambda: sum(end for _, end in stores.queues().values()) == 273)
    ends = {name: end for name, (_, end) in stores.queues().items()}
    stores.close_store()
    queues = [name for *name, _ in units_of(root)]
    assert {name: queues.count([*name]) for name in ends} == ends
    assert not [each for each in dl.open_log(root).findings() if each.code.startswith("consumeQueue")]


@pytest.mark.slow
@pytest.mark.parametrize("version", first(["5.5.0", "5.4.0"], 1))
def test_messages_that_a_change_of_store_type_left_out_are_named(
    version: str, tmp_path: Path, plain_stores: ByVersion
) -> None:
    """The broker builds the queues of the last ten files only; the finding says how it builds all."""
    pytest.importorskip("rocksdict")
    root = tmp_path / "root"
    paths = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    settings = {**paths, **SMALL, "mappedFileSizeCommitLog": "16384"}

    def findings() -> set[str]:
        return {each.code for each in dl.open_log(root).findings() if each.severity != "info"}

    stores = plain_stores(version)
    stores.open(settings, "ASYNC_MASTER")
    stores.put(3000, "Orders", 2)
    assert eventually(lambda: stores.queues()["Orders", 1] == (0, 1500))
    stores.close_store()
    assert findings() == set()
    stores.open({**settings, **ROCKSDB}, "ASYNC_MASTER")
    stores.put(2, "Orders", 2)
    assert eventually(lambda: stores.queues().get(("Orders", 1), (0, 0))[1] == 1501)
    first, _ = stores.queues()["Orders", 1]
    stores.close_store()
    assert first > 0
    assert findings() == {"messageBeforeDatabase", "consumeQueuesDiffer"}
    (check,) = dl.check(root).members
    assert (check.start, check.serve) == ("yes", "no")
    shutil.rmtree(root / "consumequeue")
    (root / "abort").touch()
    stores.open({**settings, **ALL_FILES}, "ASYNC_MASTER")
    stores.put(2, "Orders", 2)
    assert eventually(lambda: stores.queues().get(("Orders", 1)) == (0, 1502))
    assert len(stores.dump().messages) == 3004
    stores.close_store()
    assert findings() == set()
