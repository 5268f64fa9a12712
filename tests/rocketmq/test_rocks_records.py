"""Popped messages and timers in a RocksDB: damaged ones, and stores that have none. Real ones: test_java_records.py."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger import open_log
from pyspark_dledger.cli.main import GROUPS, VERBS, main
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.rocketmq.tables import TABLES, read_table
from tests.rocketmq.test_rocksdb import GOLDENS, files_of
from tests.support.fake_cluster import FakeServer
from tests.support.generate import mq_message, write_commitlog, write_consume_queue

POP = {"popTime": 5, "groupId": "g", "topicId": "T", "queueId": 0, "retryFlag": 0, "invisibleTime": 7, "offset": 3}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_consume_queue(tmp_path / "root", write_commitlog(tmp_path / "root", [mq_message("T")]).rows)
    return tmp_path / "root"


def write_records(folder: Path, family: str, rows: Mapping[bytes, bytes], *more: str) -> None:
    """A database with these rows in a family, and also in `more` ones."""
    rocksdict = pytest.importorskip("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    database = rocksdict.Rdict(str(folder), options)
    for name in (family, *more):
        of_family = database.create_column_family(name, rocksdict.Options(raw_mode=True))
        for key, value in rows.items():
            of_family[key] = value
        of_family.close()
    database.close()


def rows_of(root: Path, table: str) -> list[dict[str, Any]]:
    return [row for batch in read_table(open_log(root), table) for row in batch.to_pylist()]


def test_a_popped_message_is_a_row(root: Path) -> None:
    write_records(root / "kvStore", "popState", {b"k": json.dumps(POP).encode()})
    (row,) = rows_of(root, "pop")
    assert (row["topic"], row["consumerGroup"], row["queueOffset"], row["state"]) == ("T", "g", 3, "due")


@pytest.mark.parametrize(
    "value", ["", "[]", "{}", *(json.dumps(POP | {name: -1}) for name in POP), json.dumps(POP | {"queueId": 2**31})]
)
def test_a_damaged_record_is_an_error_with_its_folder(value: str, root: Path) -> None:
    write_records(root / "kvStore", "popState", {b"k": value.encode()})
    with pytest.raises(UnreadableError, match=r"kvStore.*copy the folder from a replica"):
        rows_of(root, "pop")


def test_what_is_no_timer_is_left_out(root: Path) -> None:
    rows = {struct.pack(">q", 9) + b"K": struct.pack(">iq", 100, 0), b"lastOffsetPy": bytes(8), b"x": bytes(12)}
    write_records(root / "rocksdbstore", "timer", rows)
    (row,) = rows_of(root, "timers")
    assert (row["position"], row["size"], row["commitLogOffset"]) == (None, 100, 0)
    assert "expected a message of 100 bytes" in row["problem"]


def test_a_database_without_records_needs_no_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of 5.4 create it."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    for folder in (root / "rocksdbstore", root / "kvStore"):
        folder.mkdir()
        for name in ("CURRENT", "MANIFEST-000005", "000004.log"):
            (folder / name).touch()
    assert rows_of(root, "timers") == rows_of(root, "pop") == []
    (root / "kvStore" / "000004.log").write_bytes(b"x")
    with pytest.raises(UnreadableError, match=r"pyspark_dledger\[rocksdb\]"):
        rows_of(root, "pop")


@pytest.mark.slow
def test_nothing_changes_a_store_with_all_kinds_of_databases(tmp_path: Path) -> None:
    """Queues, configuration, popped messages, timers and transactions: every table, and every verb with a store."""
    root, out = tmp_path / "root", tmp_path / "out"
    for archive, folder in (("rocks-533", root), ("config", tmp_path)):
        with tarfile.open(GOLDENS / f"{archive}.tar.gz") as packed:
            packed.extractall(folder)
    shutil.copytree(tmp_path / "own-533/config", root / "config")
    write_records(root / "kvStore", "popState", {b"k": json.dumps(POP).encode()})
    write_records(root / "rocksdbstore", "timer", {struct.pack(">q", 9) + b"K": struct.pack(">iq", 100, 0)}, "trans")
    other = str(shutil.copytree(root, tmp_path / "other"))
    before = list(files_of(root))
    for table in ("consumeQueue", "consumers", "timers", "pop", "trace"):
        assert rows_of(root, table)
    for table in TABLES:
        with suppress(StoreError):  # There is no log of a controller.
            list(read_table(open_log(root, replicas=(other,) if table == "diff" else None), table))
    store = str(root)
    commands = [
        *([verb, store] for verb in ("state", "segments", "verify", "check", "audit", "consumers", "lost", "recovery")),
        *([verb, store] for verb in ("stats", "dump")),
        ["diff", store, other],
        ["find", store, "java40"],
        ["trace", store, "java40", "Orders/1/13"],
        ["sql", store, "select count(*) from log"],
        ["report", store, "--output", f"{out}.html"],
        ["rebuild", "consumequeue", store, "--dry-run"],
        ["rebuild", "index", store, "--out", f"{out}/rebuilt"],
        ["salvage", store, "--to", f"{out}/salvaged"],
        ["export", store, f"{out}/exported", "--to", "commitlog"],
        ["migrate", store, "--to", f"{out}/migrated"],
        ["backup", store, "--to", f"{out}/backup"],
        ["restore", store, "--id", "n0", "--to", f"{out}/restored"],
    ]
    with FakeServer() as server:
        commands.append(["replay", store, "--to", server.address, "--dry-run"])
        codes = {command[0]: ended(command) for command in commands}
    assert {*codes} == {*VERBS} - {*GROUPS["run a group"], "follow"}
    assert {verb for verb, code in codes.items() if code not in (0, 1)} == {"migrate", "backup", "restore"}
    assert list(files_of(root)) == before


def ended(command: list[str]) -> int:
    try:
        return main(command)
    except SystemExit as end:
        return int(end.code or 0)
