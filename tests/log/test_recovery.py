"""The preview of Java's recovery, compared with recorded results of Java 0.3.1.2 and its reports."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.codec import IndexUnit, encode_entry, encode_index_unit
from pyspark_dledger.log import Log, open_log
from pyspark_dledger.log.recovery.recovery_preview import LINES, RecoveryPreview, java_line, preview
from pyspark_dledger.rocketmq.recovery.broker_recovery import dledger_of_rocketmq, preview_broker
from pyspark_dledger.rocketmq.recovery.broker_start import RecoveredQueues
from tests.interop import damages
from tests.interop.damages import Damage
from tests.support import golden
from tests.support.damage import write_at
from tests.support.golden import Golden

Unpack = Callable[[str], Path]

RECORDED = damages.recorded()
RAW = [each for each in golden.ALL if each.is_raw]
BROKERS = [each for each in golden.ALL if not each.is_raw and not each.case.startswith("mq-plain")]
INDEX_FILE_SIZE = 16384
LAST = "data/00000000000003473408"


@pytest.fixture(autouse=True)
def _many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small logs, too, are scanned many entries at a time."""
    monkeypatch.setattr("pyspark_dledger.log.recovery.java_scan._FEW", 1)


@pytest.fixture
def damage(case_folder: Unpack, tmp_path: Path) -> Callable[..., Log]:
    """Returns the log of a damaged copy of raw-single."""

    def make(*operations: damages.Operation) -> Log:
        node = damages.copy_store(case_folder("raw-single") / "dledger-n0", tmp_path / "store")
        damages.apply(list(operations), node)
        return open_log(node)

    return make


def read_lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(golden.GOLDENS / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def recorded(name: str) -> list[damages.Operation]:
    return next(case.operations for case in RECORDED if case.name == name)


def preview_of(log: Log, line: str = "0.3.1.2") -> RecoveryPreview:
    return preview(log, line, index_file_size=INDEX_FILE_SIZE)


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_recorded_damage(case: Damage, damage: Callable[..., Log]) -> None:
    log = damage(*case.operations)
    assert log.paths.node_dir is not None
    before = golden.fingerprint(log.paths.node_dir)
    found = preview_of(log).as_json()
    assert golden.fingerprint(log.paths.node_dir) == before
    names = ("outcome", "beginIndex", "endIndex", "committedIndex", "dataFilesAfter", "indexFilesAfter")
    names += ("endTerm", "writePos")
    assert {name: found[name] for name in names} == {name: case.java.get(name) for name in names}
    if case.java["outcome"] == "opens":
        assert (found["currTerm"], found["voteLeader"]) == (case.java["currTerm"], case.java["voteLeader"])
        assert len(found["dataFilesDeleted"]) == case.java["dataFilesDeleted"]
    else:
        assert found["reason"].startswith(case.java["message"].removeprefix("DLedgerMmapFileStore: "))
        assert found["lost"] == []


@pytest.mark.parametrize("case", RAW, ids=str)
def test_undamaged_store(case: Golden, case_folder: Unpack) -> None:
    root = case_folder(case.case)
    dirs = sorted(root.glob("path*"))
    options = {"dataDirs": [str(path) for path in dirs]} if dirs else {}
    said = case.expected().head
    found = preview(open_log(root / case.folder, **options), case.version)
    names = ("beginIndex", "endIndex", "endTerm", "committedIndex", "writePos", "currTerm", "voteLeader")
    assert found.outcome == "opens"
    assert {name: found.as_json()[name] for name in names} == {name: said[name] for name in names}
    data_files = sorted(name.rpartition("/")[2] for name in said["dataFiles"])
    assert (found.data_files_after, found.index_files_after) == (data_files, said["indexFiles"])
    assert (found.lost, found.reason) == ([], "") or case.version == "0.4.0"


@pytest.mark.parametrize("case", BROKERS, ids=str)
def test_broker_on_undamaged_store(case: Golden, case_folder: Unpack) -> None:
    root = case_folder(case.case) / case.node
    before = golden.fingerprint(root)
    lines = read_lines(f"{case}{golden.SUFFIX}")
    head, said = lines[0], lines[0]["dledger"]
    found = preview_broker(open_log(root), head["rocketmq"])
    assert golden.fingerprint(root) == before
    names = ("beginIndex", "endIndex", "endTerm", "committedIndex", "currTerm")
    assert {name: found.as_json()[name] for name in names} == {name: said[name] for name in names}
    broker = found.rocketmq
    assert broker is not None
    assert broker["starts"]
    assert (broker["dividedCommitlogOffset"], broker["abort"]) == (head["dividedCommitlogOffset"], head["abortFile"])
    assert broker["queues"] == [], "no queue becomes longer or shorter"
    there = sorted(path.name for path in (root / "index").iterdir())
    assert [name for name in there if name not in broker["indexFilesDeleted"]] == [
        line["file"] for line in lines if line["kind"] == "index"
    ]
    assert {(each["topic"], each["queueId"]): each["max"] for each in head["queues"] if each["max"]} == {
        key: queue.max_offset for key, queue in RecoveredQueues(root).by_key.items() if queue.max_offset
    }


# What is lost, and why


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("untouched", []),
        ("magic-last-file-first-entry", [(2992, 2999)]),
        ("index-second-last-file-middle-entry", [(2963, 2999)]),
        ("index-last-entry", [(2999, 2999)]),
        ("delete-last-data-file", [(2992, 2999)]),
        ("magic-third-last-file-first-entry", []),
        ("checkpoint-committed-above-end", []),
        ("delete-all-index-files", []),
        ("forged-entry-behind-end", []),
    ],
)
def test_lost_entries(name: str, lost: list[tuple[int, int]], damage: Callable[..., Log]) -> None:
    assert preview_of(damage(*recorded(name))).lost == lost


def test_reason_names_file_byte_and_difference(damage: Callable[..., Log]) -> None:
    found = preview_of(damage(*recorded("size-last-file-middle-entry")))
    assert (
        found.reason
        == f"the scan stops in {LAST} at byte 8760: expected size 5747 for a body of 5699 bytes, found 5715"
    )


def test_reason_of_a_rewritten_index(damage: Callable[..., Log]) -> None:
    found = preview_of(damage(*recorded("index-unit-pos-last-entry")))
    assert found.reason == (
        "the index is rewritten from 2999: index/00000000000000081920 at byte 14048: expected pos 3492745 for "
        "entry 2999, found 12345"
    )


def test_a_note_says_that_the_committed_index_is_unknown(damage: Callable[..., Log]) -> None:
    gone = [{"op": "delete", "file": name} for name in ("checkpoint", "checkpoint.bak")]
    found = preview_of(damage(*recorded("magic-last-file-first-entry"), *gone))
    assert found.lost == []
    assert any("2992 to 2999 would be truncated" in note for note in found.notes)


@pytest.mark.parametrize("line", LINES)
def test_damage_after_the_last_intact_entry_is_truncated(line: str, damage: Callable[..., Log]) -> None:
    """Nothing proves that the last entry was committed, and no intact one follows: a start drops it all the same."""
    gone = [{"op": "delete", "file": name} for name in ("checkpoint", "checkpoint.bak")]
    assert not preview_of(damage(*gone), line).is_trouble
    found = preview_of(damage(*gone, damages.write(LAST, 19337, b"\x55" * 8)), line)
    assert (found.outcome, found.end_index, found.lost, found.dropped) == ("opens", 2998, [], 0)
    assert (found.truncated, found.is_trouble) == ((3492745, 3492829), True)
    assert found.reason.startswith("the scan stops in data/00000000000003473408 at byte 19337")


@pytest.mark.parametrize("preview_start", [preview_broker, preview])
def test_a_message_that_only_a_queue_knows_is_truncated(preview_start: Any, broker_root: Callable[..., Path]) -> None:
    root = broker_root("mq-53-single")
    version = "5.3.3" if preview_start is preview_broker else "0.3.1.2"
    log = open_log(root)
    assert not preview_start(log, version).is_trouble
    for name in ("checkpoint", "checkpoint.bak"):
        (root / "dledger-n0" / name).unlink(missing_ok=True)
    segment, end = log.ends["dledger"]
    write_at(segment.path, end.last_pos - segment.base, bytes(end.pos - end.last_pos))
    found = preview_start(open_log(root), version)
    assert (found.end_index, found.lost, found.truncated) == (end.last_index - 1, [], (end.last_pos, end.pos - 1))
    assert found.is_trouble


def test_a_note_names_the_files_that_java_does_not_check(damage: Callable[..., Log]) -> None:
    found = preview_of(damage(*recorded("magic-first-file-first-entry")))
    assert "Java does not check the data files before 00000000000003342336 when it opens the store" in found.notes


def test_a_note_has_the_proven_committed_index_if_java_starts_with_a_lower_one(case_folder: Unpack) -> None:
    """The ConsumeQueue proves more than a stale checkpoint."""
    found = preview(open_log(case_folder("mq-498-upgrade-killed")), "0.3.1.2")
    assert found.committed_index == 491
    assert any("with 491 as committed, although 661 is proven (consumeQueue)" in note for note in found.notes)


def test_a_damaged_first_header_loses_the_entries_before_its_index(damage: Callable[..., Log]) -> None:
    found = preview_of(damage(damages.write("data/00000000000000000000", 8, (700).to_bytes(8, "big"))))
    # Java trusts the header, and deletes the first index file as not needed.
    assert (found.begin_index, found.index_files_deleted) == (700, ["00000000000000000000"])
    assert found.lost == []  # the first intact entry that is left is 1, and 700 is taken for the first


def test_lost_topics(case_folder: Unpack, tmp_path: Path) -> None:
    node = damages.copy_store(case_folder("mq-53-three") / "n0" / "dledger-n0", tmp_path / "store")
    last = max((node / "data").iterdir())
    damages.apply([damages.write(f"data/{last.name}", 0, bytes(4))], node)
    log = open_log(node)
    found = preview(log, "0.3.1.2")
    first, end = found.lost[0]
    expected: dict[str, int] = {}
    for message in Golden("mq-53-three", "n0").expected().entries:
        if first < message["index"] <= end:  # the first one's header is what was damaged
            expected[message["topic"]] = expected.get(message["topic"], 0) + 1
    assert found.lost == [(first, 610)]
    assert found.lost_topics == expected


# State files


@pytest.mark.parametrize(
    ("text", "outcome", "committed"),
    [
        ("committedIndex=many\n", "throws", None),
        ("committedIndex=99999999999999999999\n", "throws", None),
        ("committedIndex=\n", "opens", -1),
        ("endIndex=7\n", "opens", -1),
        ("committedIndex=-7\n", "opens", -1),
        ("#committedIndex=5\n", "opens", -1),
        ("committedIndex : +12 \n", "opens", 12),
        ("bad=\\uzz\ncommittedIndex=12\n", "opens", -1),
    ],
)
def test_checkpoint(text: str, outcome: str, committed: int | None, damage: Callable[..., Log]) -> None:
    found = preview_of(damage(damages.checkpoint(text)))
    assert (found.outcome, found.committed_index) == (outcome, committed)


@pytest.mark.parametrize(
    ("text", "term", "vote"),
    [
        ("currTerm=7\nvoteLeader=n1\n", 7, "n1"),
        ("currTerm=7\nvoteLeader=\n", 7, None),
        ("currTerm=many\nvoteLeader=n1\n", 0, None),
        ("currTerm=7 \nvoteLeader=n1\n", 0, None),
        ("", 0, None),
    ],
)
def test_current_term(text: str, term: int, vote: str | None, damage: Callable[..., Log]) -> None:
    found = preview_of(damage(damages.create("currterm", text)))
    assert (found.outcome, found.curr_term, found.vote_leader) == ("opens", term, vote)


# Versions


def test_line_of_a_version() -> None:
    lines = {"0.1": "0.1", "0.2.0": "0.2", "0.2.7": "0.2", "0.3.0": "0.3", "0.3.1.2": "0.3", "0.3.2": "0.3.2"}
    lines |= {"0.4.0": "0.4", **{line: line for line in LINES}}
    assert {version: java_line(version) for version in lines} == lines


@pytest.mark.parametrize("version", ["", "1.0", "0.0.9", "0.5.0", "four", "5.3.3"])
def test_unknown_version(version: str) -> None:
    with pytest.raises(OptionError, match="expected a DLedger version"):
        java_line(version)


def test_dledger_of_rocketmq() -> None:
    versions = {
        "4.5.0": "0.1",
        "4.5.1": "0.1",
        "4.7.1": "0.1",
        "4.8.0": "0.2.2",
        "4.9.2": "0.2.2",
        "4.9.3": "0.2.3",
        "4.9.4": "0.2.6",
        "4.9.5": "0.3.1.2",
        "4.9.8": "0.3.1.2",
        "5.0.0-PREVIEW": "0.2.2",
        "5.0.0-ALPHA": "0.2.3",
        "5.0.0": "0.3.1",
        "5.1.0": "0.3.1",
        "5.1.1": "0.3.1.2",
        "5.3.3": "0.3.1.2",
        "5.4.0": "0.3.2",
        "5.5.0": "0.3.2",
    }
    assert {version: dledger_of_rocketmq(version) for version in versions} == versions


@pytest.mark.parametrize("version", ["4.4.0", "5.6.0", "5.3", "0.3.1.2", "", "5.3.3-ALPHA"])
def test_unknown_rocketmq(version: str) -> None:
    with pytest.raises(OptionError, match="expected a RocketMQ version with DLedger"):
        dledger_of_rocketmq(version)


def test_early_versions_read_the_committed_entry(damage: Callable[..., Log]) -> None:
    """With its wrong pos, 0.1 to 0.2.2 do not open the store; later versions read only its index unit."""
    log = damage(*recorded("pos-middle-file-middle-entry"), damages.checkpoint("committedIndex=1585\n"))
    outcomes = {line: preview_of(log, line).outcome for line in (*LINES, "0.2.2", "0.2.3")}
    assert outcomes == {
        "0.1": "throws",
        "0.2": "opens",
        "0.3": "opens",
        "0.3.2": "opens",
        "0.4": "opens",
        "0.2.2": "throws",
        "0.2.3": "opens",
    }


def test_noop_of_0_4(case_folder: Unpack) -> None:
    """For earlier versions, a NOOP's magic is damage: they exit, or truncate there if it is near the end."""
    log = open_log(case_folder("raw-single-040") / "dledger-n0")
    assert preview(log, "0.4").end_index == 603
    before = preview(log, "0.3.1.2")
    assert (before.outcome, before.end_index) != ("opens", 603)
    assert "expected magic 1, found 2" in before.reason


def test_blanks_in_a_cycle(case_folder: Unpack, tmp_path: Path) -> None:
    node = damages.copy_store(case_folder("raw-single-040") / "dledger-n0", tmp_path / "store")
    damages.apply([damages.write("data/00000000000000327680", 0, b"\xff\xff\xff\xff\0\0\0\0")], node)
    assert {line: preview(open_log(node), line).outcome for line in ("0.3", "0.4")} == {"0.3": "exits", "0.4": "hangs"}


# Sizes and folders


def test_sizes_come_from_the_files_unless_given(damage: Callable[..., Log]) -> None:
    log = damage(*recorded("delete-all-index-files"))
    by_default = preview(log, "0.3")
    assert by_default.index_files_after == ["00000000000000000000"]
    assert any("DLedger's default size of 167772160 bytes is assumed" in note for note in by_default.notes)
    assert len(preview_of(log).index_files_after) == 6
    assert preview(log, "0.3", data_file_size=131072).outcome == "exits"


def test_data_folder_without_its_node(case_folder: Unpack) -> None:
    data = case_folder("raw-single") / "dledger-n0" / "data"
    with pytest.raises(StoreError, match="expected a DLedger node's folder"):
        preview(open_log(data / "00000000000000000000"), "0.3")
    with pytest.raises(StoreError, match="expected a DLedger node's folder"):
        preview(open_log(case_folder("mq-plain")), "0.3")


def test_empty_store(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    found = preview(open_log(tmp_path / "dledger-n0"), "0.3")
    assert (found.outcome, found.begin_index, found.end_index, found.write_pos) == ("opens", -1, -1, 0)
    assert (found.lost, found.data_files_after, found.reason) == ([], [], "")


def test_many_small_and_some_large_entries(tmp_path: Path, engine: str) -> None:
    """Entries that are passed together and one by one have the same result."""
    sizes = [10] * 5000 + [6000] * 50 + [10] * 100 + [0] * 100
    node = tmp_path / "dledger-n0"
    (node / "data").mkdir(parents=True)
    (node / "index").mkdir()
    data, index = bytearray(), bytearray()
    for number, size in enumerate(sizes):
        index += encode_index_unit(IndexUnit(1, len(data), size + 48, number, number // 1000))
        data += encode_entry(number, number // 1000, len(data), bytes(size))
    end = len(data)
    (node / "data" / f"{0:020d}").write_bytes(data.ljust(2**20, b"\0"))
    (node / "index" / f"{0:020d}").write_bytes(index.ljust(2**18, b"\0"))
    found = preview(open_log(node, engine=engine), "0.3")
    assert (found.end_index, found.end_term, found.write_pos) == (len(sizes) - 1, 5, end)
    (node / "index" / f"{0:020d}").write_bytes(bytes(2**18))
    again = preview(open_log(node, engine=engine), "0.3")
    assert again.reason.startswith("the index is rewritten from 0")
    assert replace(again, reason="", notes=[]) == replace(found, reason="", notes=[])


def test_json_has_the_fixed_keys(damage: Callable[..., Log]) -> None:
    found = preview_of(damage()).as_json()
    keys = {
        "outcome",
        "beginIndex",
        "endIndex",
        "committedIndex",
        "dataFilesAfter",
        "indexFilesAfter",
        "lost",
        "reason",
    }
    assert keys <= set(found)
    assert json.loads(json.dumps(found))["lost"] == []


# The broker


@pytest.fixture
def broker_root(tmp_path: Path) -> Callable[..., Path]:
    """Returns a copy of a broker's root, with sparse index files."""

    def make(case: str) -> Path:
        return golden.unpack(case, tmp_path)

    return make


def broker(root: Path, version: str) -> dict[str, Any]:
    found = preview_broker(open_log(root), version).rocketmq
    assert found is not None
    return found


def test_a_broker_does_not_start_with_a_queue_file_of_another_size(broker_root: Callable[..., Path]) -> None:
    """4.9.2 ignores the file."""
    root = broker_root("mq-53-single")
    file = next(iter(sorted((root / "consumequeue" / "OrderTopic" / "0").iterdir())))
    size = file.stat().st_size
    os.truncate(file, 450)
    (root / "abort").touch()
    found = preview_broker(open_log(root), "5.3.3")
    assert not found.starts and found.is_trouble
    assert found.reason == f"consumequeue/OrderTopic/0/{file.name} has 450 bytes, not {size}"
    assert found.rocketmq is not None and not found.rocketmq["starts"]
    assert (found.rocketmq["indexFilesDeleted"], found.rocketmq["queues"]) == ([], [])
    assert [each.file for each in open_log(root).findings() if each.code == "consumeQueueFileSize"] == [
        str(file.relative_to(root))
    ]
    assert preview_broker(open_log(root), "4.9.2").starts


def test_versions_differ_after_an_unclean_end(broker_root: Callable[..., Path]) -> None:
    """5.1.4 ignores it; 5.2.0 truncates at the file that its checkpoint covers; 5.3.3 48 bytes per entry too early."""
    root = broker_root("mq-53-single")
    (root / "abort").touch()
    found = {version: broker(root, version) for version in ("4.9.8", "5.1.4", "5.2.0", "5.3.3")}
    assert {version: each["recovery"] for version, each in found.items()} == {
        "4.9.8": "normal",
        "5.1.4": "normal",
        "5.2.0": "abnormal",
        "5.3.3": "abnormal",
    }
    # The result of Java brokers of these versions.
    assert {version: each["consumeQueueCutAt"] for version, each in found.items()} == {
        "4.9.8": 658445,
        "5.1.4": 658445,
        "5.2.0": 262144,
        "5.3.3": 647597,
    }
    units = {version: each["consumeQueueUnitsAfter"] for version, each in found.items()}
    assert units == {"4.9.8": 970, "5.1.4": 970, "5.2.0": 428, "5.3.3": 956}


def test_unclean_end_deletes_newer_index_files(broker_root: Callable[..., Path]) -> None:
    root = broker_root("mq-53-single")
    assert broker(root, "4.9.8")["indexFilesDeleted"] == []
    (root / "abort").touch()
    assert broker(root, "4.9.8")["indexFilesDeleted"] == ["20261121030807535"]


def test_broker_over_an_old_commitlog(broker_root: Callable[..., Path]) -> None:
    """4.9.8 does not know V2 messages: it ends the log at the first one, and deletes the files after it."""
    root = broker_root("mq-53-upgrade")
    for name in ("data", "index"):
        for file in (root / "dledger-n0" / name).iterdir():
            file.unlink()
    found, early = broker(root, "5.3.3"), broker(root, "4.9.8")
    assert (found["dividedCommitlogOffset"], found["dataFileCreated"]) == (393216, "00000000000000393216")
    assert (early["dividedCommitlogOffset"], early["dataFileCreated"]) == (262144, "00000000000000262144")
    assert found["oldFilesDeleted"] == []
    assert early["oldFilesDeleted"] == ["00000000000000262144", "00000000000000327680"]
    units = [each["consumeQueueUnitsAfter"] for each in (found, early)]
    assert units[1] < units[0] < found["consumeQueueUnitsBefore"]


def test_broker_does_not_start_where_dledger_does_not(broker_root: Callable[..., Path]) -> None:
    root = broker_root("mq-53-single")
    (root / "dledger-n0" / "data" / "notes.txt").write_text("left behind\n")
    found = broker(root, "5.3.3")
    assert not found["starts"]
    assert found["consumeQueueUnitsAfter"] == found["consumeQueueUnitsBefore"]
