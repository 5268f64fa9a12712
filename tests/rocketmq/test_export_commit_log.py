"""An export to a plain CommitLog has every message once, in order and unchanged, and leaves damage out."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyspark_dledger as dl
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import MalformedError, OptionError, StoreError
from pyspark_dledger.format import layout
from pyspark_dledger.format.message import encode_message
from pyspark_dledger.log.io.queue_files import queues, read_units
from pyspark_dledger.log.io.queue_units import is_filler
from pyspark_dledger.log.io.state_files import read_store_checkpoint
from pyspark_dledger.rocketmq.export import commit_log_part, export
from pyspark_dledger.rocketmq.export.commit_log_form import CommitLogForm
from pyspark_dledger.rocketmq.export.commit_log_part import FILLER_TOPIC, MIN_FILLER_SIZE
from pyspark_dledger.rocketmq.jobs import map_here
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile
from tests.support import golden
from tests.support.damage import flip
from tests.support.generate import (
    Recipe,
    Store,
    damages,
    mq_message,
    raw,
    recipes,
    rows_of,
    write_commitlog,
    write_dledger,
)
from tests.support.golden import Golden, Record
from tests.support.long_runs import examples

GOLDENS = [each for each in golden.ALL if each.case.startswith("mq-")]
SLOW = ("mq-498-upgrade-killed-early", "mq-plain-crc")
FILLER = FILLER_TOPIC.decode()
# The columns of a message that do not depend on its position.
COLUMNS = (
    *("kind", "topic", "queueId", "queueOffset", "messageMagic", "flag", "sysFlag", "reconsumeTimes"),
    *("bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "messageCrc", "preparedTransactionOffset"),
    *("transaction", "compression", "tags", "keys", "uniqKey", "properties", "body", "problem"),
)
FILE_SIZE = 4096

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.mark.slow
@pytest.mark.parametrize("store", GOLDENS, ids=str)
def test_an_export_has_every_message_that_java_wrote(
    case_folder: Callable[[str], Path], tmp_path: Path, store: Golden
) -> None:
    source, expected = case_folder(store.case) / store.folder, store.expected()
    wanted = expected.rows(None, [each.base for each in dl.open_log(str(source)).segments])
    for preserve in (False, True):
        check_golden(source, tmp_path / str(preserve), wanted, preserve)


@pytest.mark.parametrize("preserve", [False, True])
@pytest.mark.parametrize("case", SLOW)
def test_the_reference_engine_writes_the_same_bytes(
    case_folder: Callable[[str], Path], tmp_path: Path, case: str, preserve: bool
) -> None:
    for engine in ("python", "native"):
        export(case_folder(case), tmp_path / engine, "commitlog", preserveOffsets=preserve, engine=engine)
    for folder in ("commitlog", "consumequeue"):
        assert digests(tmp_path / "python" / folder) == digests(tmp_path / "native" / folder)


def check_golden(source: Path, target: Path, wanted: list[Record], preserve: bool) -> None:
    report = export(source, target, "commitlog", preserveOffsets=preserve)
    assert (report.rows, report.skipped, report.first_skipped) == (len(wanted), 0, ())
    found = exported_rows(target)
    golden.assert_same([only(row, COLUMNS) for row in found], [only(row, COLUMNS) for row in wanted])
    assert all(row["pos"] == row["commitLogOffset"] for row in found)
    moved = sum(old["commitLogOffset"] != new["pos"] for old, new in zip(wanted, found, strict=True))
    framed = {row["segment"] for row in wanted if row["source"] == "dledger"}
    if preserve:
        assert moved == len(framed)
        assert {row["pos"] for row in found if row["pos"] % file_size(target) == 0} >= {int(name) for name in framed}
    else:
        assert all(new["storeSize"] == old["storeSize"] for old, new in zip(wanted, found, strict=True))
        check_no_gaps(found, file_size(target))


def exported_rows(target: Path) -> list[Record]:
    """The messages of an export without fillers, as from `golden.rows_of`; all are intact."""
    log = dl.open_log(str(target / "commitlog"))
    assert [each.code for each in log.findings() if each.severity != "info"] == []
    rows = golden.rows_of(pa.Table.from_batches(log.scan()))
    return [row for row in rows if row["topic"] != FILLER]


def only(row: Record, names: tuple[str, ...]) -> Record:
    return {name: row[name] for name in names}


def file_size(target: Path) -> int:
    sizes = {path.stat().st_size for path in (target / "commitlog").iterdir()}
    assert len(sizes) == 1, "a broker opens files of one size only"
    return sizes.pop()


def check_no_gaps(rows: list[Record], size: int) -> None:
    for before, after in pairwise(rows):
        begins_file = after["pos"] % size == 0 and after["segment"] != before["segment"]
        assert begins_file or after["pos"] == before["pos"] + before["size"]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    recipe=recipes(), damage=damages(), preserve=st.booleans(), engine=st.sampled_from(["native", "native", "python"])
)
def test_the_intact_messages_of_any_log_are_exported(
    folder: Callable[[], Path], recipe: Recipe, damage: Callable[[Store], None], preserve: bool, engine: str
) -> None:
    root = folder()
    store = recipe.write(root / "store")
    damage(store)
    for segment in store.segments:
        os.truncate(segment.path, segment.size)  # another test covers truncated files
    before = digests(root / "store")
    rows = readable_rows(root / "store")
    options = {"preserveOffsets": preserve, "commitLogOnly": True, "engine": engine}
    try:
        report = export(root / "store", root / "target", "commitlog", **options)
    except StoreError:
        assert rows == []  # nothing to export
        return
    assert report.rows == len(rows)
    log = dl.open_log(str(root / "target" / "commitlog"))
    found = [row for row in rows_of(log.scan([*COLUMNS, "pos", "commitLogOffset"])) if row["topic"] != FILLER]
    assert [fields(row) for row in found] == [fields(row) for row in rows]
    assert all(row["commitLogOffset"] == row["pos"] for row in found)
    if preserve:
        # A message moves if it is the first, or if the properties of the one before have no space for padding.
        stays = [new["pos"] == old["commitLogOffset"] for new, old in zip(found, rows, strict=True)]
        assert stays.count(False) <= len({row["segment"] for row in rows})
    assert digests(root / "store") == before


def fields(row: Record) -> Record:
    """The unchanged columns; the CRC in the properties also covers the position."""
    properties = {name: value for name, value in dict(row["properties"]).items() if name != layout.PROPERTY_CRC}
    return {**only(row, COLUMNS), "properties": properties}


def readable_rows(path: Path) -> list[dict[str, Any]]:
    """The messages of a log that a broker can read: intact ones, with any born timestamp."""
    try:
        rows = rows_of(dl.open_log(str(path)).scan([*COLUMNS, "commitLogOffset", "segment"]))
    except StoreError:
        return []
    return [
        row
        for row in rows
        if row["kind"] == "message"
        and (row["problem"] or "expected bornTimestamp").startswith("expected bornTimestamp")
        and (len(row["topic"].encode()) <= 127 or row["messageMagic"] == layout.MESSAGE_MAGIC_V2)
    ]


def three_files(root: Path, per_file: int = 5) -> Store:
    """A DLedger log of three files with all messages in one queue."""
    payloads = [
        mq_message("Orders", b"x" * 600, queue_offset=number, store_timestamp=1700000000000 + number)
        for number in range(3 * per_file)
    ]
    return write_dledger(root, payloads, file_size=FILE_SIZE)


def change(file: Path, at: int) -> None:
    flip(file, at)


@pytest.mark.parametrize("preserve", [False, True])
def test_a_damaged_message_is_left_out_and_its_queue_offset_becomes_a_filler(tmp_path: Path, preserve: bool) -> None:
    store = three_files(tmp_path / "store")
    damaged = store.rows[7]
    segment = store.segments[1]
    change(Path(segment.path), damaged["pos"] - segment.base + 300)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog", preserveOffsets=preserve)
    assert (report.rows, report.skipped) == (len(store.rows) - 1, 1)
    assert report.first_skipped[0].startswith(f"pos={damaged['pos']} index=7: expected message CRC ")
    found = exported_rows(tmp_path / "target")
    assert [row["queueOffset"] for row in found] == [number for number in range(15) if number != 7]
    [queue] = queues(tmp_path / "target")
    [units] = read_units(queue.files[0])
    assert len(units) == 15
    # The next message is in the second file, so a broker skips nothing else.
    assert is_filler(units).nonzero()[0].tolist() == [7]
    if preserve:
        assert [row["pos"] for row in found if row["pos"] % FILE_SIZE] == [
            row["commitLogOffset"] for row in store.rows if row is not damaged and row["pos"] % FILE_SIZE
        ]


@pytest.mark.parametrize(
    ("damaged", "units"), [((0, 2, 3), [0, 0, 1, 1, 1, 2]), ((0,), [0, 0, 1, 2]), ((4,), [0, 1, 2, 3])]
)
def test_a_gap_in_a_queue_within_the_first_file_becomes_copies_of_the_next_unit(
    tmp_path: Path, damaged: tuple[int, ...], units: list[int]
) -> None:
    store = three_files(tmp_path / "store")
    for number in damaged:
        change(Path(store.segments[0].path), store.rows[number]["pos"] + 300)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    [queue] = queues(tmp_path / "target")
    [found] = read_units(queue.files[0])
    positions = [row["pos"] for row in exported_rows(tmp_path / "target")]
    assert found["commitLogOffset"].tolist()[: len(units)] == [positions[number] for number in units]
    # The message after the last one of the first file is in the second file.
    assert is_filler(found).nonzero()[0].tolist() == [number for number in damaged if number == 4]
    copies = sum(number < 4 for number in damaged)
    notes = [note for note in report.notes if "of a neighbouring unit" in note]
    assert notes == [] if not copies else notes[0].startswith(counted(copies, "unit is a copy", "units are copies"))


def test_the_rest_of_a_truncated_file_is_exported(tmp_path: Path) -> None:
    store = three_files(tmp_path / "store")
    third = store.rows_of(store.segments[1])[2]
    os.truncate(store.segments[1].path, third["pos"] - FILE_SIZE + 100)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert report.rows == len(store.rows) - 3
    assert report.skipped > 0
    assert [row["queueOffset"] for row in exported_rows(tmp_path / "target")] == [*range(7), *range(10, 15)]


@pytest.mark.parametrize("preserve", [False, True])
def test_a_missing_file_becomes_one_without_messages(tmp_path: Path, preserve: bool) -> None:
    store = three_files(tmp_path / "store")
    Path(store.segments[1].path).unlink()
    report = export(tmp_path / "store", tmp_path / "target", "commitlog", preserveOffsets=preserve)
    lost = len(store.rows_of(store.segments[1]))
    assert (report.rows, report.skipped) == (len(store.rows) - lost, 1)
    assert "expected the segment 00000000000000004096, found no file" in report.first_skipped[0]
    assert len(exported_rows(tmp_path / "target")) == report.rows
    empty = (tmp_path / "target" / "commitlog" / f"{FILE_SIZE:020d}").read_bytes()
    filler = FILE_SIZE.to_bytes(4, "big") + layout.MESSAGE_MAGIC_BLANK.to_bytes(4, "big", signed=True)
    assert empty == filler.ljust(FILE_SIZE, b"\0")


def test_failfast_raises_if_anything_would_be_left_out(tmp_path: Path) -> None:
    store = three_files(tmp_path / "store")
    change(Path(store.segments[1].path), 300)
    with pytest.raises(MalformedError, match="expected message CRC"):
        export(tmp_path / "store", tmp_path / "a", "commitlog", mode="FAILFAST")
    Path(store.segments[1].path).unlink()
    with pytest.raises(MalformedError, match="expected the segment 00000000000000004096"):
        export(tmp_path / "store", tmp_path / "b", "commitlog", mode="FAILFAST")


def test_entries_that_are_no_messages_are_listed_except_those_of_dledger(tmp_path: Path) -> None:
    payloads = [mq_message(queue_offset=0), raw(b"", "noop"), raw(b"something"), mq_message(queue_offset=1)]
    write_dledger(tmp_path / "store", payloads)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert (report.rows, report.skipped) == (2, 1)
    assert report.first_skipped == ("pos=201 index=2: expected a message, found entry",)


def test_a_message_whose_lengths_no_broker_can_read_is_left_out(tmp_path: Path) -> None:
    """Long topics as 5.0 wrote them; properties above 32,767 bytes, a negative length in Java."""
    long_topic = mq_message("t" * 200, magic=layout.MESSAGE_MAGIC_V1)
    long_properties = mq_message(properties=[("a", "b" * 32765)])
    fits = mq_message(properties=[("a", "b" * 32764)], queue_offset=1)
    write_dledger(tmp_path / "store", [long_topic, long_properties, fits], file_size=1 << 17)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert (report.rows, report.skipped) == (1, 2)
    assert [line.partition(": ")[2] for line in report.first_skipped] == [
        "the length of its topic is more than a broker can read",
        "the length of its properties is more than a broker can read",
    ]


def test_if_properties_have_no_space_for_padding_the_next_message_moves(tmp_path: Path) -> None:
    full = mq_message(properties=[("a", "b" * 32764)], queue_offset=1)
    payloads = [mq_message(queue_offset=0), full, mq_message(queue_offset=2), mq_message(queue_offset=3)]
    store = write_dledger(tmp_path / "store", payloads, file_size=1 << 17)
    report = export(tmp_path / "store", tmp_path / "target", "commitlog", preserveOffsets=True)
    found = exported_rows(tmp_path / "target")
    wanted = [row["commitLogOffset"] for row in store.rows]
    assert [new["pos"] - old for new, old in zip(found, wanted, strict=True)] == [-48, 0, -48, 0]
    assert any("preserved except for 2 messages" in note for note in report.notes)
    moved = [note for note in report.notes if "offsetMsgId" in note]
    assert moved == [
        f"pos={old['pos']}: offsetMsgId {old['offsetMsgId']} is now {new['offsetMsgId']}"
        for old, new in zip(store.rows, found, strict=True)
        if old["commitLogOffset"] != new["pos"]
    ]


def test_the_property_crc_of_a_moved_message_is_recomputed(tmp_path: Path) -> None:
    """Other tests show that a CRC is right; this one shows that it exists and comes last."""
    payloads = [mq_message(body=b"y" * 20, queue_offset=number, property_crc=True) for number in range(6)]
    store = write_commitlog(tmp_path / "store", payloads)
    change(Path(store.segments[0].path), store.rows[2]["pos"] + 90)
    for preserve in (False, True):
        target = tmp_path / str(preserve)
        report = export(tmp_path / "store", target, "commitlog", preserveOffsets=preserve)
        assert (report.rows, report.skipped) == (5, 1)
        values = [row["properties"][layout.PROPERTY_CRC] for row in exported_rows(target)]
        assert len(set(values)) == 5
        content = next((target / "commitlog").iterdir()).read_bytes()
        assert content.count(layout.PROPERTY_CRC.encode()) >= 5


def test_any_born_timestamp_is_exported(tmp_path: Path) -> None:
    write_dledger(tmp_path / "store", [mq_message(born_timestamp=2**62), mq_message(born_timestamp=-(2**63))])
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert (report.rows, report.skipped) == (2, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tags": "a"}, "option tags: an export to commitlog takes whole queues"),
        ({"verifyCrc": "false"}, "option verifyCrc: expected true"),
    ],
)
def test_options_that_a_broker_could_not_serve_are_rejected(tmp_path: Path, options: dict[str, str], text: str) -> None:
    three_files(tmp_path / "store")
    with pytest.raises(OptionError, match=text):
        export(tmp_path / "store", tmp_path / "target", "commitlog", **options)


def test_files_of_different_sizes_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    write_commitlog(tmp_path / "store", [mq_message()], file_size=2 * FILE_SIZE)
    write_dledger(tmp_path / "store", [mq_message()], file_size=FILE_SIZE, base=2 * FILE_SIZE)
    with pytest.raises(StoreError, match=r"expected 8192 bytes like .*, found 4096: a broker needs files of one size"):
        export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert not (tmp_path / "target").exists()


def test_a_log_without_messages_is_rejected(tmp_path: Path) -> None:
    write_dledger(tmp_path / "store", [raw(b"only this")])
    with pytest.raises(StoreError, match="no message can be exported"):
        export(tmp_path / "store", tmp_path / "target", "commitlog")


def test_some_queues_and_a_range_of_the_log_can_be_exported(tmp_path: Path) -> None:
    payloads = [mq_message(("A", "B")[number % 2], b"z" * 900, queue_offset=number // 2) for number in range(24)]
    store = write_dledger(tmp_path / "store", payloads, file_size=FILE_SIZE)
    options = {"topic": "B", "startingOffsets": "9", "endingOffsets": "20"}
    report = export(tmp_path / "store", tmp_path / "target", "commitlog", **options)
    found = exported_rows(tmp_path / "target")
    assert [row["queueOffset"] for row in found] == [4, 5, 6, 7, 8, 9]
    assert {row["topic"] for row in found} == {"B"}
    assert report.rows == 6
    begin = min(int(path.name) for path in (tmp_path / "target" / "commitlog").iterdir())
    assert begin == store.rows[9]["pos"] // FILE_SIZE * FILE_SIZE


def test_the_other_files_of_a_broker_are_exported(tmp_path: Path) -> None:
    store = three_files(tmp_path / "store")
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "topics.json").write_text('{"topicConfigTable": {}}')
    (tmp_path / "store" / "config" / "topics.json.bak").write_text("{}")
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    target = tmp_path / "target"
    assert json.loads((target / "config" / "topics.json").read_text()) == {"topicConfigTable": {}}
    assert [path.name for path in (target / "config").iterdir()] == ["topics.json"]
    last = store.rows[-1]["storeTimestamp"] // 1000
    assert read_store_checkpoint(target)[:3] == (last, last, last)
    assert not (target / "abort").exists()
    assert report.broker_conf == {
        "enableDLegerCommitLog": "false",
        "storePathRootDir": str(target),
        "storePathCommitLog": str(target / "commitlog"),
        "mappedFileSizeCommitLog": str(FILE_SIZE),
    }
    [queue] = queues(target)
    assert Path(queue.files[0].path).stat().st_mtime_ns == last * 1_000_000


def test_a_commit_log_alone_comes_with_the_abort_file(tmp_path: Path) -> None:
    three_files(tmp_path / "store")
    export(tmp_path / "store", tmp_path / "target", "commitlog", commitLogOnly=True)
    names = {path.name for path in (tmp_path / "target").iterdir()} - {"_export", "_export.json"}
    assert names == {"commitlog", "abort"}


def test_the_sizes_of_a_brokers_files_are_kept(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    source = case_folder("mq-53-upgrade")
    report = export(source, tmp_path / "target", "commitlog")
    config = Golden("mq-53-upgrade", "").meta["config"]
    for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"):
        assert report.broker_conf[name] == config[name]


def test_an_interrupted_export_continues_to_the_same_bytes(
    case_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = case_folder("mq-498-upgrade-killed")
    export(source, tmp_path / "whole", "commitlog")
    write, finish = CommitLogForm.write, CommitLogForm.finish

    def fails_at_five(self: CommitLogForm, part: Any, number: int, target: Path) -> Any:
        if number == 5:
            raise KeyboardInterrupt
        return write(self, part, number, target)

    def fails_at_end(self: CommitLogForm, *given: Any) -> Any:
        finish(self, *given)
        raise KeyboardInterrupt

    for name, broken in (("write", fails_at_five), ("finish", fails_at_end)):
        monkeypatch.setattr(CommitLogForm, name, broken)
        with pytest.raises(KeyboardInterrupt):
            export(source, tmp_path / "target", "commitlog")
        monkeypatch.undo()
        with pytest.raises(StoreError, match=r"found an unfinished export in .*: run the same dledger export again"):
            dl.open_log(str(tmp_path / "target"))
    report = export(source, tmp_path / "target", "commitlog")
    assert report.resumed == report.parts
    for name in ("commitlog", "consumequeue"):
        assert digests(tmp_path / "target" / name) == digests(tmp_path / "whole" / name)


def test_parts_can_be_written_by_other_processes_in_any_order(
    case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    def elsewhere(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        for part in reversed(parts):
            there = pickle.loads(pickle.dumps((work, part)))
            yield pickle.loads(pickle.dumps(there[0](there[1])))

    source = case_folder("mq-53-upgrade")
    for name, run in (("here", map_here), ("elsewhere", elsewhere)):
        export(source, tmp_path / name, "commitlog", run=run)
    for folder in ("commitlog", "consumequeue"):
        assert digests(tmp_path / "elsewhere" / folder) == digests(tmp_path / "here" / folder)


@pytest.mark.parametrize("at", [10, 100])
def test_bytes_that_change_on_disk_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    three_files(tmp_path / "store")
    write = DirectFile._write

    def write_wrong(file: DirectFile, data: memoryview, offset: int) -> None:
        data[:at] = b"\xff" * at
        write(file, data, offset)

    monkeypatch.setattr(DirectFile, "_write", write_wrong)
    with pytest.raises(
        StoreError,
        match=r"the file differs when read back: expected CRC-32 .* of bytes 0 to \d+, found .*: check the disk",
    ):
        export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert not list((tmp_path / "target").rglob("0*"))


def test_a_source_that_changes_during_the_export_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With preserved offsets the bytes are read a second time."""
    store = three_files(tmp_path / "store")
    log_bytes = commit_log_part._log_bytes

    def changed(*given: Any) -> Any:
        change(Path(store.segments[0].path), 300)
        return log_bytes(*given)

    monkeypatch.setattr(commit_log_part, "_log_bytes", changed)
    with pytest.raises(StoreError, match="expected intact messages, found at 0: expected message CRC"):
        export(tmp_path / "store", tmp_path / "target", "commitlog", preserveOffsets=True)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (48 + 91 + 2, "expected intact messages, found at 0: expected message CRC"),
        (48, "the message of 697 bytes at 48 changed during the export"),
    ],
    ids=["in its body", "in its size"],
)
def test_a_message_that_changes_after_it_was_checked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, at: int, text: str
) -> None:
    store = three_files(tmp_path / "store")
    message_batches = commit_log_part.message_batches

    def changed(*given: Any) -> Any:
        for run in message_batches(*given):
            change(Path(store.segments[0].path), at)
            yield run

    monkeypatch.setattr(commit_log_part, "message_batches", changed)
    with pytest.raises(StoreError, match=text):
        export(tmp_path / "store", tmp_path / "target", "commitlog", engine=engine)
    assert not list((tmp_path / "target").rglob("0*"))


def test_a_long_gap_is_filled_with_several_rolled_back_messages(tmp_path: Path) -> None:
    """A filler is not longer than a message of a broker may be."""
    size = 8 << 20
    root = tmp_path / "store"
    payloads = [mq_message(queue_offset=0), mq_message(body=bytes(3 << 20)), mq_message(queue_offset=2)]
    store = write_dledger(root, payloads, file_size=size)
    change(Path(store.segments[0].path), store.rows[1]["pos"] + 1000)
    export(root, tmp_path / "target", "commitlog", preserveOffsets=True)
    log = dl.open_log(str(tmp_path / "target" / "commitlog"))
    rows = [row for batch in log.scan(["topic", "transaction", "size", "pos"]) for row in batch.to_pylist()]
    fillers = [row for row in rows if row["topic"] == FILLER]
    assert len(fillers) == 4
    assert {row["transaction"] for row in fillers} == {"rollback"}
    assert rows[-1]["pos"] == store.rows[-1]["commitLogOffset"]
    assert [queue.topic for queue in queues(tmp_path / "target")] == ["TopicTest"]


def test_the_smallest_filler_has_an_empty_body() -> None:
    assert len(encode_message(FILLER_TOPIC, b"", 0, property_crc=True)) == MIN_FILLER_SIZE


def test_a_link_is_no_config(tmp_path: Path) -> None:
    """It could lead to any file of the machine."""
    three_files(tmp_path / "store")
    (tmp_path / "secret.json").write_text('{"password": "x"}')
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "topics.json").symlink_to(tmp_path / "secret.json")
    (tmp_path / "store" / "config" / "delayOffset.json").write_text("{}")
    report = export(tmp_path / "store", tmp_path / "target", "commitlog")
    assert [path.name for path in (tmp_path / "target" / "config").iterdir()] == ["delayOffset.json"]
    assert any(note.startswith("config/topics.json: damaged or a link in all sources") for note in report.notes)
