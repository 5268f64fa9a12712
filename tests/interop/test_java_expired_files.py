"""A DLedger file that expired and stays, because DLedger cannot unmap files on Java 9 or later without --add-opens."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.log.verify.findings import Finding
from tests.interop.java_store import JavaStore
from tests.interop.java_stores import JAVA
from tests.support.groups import eventually
from tests.support.long_runs import SECONDS

EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": 65536,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "deleteWhen": EVERY_HOUR,
    "fileReservedTime": 1,
}
AS_A_BROKER_STARTS = ("java", "-Xmx512m")
"""RocketMQ's runbroker.sh opens no package of Java."""
CASES = {
    "5.3.3, as a broker starts": ("5.3.3", AS_A_BROKER_STARTS),
    "5.4.0, as a broker starts": ("5.4.0", AS_A_BROKER_STARTS),
    "5.3.3, with --add-opens": ("5.3.3", JAVA),
}
A_MINUTE = 90
"""A broker deletes expired files of queues a minute after its start."""


@contextmanager
def running(name: str, root: Path) -> Iterator[JavaStore]:
    version, java = CASES[name]
    with closing(JavaStore(version, root, SETTINGS, java=java)) as store:
        store.wait_started()
        store.wait_master()
        yield store
        store.stop()


@pytest.mark.slow
@pytest.mark.skipif(not SECONDS, reason="takes two minutes; DLEDGER_INTEROP=SECONDS runs it")
def test_a_file_that_java_cannot_delete_is_named(tmp_path: Path) -> None:
    roots = {name: tmp_path / str(number) for number, name in enumerate(CASES)}
    for name, root in roots.items():
        with running(name, root) as store:
            store.put(1500, "Orders", 2)
            store.settle()
        for file in data_files(root)[:2]:
            os.utime(file, (time.time() - 10 * 3600,) * 2)
    with ExitStack() as stack:
        for name, root in roots.items():
            stack.enter_context(running(name, root))
        first_units = [root / "consumequeue" / "Orders" / "0" / f"{0:020}" for root in roots.values()]
        assert eventually(lambda: not any(file.exists() for file in first_units), A_MINUTE)
    left, still_left, deleted = roots.values()
    for root in (left, still_left):
        assert data_files(root)[0].name == f"{0:020}"
        assert {each.code for each in faults(root)} == {"expiredFileLeft"}
        (member,) = dl.check(root).members
        assert (member.start, member.serve) == ("yes", "no")
    assert data_files(deleted)[0].name == f"{2 * 65536:020}"
    assert faults(deleted) == []


def data_files(root: Path) -> list[Path]:
    return sorted((root / "dledger-n0" / "data").iterdir())


def faults(root: Path) -> list[Finding]:
    return [each for each in dl.open_log(root).findings() if each.severity != "info"]
