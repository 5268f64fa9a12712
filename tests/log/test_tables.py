"""The tables other than ``log``: their columns, their rows for real stores, and the same rows in Spark."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format import codec, layout
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.io.key_files import index_files, key_files
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits
from pyspark_dledger.log.options import TABLES as NAMES
from pyspark_dledger.rocketmq.tables import TABLES, read_table
from pyspark_dledger.spark import schema as schemas
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.golden import ALL, GOLDENS, Golden
from tests.support.long_runs import examples
from tests.support.queues import FILLER, Unit, file_of, java_hash, units_of, write_units

Row = dict[str, Any]

PYSPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
BROKERS = [golden for golden in ALL if not golden.is_raw]

COLUMNS = {
    "segments": "node source file segment baseOffset fileSize entries firstIndex lastIndex firstTerm lastTerm "
    "usedBytes blankBytes unwrittenBytes staleBytes corruptBytes firstStoreTimestamp lastStoreTimestamp findings",
    "state": "node path dialect beginIndex endIndex endTerm committedIndex committedFrom checkpointCommittedIndex "
    "checkpointEndIndex currTerm voteLeader dividedCommitlogOffset dataFileSize indexFileSize minOffset maxOffset "
    "abort epochs confirmOffset consumeQueueEnd physicMsgTimestamp logicsMsgTimestamp indexMsgTimestamp problem",
    "findings": "severity code node file offset index pos size expected found javaDoes",
    "indexUnits": "node file position index magic pos size term problem",
    "consumeQueue": "topic queueId queueOffset commitLogOffset size tagsCode kind file problem",
    "indexFile": "file position keyHash commitLogOffset storeTimestamp previous",
    "audit": "code topic queueId queueOffset commitLogOffset expected found",
    "consumers": "consumerGroup topic queueId consumerOffset minOffset maxOffset lag lost",
    "lost": "source index term pos size topic queueId queueOffset tagsCode keyHashes firstStoreTimestamp "
    "lastStoreTimestamp entries witnesses problem lostOn intactOn unclearOn restorableFrom committed",
    "diff": "firstIndex lastIndex firstPos lastPos verdict nodes terms damaged intact firstByte firstDifference",
    "transactions": "uniqKey state producerGroup topic queueId commitLogOffset preparedTimestamp checks "
    "lastCheckTimestamp endTimestamp endCommitLogOffset ageMs",
    "timers": "file position kind topic queueId uniqKey writtenTimestamp dueTimestamp commitLogOffset size problem",
    "pop": "topic queueId queueOffset consumerGroup state popTimestamp visibleTimestamp checkpointOffset ackOffset "
    "problem",
    "trace": "uniqKey keys timestamp event topic queueId queueOffset commitLogOffset untilTimestamp attempt "
    "consumerGroup isInQueue passedBy",
    "controllerEvents": "index term pos committed event clusterName brokerName brokerIds brokerAddress "
    "masterBrokerId masterAddress masterEpoch syncStateSet syncStateSetEpoch problem",
}
SPARK_TYPES = {
    **dict.fromkeys(("queueId", "magic", "size", "position", "keyHash", "previous"), "int"),
    **dict.fromkeys(("firstStoreTimestamp", "lastStoreTimestamp", "storeTimestamp"), "timestamp"),
    **dict.fromkeys(("node", "source", "file", "segment", "path", "dialect", "committedFrom", "voteLeader"), "string"),
    **dict.fromkeys(("severity", "code", "expected", "found", "javaDoes", "problem", "topic", "kind"), "string"),
    **dict.fromkeys(("consumerGroup", "verdict"), "string"),
    **dict.fromkeys(("physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"), "timestamp"),
    **dict.fromkeys(("uniqKey", "state", "producerGroup"), "string"),
    **dict.fromkeys(("preparedTimestamp", "lastCheckTimestamp", "endTimestamp"), "timestamp"),
    **dict.fromkeys(("writtenTimestamp", "dueTimestamp", "popTimestamp", "visibleTimestamp"), "timestamp"),
    **dict.fromkeys(("timestamp", "untilTimestamp"), "timestamp"),
    **dict.fromkeys(("checks", "attempt"), "int"),
    "keys": "string",
    "isInQueue": "boolean",
    "passedBy": "array<string>",
    "abort": "boolean",
    "epochs": "map<bigint,bigint>",
    **dict.fromkeys(
        ("nodes", "damaged", "intact", "witnesses", "lostOn", "intactOn", "unclearOn", "restorableFrom"),
        "array<string>",
    ),
    "keyHashes": "array<int>",
    **dict.fromkeys(("event", "clusterName", "brokerName", "brokerAddress", "masterAddress"), "string"),
    **dict.fromkeys(("masterEpoch", "syncStateSetEpoch"), "int"),
    **dict.fromkeys(("brokerIds", "syncStateSet"), "array<bigint>"),
    "terms": "map<string,bigint>",
    "firstDifference": "string",
}


def spark_type(table: str, column: str) -> str:
    if column == "committed":
        return "boolean"
    positions = (("indexUnits", "position"), ("timers", "position"))
    is_long = (table, column) in (*positions, ("lost", "size"), ("findings", "size"))
    return "bigint" if is_long else SPARK_TYPES.get(column, "bigint")


@pytest.fixture
def broker(case_folder: Callable[[str], Path]) -> str:
    return str(case_folder("mq-53-upgrade"))


@pytest.fixture
def replicas(case_folder: Callable[[str], Path]) -> list[str]:
    return [str(case_folder("mq-53-three") / node) for node in ("n0", "n1", "n2")]


def rows_of(path: Path | str, table: str, **options: Any) -> list[Row]:
    log = open_log(path, **options)
    return [row for batch in read_table(log, table) for row in batch.to_pylist(maps_as_pydicts="strict")]


def in_log(golden: Golden) -> list[Row]:
    """What RocketMQ reports about a golden's log, one row for each line."""
    return _lines(f"{golden}.expected.jsonl.gz")


@cache
def _lines(name: str) -> list[Row]:
    with gzip.open(GOLDENS / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def meta_of(golden: Golden) -> Row:
    return golden.meta["replicas"][golden.node or "root"]


# All tables


def test_the_tables_and_their_columns() -> None:
    assert ["log", *TABLES] == list(NAMES)
    assert {name: " ".join(column.name for column in table.columns) for name, table in TABLES.items()} == COLUMNS


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_documented(table: str) -> None:
    assert TABLES[table].doc
    assert all(column.doc for column in TABLES[table].columns)


@pytest.mark.parametrize("table", TABLES)
def test_rows_have_the_schema_and_parts_are_picklable(table: str, replicas: list[str]) -> None:
    options = {"replicas": replicas[1:]} if table == "diff" else {}
    log = open_log(replicas[0], engine="python", **options)
    if table == "consumers":
        pytest.skip("these stores have no config: tests/rocketmq/test_consumers.py")
    parts = TABLES[table].plan(log, log.options)
    for part in parts:
        for batch in TABLES[table].read(pickle.loads(pickle.dumps(part))):
            assert batch.schema == TABLES[table].schema
            batch.validate(full=True)


def test_an_unknown_table_names_the_nearest(broker: str) -> None:
    with pytest.raises(OptionError, match="unknown table segment: the nearest is segments"):
        rows_of(broker, "segment")


@pytest.mark.parametrize(
    ("table", "option", "value", "takers"),
    [
        ("segments", "topic", "Orders", "table log, consumeQueue, audit, consumers and a stream"),
        ("state", "queueId", "1", "table log, consumeQueue, audit, consumers and a stream"),
        ("consumeQueue", "tags", "a", "table log and a stream"),
        ("findings", "startingOffsets", "5", "table log and a stream"),
        ("audit", "endingTimestamp", "2026-01-01", "table log"),
        ("diff", "mode", "FAILFAST", "table log and a stream"),
        ("consumers", "isolationLevel", "read_committed", "table log and a stream"),
        ("indexFile", "includeEntryBody", "true", "table log and a stream"),
    ],
)
def test_an_option_without_effect_is_rejected(broker: str, table: str, option: str, value: str, takers: str) -> None:
    text = f"option {option} has no effect on table {table}, only on {takers}: leave it out"
    with pytest.raises(OptionError, match=text):
        rows_of(broker, table, **{option: value})


@pytest.mark.parametrize("table", ["segments", "consumeQueue", "consumers"])
def test_replicas_are_rejected_for_tables_of_one_store(replicas: list[str], table: str) -> None:
    with pytest.raises(OptionError, match=f"option replicas has no effect on table {table}"):
        rows_of(replicas[0], table, replicas=replicas[1:])


# segments


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_segments_have_the_written_bytes(case_folder: Callable[[str], Path], golden: Golden, engine: str) -> None:
    rows = rows_of(case_folder(golden.case) / golden.folder, "segments", engine=engine)
    meta = meta_of(golden)
    files = [("commitlog", *file) for file in meta["commitlogFiles"]]
    files += [("dledger", *file) for file in meta["dledgerFiles"]]
    assert [(row["source"], row["segment"], row["fileSize"]) for row in rows] == [file[:3] for file in files]
    for row, (_, _, size, rest) in zip(rows, files, strict=True):
        blank = re.fullmatch(r"(?:blank|filler) of (\d+)", rest)
        zeros = re.fullmatch(r"zeros from (\d+)", rest)
        assert row["blankBytes"] == (int(blank[1]) if blank else 0)
        assert row["unwrittenBytes"] == (row["baseOffset"] + size - int(zeros[1]) if zeros else 0)
        assert row["usedBytes"] + row["blankBytes"] + row["unwrittenBytes"] == size
        assert (row["staleBytes"], row["corruptBytes"], row["findings"]) == (0, 0, 0)
    assert sum(row["entries"] for row in rows) == meta["messages"]


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_segments_begin_and_end_as_the_log_does(
    case_folder: Callable[[str], Path], golden: Golden, engine: str
) -> None:
    rows = rows_of(case_folder(golden.case) / golden.folder, "segments", engine=engine)
    messages = [line for line in in_log(golden) if line["kind"] == "message"]
    for row in rows:
        end = row["baseOffset"] + row["fileSize"]
        own = [message for message in messages if row["baseOffset"] <= message["recordOffset"] < end]
        first, last = own[0], own[-1]
        assert (row["firstIndex"], row["lastIndex"]) == (first.get("index"), last.get("index"))
        assert (row["firstTerm"], row["lastTerm"]) == (first.get("term"), last.get("term"))
        times = (row["firstStoreTimestamp"], row["lastStoreTimestamp"])
        assert [round(time.timestamp() * 1000) for time in times] == [first["storeTimestamp"], last["storeTimestamp"]]


def test_entries_after_the_end_are_stale(case_folder: Callable[[str], Path], engine: str) -> None:
    """The old leader wrote 60 more entries of 548 bytes; ten entries of the new leader overwrite some in this file."""
    (row,) = rows_of(case_folder("raw-truncated-tail") / "dledger-n1", "segments", engine=engine)
    assert (row["entries"], row["lastIndex"], row["lastTerm"]) == (210, 209, 2)
    assert row["staleBytes"] == 5 * 548
    assert row["usedBytes"] + row["staleBytes"] + row["blankBytes"] == 65536


def test_damage_is_counted_by_segment(tmp_path: Path, engine: str) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", b"x" * 100)] * 40)
    damaged = store.segments[1]
    write_at(damaged.path, store.rows_of(damaged)[2]["pos"] - damaged.base, b"\xee" * 8)
    rows = rows_of(tmp_path, "segments", engine=engine)
    assert [row["findings"] > 0 for row in rows] == [n == 1 for n in range(len(rows))]
    assert rows[1]["corruptBytes"] == store.rows_of(damaged)[2]["size"]
    assert rows[1]["entries"] == len(store.rows_of(damaged)) - 1


def test_files_created_ahead_are_empty(tmp_path: Path, engine: str) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    (tmp_path / "dledger-n0" / "data" / f"{4096:020}").write_bytes(bytes(4096))
    last = rows_of(tmp_path, "segments", engine=engine)[-1]
    assert (last["entries"], last["firstIndex"], last["firstTerm"], last["unwrittenBytes"]) == (0, None, None, 4096)


# state


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_state_is_javas(case_folder: Callable[[str], Path], golden: Golden) -> None:
    (row,) = rows_of(case_folder(golden.case) / golden.folder, "state")
    head = golden.expected().head
    java = head.get("dledger", {})
    for name in ("beginIndex", "endIndex", "endTerm", "currTerm"):
        assert row[name] == java.get(name, None if name == "currTerm" else -1)
    assert row["dividedCommitlogOffset"] == head["dividedCommitlogOffset"]
    assert row["minOffset"] == head["minPhyOffset"]
    assert row["abort"] == head["abortFile"]


# indexUnits


@pytest.mark.parametrize("golden", ALL, ids=str)
def test_index_units_agree_with_their_entries(case_folder: Callable[[str], Path], golden: Golden) -> None:
    options = {"dataDirs": _data_dirs(case_folder("raw-multipath"))} if golden.case == "raw-multipath" else {}
    path = case_folder(golden.case) / golden.folder
    rows = rows_of(path, "indexUnits", **options)
    entries = golden.expected().entries
    names = ("indexPos", "size") if golden.is_raw else ("recordOffset", "recordSize")
    begin = golden.expected().dledger.get("beginIndex", 0)
    kept = [row for row in rows if begin <= row["index"] <= golden.expected().dledger.get("endIndex", -1)]
    assert [row["problem"] for row in kept] == [None] * len(kept)
    assert [(row["index"], row["pos"], row["size"], row["term"]) for row in kept] == [
        (entry["index"], *(entry[name] for name in names), entry["term"])
        for entry in entries
        if entry.get("index") is not None
    ]
    assert {row["problem"] for row in rows if row["index"] < begin} <= {None}


def _data_dirs(case: Path) -> list[str]:
    return [str(path) for path in case.glob("path*")]


def test_units_after_the_end_have_a_problem(case_folder: Callable[[str], Path]) -> None:
    rows = rows_of(case_folder("raw-truncated-tail") / "dledger-n1", "indexUnits")
    assert [row["index"] for row in rows if row["problem"]] == list(range(210, 260))
    assert rows[210]["problem"] == "expected no unit after index 209, the end of the log, found index 210"


def test_holes_of_the_index_are_not_read(broker: str) -> None:
    log = open_log(broker)
    parts = TABLES["indexUnits"].plan(log, log.options)
    assert sum(file.size for file in log.index_files.files) == 160 * 2**20
    assert sum(part.stop - part.first for part in parts) * 32 < 2**20


@pytest.fixture
def indexed(tmp_path: Path) -> Store:
    return write_dledger(tmp_path, [raw(b"%d" % n * 20) for n in range(200)], index_file_size=32 * 64)


def change_unit(store: Store, number: int, changes: dict[str, int]) -> None:
    path = store.path / "dledger-n0" / "index" / f"{number // 64 * 64 * 32:020}"
    with path.open("r+b") as file:
        file.seek(number % 64 * 32)
        unit = codec.decode_index_unit(file.read(32))
        values = {name: getattr(unit, name) for name in ("magic", "pos", "size", "index", "term")}
        file.seek(number % 64 * 32)
        file.write(codec.encode_index_unit(codec.IndexUnit(**{**values, **changes})))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"magic": 9}, "expected magic 1, 2 or 3, found 9"),
        ({"index": 6}, "expected index 100 at 3200, found 6"),
        ({"term": 5}, "expected term 1 of the entry at {pos}, found 5"),
        ({"size": 7}, "expected size 108 of the entry at {pos}, found 7"),
        ({"magic": 2}, "expected magic 1 of the entry at {pos}, found 2"),
        ({"pos": 3}, "expected an entry at 3, found none"),
        ({"pos": 2**60}, "expected an entry at 1152921504606846976, found none"),
    ],
)
def test_a_unit_that_disagrees(indexed: Store, changes: dict[str, int], problem: str) -> None:
    change_unit(indexed, 100, changes)
    rows = rows_of(indexed.path, "indexUnits")
    assert len(rows) == 200
    assert [row["position"] for row in rows[62:66]] == [62 * 32, 63 * 32, 0, 32]
    pos = indexed.rows[100]["pos"]
    assert {row["position"]: row["problem"] for row in rows if row["problem"]} == {36 * 32: problem.format(pos=pos)}


def test_a_unit_of_another_entry(indexed: Store) -> None:
    other = indexed.rows[99]["pos"]
    change_unit(indexed, 100, {"pos": other})
    (row,) = (row for row in rows_of(indexed.path, "indexUnits") if row["problem"])
    assert row["problem"] == f"expected index 99 of the entry at {other}, found 100"


# consumeQueue


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_units_are_rocketmqs(case_folder: Callable[[str], Path], golden: Golden) -> None:
    rows = rows_of(case_folder(golden.case) / golden.folder, "consumeQueue")
    lines = in_log(golden)
    assert len(rows) == meta_of(golden)["cqUnitsOnDisk"]
    names = ("topic", "queueId", "queueOffset", "commitLogOffset", "size", "tagsCode")
    kept = [tuple(row[name] for name in names) for row in rows if row["commitLogOffset"] >= lines[0]["minPhyOffset"]]
    java = ("topic", "queueId", "cqOffset", "phyOffset", "size", "tagsCode")
    assert sorted(kept) == sorted(tuple(line[name] for name in java) for line in lines if line["kind"] == "cq")
    assert {row["problem"] for row in rows} == {None}
    assert {row["kind"] for row in rows if row["topic"] == "SCHEDULE_TOPIC_XXXX"} <= {"delay"}
    assert {row["kind"] for row in rows if row["topic"] != "SCHEDULE_TOPIC_XXXX"} == {"unit"}
    for row in rows:
        assert (case_folder(golden.case) / golden.folder / row["file"]).is_file()


def unit(queue_offset: int, offset: int, size: int = 100, tags_code: int = 0, topic: str = "T") -> Unit:
    return Unit(topic, 0, queue_offset, offset, size, tags_code)


def test_units_that_a_truncation_left_have_a_problem(tmp_path: Path) -> None:
    """Those that new ones did not overwrite are before the last new one, also if they ascend."""
    store = write_commitlog(tmp_path, [mq_message("Orders", b"%d" % n, queue_offset=n) for n in range(9)])
    made = units_of(store.rows)
    left = [unit._replace(queue_offset=4 + n) for n, unit in enumerate(made[3:6])]
    write_units(tmp_path, [*made[:3], made[8]._replace(queue_offset=3), *left])
    offset = made[8].commit_log_offset
    assert [row["problem"] for row in rows_of(tmp_path, "consumeQueue")] == [None] * 4 + [
        f"expected a commitLogOffset above {offset}, as {whose} before has, found {unit.commit_log_offset}"
        for whose, unit in zip(("the unit", "a unit", "a unit"), left, strict=True)
    ]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (unit(5, 1400), "expected a commitLogOffset above 1400, as the unit before has, found 1400"),
        (unit(5, 1600, 90), "expected a size of at least 91, found 90"),
        (unit(5, 1600, -1), "expected a size of at least 91, found -1"),
        (unit(5, -8), "expected a commitLogOffset, found -8"),
    ],
)
def test_a_wrong_unit_has_a_problem(tmp_path: Path, wrong: Unit, problem: str) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    write_units(tmp_path, [*(unit(n, 1000 + 100 * n) for n in range(5)), wrong, unit(6, 1700)])
    problems = [row["problem"] for row in rows_of(tmp_path, "consumeQueue")]
    assert problems == [None] * 5 + [problem, None]


def test_units_ascend_over_files_too(tmp_path: Path) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    write_units(tmp_path, [unit(99, 5000), unit(100, 4000), unit(101, 6000)])
    assert [row["problem"] for row in rows_of(tmp_path, "consumeQueue")] == [
        None,
        "expected a commitLogOffset above 5000, as the unit before has, found 4000",
        None,
    ]


def test_kinds_of_units(tmp_path: Path) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    write_units(tmp_path, [Unit("T", 0, n, *FILLER) for n in range(2)])
    write_units(tmp_path, [unit(2, 1000), unit(3, 2000, 100, -(2**31) - 1), unit(4, 3000, 100, -(2**31))])
    write_units(tmp_path, [unit(7, 4000)])
    rows = rows_of(tmp_path, "consumeQueue")
    assert [(row["queueOffset"], row["kind"], row["problem"]) for row in rows] == [
        (0, "filler", None),
        (1, "filler", None),
        (2, "unit", None),
        (3, "ext", None),
        (4, "unit", None),
        (7, "unit", None),
    ]


def test_units_of_batch_messages(tmp_path: Path) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    folder = tmp_path / "batchconsumequeue" / "Batches" / "1"
    folder.mkdir(parents=True)
    units = b"".join(
        n.to_bytes(8, "big") + (300).to_bytes(4, "big") + bytes(16) + base.to_bytes(8, "big") + bytes(10)
        for n, base in ((1000, 0), (2000, 7))
    )
    (folder / f"{0:020}").write_bytes(units + bytes(460))
    rows = rows_of(tmp_path, "consumeQueue", topic="Batches")
    assert [(row["queueOffset"], row["commitLogOffset"], row["size"], row["kind"]) for row in rows] == [
        (0, 1000, 300, "batch"),
        (7, 2000, 300, "batch"),
    ]


def test_the_options_topic_and_queue_id(broker: str) -> None:
    rows = rows_of(broker, "consumeQueue", topic="OrderTopic,PayTopic", queueId="1,3")
    assert {(row["topic"], row["queueId"]) for row in rows} == {("OrderTopic", 1), ("OrderTopic", 3), ("PayTopic", 1)}
    every = [row for row in rows_of(broker, "consumeQueue") if row["topic"] in ("OrderTopic", "PayTopic")]
    assert rows == [row for row in every if row["queueId"] in (1, 3)]


def test_batches_of_any_size_have_the_same_rows(broker: str) -> None:
    rows = rows_of(broker, "consumeQueue")
    log = open_log(broker, maxBatchRows=7)
    batches = list(read_table(log, "consumeQueue"))
    assert max(batch.num_rows for batch in batches) == 7
    assert [row for batch in batches for row in batch.to_pylist()] == rows


# Positions in a queue


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_queues_begin_and_end_as_in_rocketmq(case_folder: Callable[[str], Path], golden: Golden) -> None:
    root = case_folder(golden.case) / golden.folder
    head = in_log(golden)[0]
    found = {(queue.topic, queue.queue_id): QueueUnits(queue) for queue in queues(root)}
    for line in head["queues"]:
        units = found.get((line["topic"], line["queueId"]))
        if units is None:
            assert line["max"] == 0
            continue
        rank = units.lower_bound(head["minPhyOffset"])
        first = units.queue_offset(rank) if rank < units.count else units.end
        assert (first, units.end) == (line["min"], line["max"])


@settings(max_examples=examples(30), deadline=None)
@given(
    offsets=st.lists(st.integers(0, 60), min_size=1, max_size=230),
    holes=st.lists(st.tuples(st.integers(0, 230), st.integers(0, 90)), max_size=3),
    wanted=st.lists(st.integers(0, 62), min_size=2, max_size=2).map(sorted),
)
def test_a_lower_bound_never_falls_and_is_right_in_an_ascending_queue(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], holes: list[tuple[int, int]], wanted: list[int]
) -> None:
    root = tmp_path_factory.mktemp("queue")
    for ascending in (True, False):
        known = sorted(offsets) if ascending else offsets
        kept = [n for n in range(len(known)) if not any(start <= n < start + size for start, size in holes)]
        write_units(root / str(ascending), [unit(n, known[n]) for n in kept])
        for queue in queues(root / str(ascending)):
            units = QueueUnits(queue)
            low, high = (units.lower_bound(offset) for offset in wanted)
            assert 0 <= low <= high <= units.count
            places, _ = units.read(0, low)
            if ascending:
                below = [n for n in kept if known[n] < wanted[0]]
                assert [n for n in places.tolist() if n in kept] == below
                assert not below or units.queue_offset(low - 1) == below[-1]


# indexFile


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_index_files_match_their_header(case_folder: Callable[[str], Path], golden: Golden) -> None:
    """After a kill, RocketMQ deletes the newest file; here it is read."""
    root = case_folder(golden.case) / golden.folder
    rows = rows_of(root, "indexFile")
    files = [f"index/{file.name}" for file in index_files(root)]
    by_file = {file: [row for row in rows if row["file"] == file] for file in files}
    assert [file.slots for file in key_files(root)] == [500] * len(by_file)
    assert sum(map(len, by_file.values())) == meta_of(golden)["indexEntries"] - len(by_file) * _counts_from_one(golden)
    for line in (line for line in in_log(golden) if line["kind"] == "index"):
        own = by_file[f"index/{line['file']}"]
        assert [row["position"] for row in own] == list(range(1, line["indexCount"]))
        assert own[0]["commitLogOffset"] == line["beginPhyOffset"]
        assert own[-1]["commitLogOffset"] == line["endPhyOffset"]
        newest: dict[int, int] = {}
        for row in own:
            assert row["previous"] == newest.get(row["keyHash"] % 500, 0)
            newest[row["keyHash"] % 500] = row["position"]


def _counts_from_one(golden: Golden) -> int:
    counts = [line["indexCount"] for line in in_log(golden) if line["kind"] == "index"]
    return int(len(counts) > 0 and meta_of(golden)["indexEntries"] == sum(counts))


@pytest.mark.parametrize("golden", BROKERS, ids=str)
def test_keys_are_found_where_rocketmq_finds_them(case_folder: Callable[[str], Path], golden: Golden) -> None:
    rows = rows_of(case_folder(golden.case) / golden.folder, "indexFile")
    lines = in_log(golden)
    messages = {line["commitLogOffset"]: line for line in lines if line["kind"] == "message"}
    by_hash: dict[int, set[int]] = {}
    for row in rows:
        by_hash.setdefault(row["keyHash"], set()).add(row["commitLogOffset"])
        if (message := messages.get(row["commitLogOffset"])) is not None:
            behind = message["storeTimestamp"] - row["storeTimestamp"].timestamp() * 1000
            assert -1 < behind < 1000
    for query in (line for line in lines if line["kind"] == "query"):
        value = abs(java_hash(f"{query['topic']}#{query['key']}"))
        found = by_hash.get(0 if value == 2**31 else value, set())
        assert set(query["phyOffsets"]) <= found


@pytest.mark.parametrize(("slots", "units"), [(500, 2000), (7, 50), (1000, 100), (3, 1000)])
@pytest.mark.parametrize("first", [0, 48, 5000])
def test_an_index_file_of_any_proportions(tmp_path: Path, slots: int, units: int, first: int) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    count = min(units, 90)
    written = write_index_file(tmp_path, slots, units, [(first + 100 * n, 10 * n) for n in range(1, count)])
    rows = rows_of(tmp_path, "indexFile")
    assert [(row["keyHash"], row["commitLogOffset"], row["previous"]) for row in rows] == written


def write_index_file(root: Path, slots: int, units: int, keys: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """As ``IndexFile.putKey`` writes one: an offset and seconds for each key."""
    heads = [0] * slots
    body = bytes(20)
    written = []
    for number, (offset, seconds) in enumerate(keys, 1):
        value = abs(java_hash(f"T#{number}"))
        previous, heads[value % slots] = heads[value % slots], number
        written.append((value, offset, previous))
        body += b"".join(n.to_bytes(size, "big") for n, size in ((value, 4), (offset, 8), (seconds, 4), (previous, 4)))
    begin = 1700000000000
    header = [begin, begin + keys[-1][1] * 1000, keys[0][0], keys[-1][0]]
    data = b"".join(n.to_bytes(8, "big") for n in header)
    data += sum(map(bool, heads)).to_bytes(4, "big") + (len(keys) + 1).to_bytes(4, "big")
    data += b"".join(head.to_bytes(4, "big") for head in heads) + body
    (root / "index").mkdir()
    (root / "index" / "20261121030747661").write_bytes(data.ljust(40 + 4 * slots + 20 * units, b"\0"))
    return written


@pytest.mark.parametrize("data", [b"", bytes(39), bytes(40), bytes(22040), b"\xff" * 22040])
def test_a_malformed_index_file_has_no_rows(tmp_path: Path, data: bytes) -> None:
    write_dledger(tmp_path, [raw(b"x")])
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20261121030747661").write_bytes(data)
    assert rows_of(tmp_path, "indexFile") == []


def test_a_folder_that_is_not_a_root_has_no_queues_and_no_index(indexed: Store) -> None:
    lone = indexed.path / "alone"
    lone.mkdir()
    for segment in indexed.segments:
        os.link(segment.path, lone / segment.name)
    for table in ("consumeQueue", "indexFile", "audit", "consumers"):
        with pytest.raises(StoreError, match="expected a storePathRootDir with the folder"):
            rows_of(lone, table)


# findings and diff: their rows are tested in test_findings and test_diff


def test_findings_as_rows(case_folder: Callable[[str], Path], engine: str) -> None:
    path = case_folder("mq-53-retention")
    rows = rows_of(path, "findings", engine=engine)
    assert [row["code"] for row in rows] == [finding.code for finding in open_log(path, engine=engine).findings()]
    assert {row["severity"] for row in rows} == {"info"}
    assert {row["code"]: row["file"] for row in rows}["consumeQueueBelowStart"] == "consumequeue"
    assert all(row["javaDoes"] for row in rows)


def test_diff_as_rows(replicas: list[str]) -> None:
    rows = rows_of(replicas[0], "diff", replicas=replicas[1:])
    same = next(row for row in rows if row["verdict"] == "same")
    assert (same["firstIndex"], same["lastIndex"], same["firstPos"]) == (0, 188, 0)
    assert same["terms"] == {"n0": 1, "n1": 1, "n2": 1}


# In Spark


def in_spark(frame: DataFrame) -> list[Row]:
    """Rows as the Python API returns them; collect() converts timestamps to the local time zone."""
    times = [field.name for field in frame.schema if field.dataType.simpleString() == "timestamp"]
    chosen = frame.selectExpr(*(f"unix_micros({n}) as {n}" if n in times else f"`{n}`" for n in frame.columns))
    return [row.asDict() for row in chosen.collect()]


def comparable(rows: list[Row]) -> list[Row]:
    return [
        {name: round(value.timestamp() * 1e6) if hasattr(value, "timestamp") else value for name, value in row.items()}
        for row in rows
    ]


@pytest.fixture(params=[name for name in TABLES if name != "consumers"])
def table(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.smoke
def test_rows_in_spark_are_those_of_the_python_api(
    spark: SparkSession, table: str, broker: str, replicas: list[str]
) -> None:
    reader = spark.read.format("dledger").option("TABLE", table.upper()).option("engine", "python")
    frame = reader.load(replicas if table == "diff" else broker)
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema] == [
        (name, spark_type(table, name)) for name in COLUMNS[table].split()
    ]
    if table == "diff":
        expected = rows_of(replicas[0], table, replicas=replicas[1:], engine="python")
    else:
        expected = rows_of(broker, table, engine="python")
    assert in_spark(frame) == comparable(expected)
    assert expected or table in ("audit", "lost", "transactions", "timers", "pop", "controllerEvents")


@pytest.mark.skipif(PYSPARK < (4, 3), reason="older versions do not compare Arrow schemas")
@pytest.mark.parametrize("name", TABLES)
def test_the_arrow_schema_is_the_one_that_pyspark_expects(name: str) -> None:
    schema = schemas.whole_schema(_options(table=name))
    assert schemas.arrow_schema(schema, name).equals(to_arrow_schema(schema, timezone="UTC"))


def _options(**given: Any) -> Any:
    from pyspark_dledger.log.options import parse_options

    return parse_options(given)


@pytest.mark.smoke
def test_a_users_schema_chooses_columns_in_its_order_and_spelling(spark: SparkSession, broker: str) -> None:
    reader = spark.read.format("dledger").option("table", "consumeQueue").option("topic", "OrderTopic")
    frame = reader.schema("KIND string, queueoffset long, Topic string").load(broker)
    assert frame.columns == ["KIND", "queueoffset", "Topic"]
    assert [tuple(row) for row in frame.collect()] == [
        (row["kind"], row["queueOffset"], row["topic"]) for row in rows_of(broker, "consumeQueue", topic="OrderTopic")
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("index long", "unknown column index: the nearest of table segments is lastIndex"),
        ("entries int", "column entries is bigint, found int: write entries bigint"),
        ("source string not null", "column source can be null, found NOT NULL: leave NOT NULL out"),
        ("entries long, ENTRIES long", "column entries is named twice"),
        ("firstStoreTimestamp timestamp_ntz", "write timestamp_ltz"),
    ],
)
def test_a_wrong_schema_is_an_error(spark: SparkSession, broker: str, schema: str, message: str) -> None:
    reader = spark.read.format("dledger").option("table", "segments").schema(schema)
    with pytest.raises(Exception, match=re.escape(message)):
        reader.load(broker).collect()


def test_errors_reach_the_user_of_spark(spark: SparkSession, broker: str) -> None:
    with pytest.raises(Exception, match=r"StoreError: .*/config: expected topics\.json"):
        spark.read.format("dledger").option("table", "consumers").load(broker).collect()
    with pytest.raises(Exception, match="OptionError: option tags has no effect on table segments"):
        spark.read.format("dledger").option("table", "segments").option("tags", "a").load(broker).collect()


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.skipif(PYSPARK < (4, 1), reason="older versions push nothing")
@pytest.mark.usefixtures("pushing")
def test_filters_stay_with_spark_where_it_pushes_some(spark: SparkSession, broker: str) -> None:
    frame = spark.read.format("dledger").option("table", "consumeQueue").load(broker)
    filtered = frame.where("topic = 'OrderTopic' and queueId = 1 and queueOffset between 3 and 8")
    assert [row.queueOffset for row in filtered.collect()] == [3, 4, 5, 6, 7, 8]


@pytest.mark.smoke
def test_sql_over_a_table(spark: SparkSession, broker: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW units USING dledger OPTIONS (path '{broker}', table 'consumeQueue')")
    try:
        counted = spark.sql("SELECT kind, count(*) FROM units GROUP BY kind").collect()
    finally:
        spark.catalog.dropTempView("units")
    assert dict(map(tuple, counted)) == Counter(row["kind"] for row in rows_of(broker, "consumeQueue"))


@pytest.mark.smoke
def test_audit_and_consumers_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Orders", b"%d" % n, queue_offset=n) for n in range(200)])
    write_units(tmp_path, units_of(store.rows))
    file_of(tmp_path, "Orders", 0, 0).unlink()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@G":{0:150}}}')
    reader = spark.read.format("dledger")
    audit = reader.options(table="audit", maxPartitionBytes="4k").load(str(tmp_path))
    assert audit.rdd.getNumPartitions() > 3
    assert in_spark(audit) == rows_of(tmp_path, "audit", maxPartitionBytes="4k")
    assert audit.where("code = 'messageNotInQueue'").count() == 100
    consumers = spark.read.format("dledger").option("table", "consumers").load(str(tmp_path))
    assert in_spark(consumers) == rows_of(tmp_path, "consumers")
    assert [(row["maxOffset"], row["lag"]) for row in in_spark(consumers)] == [(200, 50)]


def test_a_log_can_be_read_from_a_plan_of_no_parts(spark: SparkSession, tmp_path: Path) -> None:
    write_dledger(tmp_path, [raw(b"x")], with_index=False)
    frame = spark.read.format("dledger").option("table", "indexUnits").load(str(tmp_path))
    assert frame.collect() == []


def test_the_reader_of_tables_opens_nothing_for_writing(broker: str) -> None:
    """`case_folder` checks every file at the end; here all tables are read."""
    for name in TABLES:
        if name not in ("consumers", "diff"):
            rows_of(broker, name, engine="python")
    assert isinstance(open_log(broker), Log)


def test_units_have_the_size_of_their_layout() -> None:
    for fields, size in (
        (layout.BATCH_UNIT, layout.BATCH_UNIT_SIZE),
        (layout.INDEX_FILE_HEADER, layout.INDEX_FILE_HEADER_SIZE),
        (layout.INDEX_FILE_UNIT, layout.INDEX_FILE_UNIT_SIZE),
        (layout.CONSUME_QUEUE_UNIT, layout.CONSUME_QUEUE_UNIT_SIZE),
    ):
        ends = [field.offset + field.length for field in fields]
        assert [field.offset for field in fields] == [0, *ends[:-1]]
        assert ends[-1] == size == codec.record_dtype(fields).itemsize
