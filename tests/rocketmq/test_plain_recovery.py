"""The model of a broker's start without DLedger, compared with what RocketMQ 5.3.3 says of the goldens.

`tests/interop/test_java_plain_recovery.py` compares it with RocketMQ itself over random damage.
"""

from __future__ import annotations

import gzip
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.state_files import CHECKPOINT_SIZE, StoreCheckpoint
from pyspark_dledger.rocketmq.recovery.plain_recovery import LINES, families, preview_plain
from tests.support import golden
from tests.support.damage import flip, write_at
from tests.support.generate import mq_message, write_commitlog, write_consume_queue

Unpack = Callable[[str], Path]
FILE_SIZE = 4096


def head(case: str) -> dict[str, Any]:
    with gzip.open(golden.GOLDENS / f"{case}{golden.SUFFIX}", "rt", encoding="utf-8") as lines:
        return dict(json.loads(next(lines)))


def write(root: Path, count: int = 30, dispatched: int | None = None) -> Any:
    """A store with files of `FILE_SIZE`, and a ConsumeQueue that has the first `dispatched` messages."""
    payloads = [
        mq_message("Orders", b"x" * 400, queue_offset=n, store_timestamp=1700000000000 + n) for n in range(count)
    ]
    store = write_commitlog(root, payloads, file_size=FILE_SIZE)
    write_consume_queue(root, store.rows[:dispatched])
    return store


@pytest.mark.parametrize("case", ["mq-plain", "mq-plain-crc"])
def test_undamaged_golden(case: str, case_folder: Unpack) -> None:
    root, said = case_folder(case), head(case)
    before = golden.fingerprint(root)
    found = preview_plain(open_log(root), said["rocketmq"])
    assert golden.fingerprint(root) == before
    assert (found.outcome, found.recovery, found.reason, found.lost) == ("loads", "normal", "", [])
    assert found.max_phy_offset == said["maxPhyOffset"]
    assert found.files_deleted == []
    assert found.queues == [], "no queue becomes longer or shorter"
    ends = {f"{each['topic']}/{each['queueId']}": each["max"] for each in said["queues"] if each["max"]}
    assert found.consume_queue_max_offsets == ends


@pytest.mark.parametrize("version", LINES)
def test_a_damaged_last_file_is_cut(version: str, tmp_path: Path) -> None:
    store = write(tmp_path)
    last = store.segments[-1]
    flip(last.path, 100)
    found = preview_plain(open_log(tmp_path), version)
    assert (found.max_phy_offset, found.scan_from is not None) == (last.base, True)
    assert found.reason.startswith(f"the scan stops in commitlog/{last.name} at byte 0: message CRC")
    # The messages after the damaged one.
    assert found.lost == [(last.base, store.end - 1)]
    assert found.consume_queue_cut_at == last.base
    (queue,) = found.queues
    assert queue["maxOffsetAfter"] == sum(row["pos"] < last.base for row in store.rows)


def test_which_files_are_checked_depends_on_the_version(tmp_path: Path) -> None:
    store = write(tmp_path)
    assert len(store.segments) == 4
    third_last = store.segments[-3]
    flip(third_last.path, 100)
    old, new = (preview_plain(open_log(tmp_path), version) for version in ("5.3.1", "5.3.3"))
    assert (old.scan_from, old.max_phy_offset) == (third_last.name, third_last.base)
    assert old.files_deleted == [segment.name for segment in store.segments[-2:]]
    assert (new.scan_from, new.max_phy_offset, new.lost) == (store.segments[-1].name, store.end, [])


def test_messages_that_are_not_in_the_queues(tmp_path: Path) -> None:
    """4.9 dispatches them at its start, 5.3.2 when it loads, but skips one; others never do after a clean end."""
    store = write(tmp_path, dispatched=25)
    first = store.rows[25]["pos"]
    old, between, new = (preview_plain(open_log(tmp_path), version) for version in ("4.9.8", "5.1.4", "5.3.3"))
    assert (old.dispatch_from, old.queues) == (first, [])
    assert (between.dispatch_from, between.queues) == (store.end, [])
    assert any(f"messages from {first} on stay out of the ConsumeQueues" in note for note in between.notes)
    assert [each["maxOffsetAfter"] for each in new.queues] == [29]
    assert any(f"the message at {first} is the first that no ConsumeQueue has" in note for note in new.notes)
    (tmp_path / "abort").touch()
    after_kill = preview_plain(open_log(tmp_path), "5.1.4")
    assert (after_kill.recovery, [each["maxOffsetAfter"] for each in after_kill.queues]) == ("abnormal", [30])


@pytest.mark.parametrize("is_controller", [False, True])
@pytest.mark.parametrize("damaged", [1, 3])
@pytest.mark.parametrize("version", LINES)
def test_damage_at_the_end_is_truncated(version: str, damaged: int, is_controller: bool, tmp_path: Path) -> None:
    """No intact message follows, so none is lost that is still in the log. A start drops the damaged ones for good."""
    store = write(tmp_path)
    first = store.rows[-damaged]["pos"]
    if is_controller:
        controller(tmp_path, store.rows[10]["pos"])
    assert not preview_plain(open_log(tmp_path), version).is_trouble
    with Path(store.segments[-1].path).open("r+b") as file:
        for row in store.rows[-damaged:]:
            file.seek(row["pos"] - store.segments[-1].base)
            file.write(b"\x55" * 8)
    found = preview_plain(open_log(tmp_path), version)
    assert (found.outcome, found.max_phy_offset, found.lost) == ("loads", first, [])
    assert (found.truncated, found.is_trouble) == ((first, store.end - 1), True)
    assert found.reason.startswith("the scan stops in commitlog/")


@pytest.mark.parametrize("version", LINES)
def test_messages_that_only_queues_know_are_truncated(version: str, tmp_path: Path) -> None:
    """The end of the log was lost, or the controller truncated it: the queues point to what is not there."""
    store = write(tmp_path)
    first = store.rows[-2]["pos"]
    write_at(store.segments[-1].path, first - store.segments[-1].base, bytes(store.end - first))
    found = preview_plain(open_log(tmp_path), version)
    assert (found.max_phy_offset, found.truncated, found.is_trouble) == (first, (first, store.end - 1), True)


def controller(root: Path, confirmed: int) -> None:
    """Make a broker of controller mode of a store."""
    lines = "1-0\n"
    (root / "epochFileCheckpoint").write_text(f"1\n{zlib.crc32(lines.encode()) & 0x7FFFFFFF}\n{lines}")
    (root / "checkpoint").write_bytes(
        StoreCheckpoint(confirm_phy_offset=confirmed).pack().ljust(CHECKPOINT_SIZE, b"\0")
    )


def test_controller_mode_dispatches_up_to_the_confirmed_offset(tmp_path: Path) -> None:
    store = write(tmp_path, dispatched=10)
    confirmed = store.rows[20]["pos"]
    controller(tmp_path, confirmed)
    (tmp_path / "abort").touch()
    old, new = (preview_plain(open_log(tmp_path), version) for version in ("5.1.0", "5.3.1"))
    assert (old.confirm_offset, old.dispatch_from, old.queues[0]["maxOffsetAfter"]) == (None, store.end, 30)
    assert (new.confirm_offset, new.dispatch_from, new.queues[0]["maxOffsetAfter"]) == (confirmed, confirmed, 20)
    assert (new.max_phy_offset, new.is_trouble) == (store.end, False)
    assert any(f"messages from {confirmed} to {store.end} are not confirmed" in note for note in new.notes)


def test_a_confirmed_offset_beyond_the_log_is_trouble(tmp_path: Path) -> None:
    store = write(tmp_path)
    controller(tmp_path, store.end + 1000)
    found = preview_plain(open_log(tmp_path), "5.3.3")
    assert (found.confirm_offset_before, found.confirm_offset, found.is_trouble) == (store.end + 1000, store.end, True)
    assert f"confirmed messages up to {store.end + 1000} are missing: the log ends at {store.end}" in found.notes


def test_a_confirmed_offset_inside_a_message_stops_the_broker(tmp_path: Path) -> None:
    """Found with the jars of 5.3.1 to 5.5.0: load() expects a message there."""
    store = write(tmp_path)
    confirmed = store.rows[25]["pos"] + 4
    controller(tmp_path, confirmed)
    assert preview_plain(open_log(tmp_path), "5.1.4").outcome == "loads"
    found = preview_plain(open_log(tmp_path), "5.3.3")
    assert (found.outcome, found.max_phy_offset) == ("fails", None)
    assert f"after the confirmed offset {confirmed}" in found.reason


def write_long_queue(root: Path, count: int = 25) -> Path:
    """A store whose queue has a file of 10 units; returns the file of the last units."""
    store = write(root, count)
    folder = root / "consumequeue" / "Orders" / "0"
    (file,) = folder.iterdir()
    units = file.read_bytes()
    file.unlink()
    assert len(store.rows) == count
    for start in range(0, 20 * count, 200):
        (folder / f"{start:020d}").write_bytes(units[start : start + 200].ljust(200, b"\0"))
    return folder / f"{20 * count // 200 * 200:020d}"


@pytest.mark.parametrize(("version", "loads"), [("4.9.8", True), ("5.0.0", False), ("5.3.1", False), ("5.5.0", True)])
def test_an_empty_last_file_of_a_queue_stops_some_versions(tmp_path: Path, version: str, loads: bool) -> None:
    last = write_long_queue(tmp_path)
    assert preview_plain(open_log(tmp_path), version).outcome == "loads"
    last.write_bytes(bytes(200))
    found = preview_plain(open_log(tmp_path), version)
    assert (found.outcome == "loads") == loads
    if not loads:
        assert found.reason == "load() reads the last unit of consumequeue/Orders/0, whose last file has none left"


@pytest.mark.parametrize(("version", "kept"), [("5.3.3", 25), ("5.4.0", 25)])
def test_queues_that_end_before_the_log_are_not_truncated(tmp_path: Path, version: str, kept: int) -> None:
    """In controller mode, messages that are not confirmed stay out of the queues: a wrong unit before them stays."""
    last = write_long_queue(tmp_path)
    rows = write(tmp_path / "more", 30).rows
    for path in (tmp_path / "more" / "commitlog").iterdir():
        shutil.copy(path, tmp_path / "commitlog" / path.name)
    shutil.rmtree(tmp_path / "more")
    checkpoint = StoreCheckpoint(1700000000000, 1700000000000, 1700000000000, 0, rows[25]["pos"])
    (tmp_path / "checkpoint").write_bytes(checkpoint.pack().ljust(CHECKPOINT_SIZE, b"\0"))
    text = "1-0\n"
    (tmp_path / "epochFileCheckpoint").write_text(f"1\n{zlib.crc32(text.encode()) & 0x7FFFFFFF}\n{text}")
    write_at(last, 2 * 20, (2**40).to_bytes(8, "big"))
    (tmp_path / "abort").touch()
    found = preview_plain(open_log(tmp_path), version)
    assert found.consume_queue_max_offsets["Orders/0"] == kept


def test_versions_with_the_same_result_are_one_family(tmp_path: Path) -> None:
    store = write(tmp_path)
    assert len(families(preview_plain(open_log(tmp_path), version) for version in LINES)) == 1
    flip(store.segments[-3].path, 100)
    found = families(preview_plain(open_log(tmp_path), version) for version in LINES)
    assert [[item.rocketmq for item in family] for family in found] == [
        ["4.9.8", "5.0.0", "5.1.4", "5.3.1"],
        ["5.3.3", "5.4.0", "5.5.0"],
    ]


def test_a_queue_without_files_takes_the_end_of_a_truncated_log(tmp_path: Path) -> None:
    """Found with the jars of 4.9.8, which dispatch from there on."""
    store = write(tmp_path)
    (tmp_path / "consumequeue" / "Empty" / "0").mkdir(parents=True)
    last = store.segments[-1]
    flip(last.path, 100)
    found = preview_plain(open_log(tmp_path), "4.9.8")
    assert (found.max_phy_offset, found.dispatch_from) == (last.base, last.base)
    assert list(found.consume_queue_max_offsets) == ["Orders/0"]


def test_what_load_rejects(tmp_path: Path) -> None:
    store = write(tmp_path)
    folder = tmp_path / "commitlog"

    def reason(version: str) -> str:
        found = preview_plain(open_log(tmp_path), version, FILE_SIZE)
        return found.reason if found.outcome == "fails" else found.outcome

    following = folder / f"{store.segments[-1].end:020}"
    following.touch()
    assert reason("5.1.2") == f"commitlog/{following.name} has 0 bytes, not {FILE_SIZE}"
    assert reason("5.1.3") == "loads", "the empty last file is deleted"
    assert preview_plain(open_log(tmp_path), "5.1.3", FILE_SIZE).files_deleted == [following.name]
    following.unlink()
    (folder / "backup").mkdir()
    assert reason("5.1.0") == "loads"
    assert "backup" in reason("5.0.0")
    (folder / "backup").rmdir()
    (folder / "notes").write_bytes(bytes(FILE_SIZE))
    assert reason("5.3.3") == "commitlog/notes: its name is no number"


def test_a_store_without_files_loses_its_queues(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.rmtree(tmp_path / "commitlog")
    (tmp_path / "commitlog").mkdir()
    found = preview_plain(open_log(tmp_path), "5.3.3")
    assert (found.outcome, found.max_phy_offset, found.consume_queue_units_after) == ("loads", 0, 0)


def test_what_is_no_plain_store_or_no_version(case_folder: Unpack) -> None:
    log = open_log(case_folder("mq-plain"))
    for version in ("4.8.0", "5.6.0", "x", "5.3"):
        with pytest.raises(OptionError, match="expected a RocketMQ version from 4"):
            preview_plain(log, version)
    with pytest.raises(StoreError, match="expected a storePathRootDir with a commitlog folder"):
        preview_plain(open_log(case_folder("mq-53-single")), "5.3.3")
    with pytest.raises(StoreError, match="expected a storePathRootDir with a commitlog folder"):
        preview_plain(open_log(case_folder("mq-plain") / "commitlog" / f"{0:020}"), "5.3.3")
