"""What a member knows of expired messages: its summary on disk, and the one that it copies from another member."""

from __future__ import annotations

import json
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.common.summary_part import MAX_SUMMARY_PART, SummaryPart
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.raft.core import summary_copy
from pyspark_dledger.rocketmq.service import summary as summary_module
from pyspark_dledger.rocketmq.service import summary_keeper
from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings
from pyspark_dledger.rocketmq.service.sorted_run import CoveredRange, concatenated, write_run
from pyspark_dledger.rocketmq.service.summary import (
    IncomingStream,
    Snapshot,
    Summary,
    parse_summary,
    read_summary,
    write_summary,
)
from pyspark_dledger.store import MmapFileStore
from tests.support.damage import flip
from tests.support.generate import mq_message, write_commitlog
from tests.support.groups import eventually
from tests.support.message_member import FILES, Member, member, quiet
from tests.support.message_nodes import SMALL_QUEUES, MessageNodes, puts, rows
from tests.support.sparse_copy import copy_tree

SUMMARY = Summary(
    7, 3, {("Orders", 0): 40, ("Orders", 3): 1, ("%RETRY%\u00e9", 1): 2**40}, (CoveredRange(0, 7, -1, 1000, 1000),)
)


@pytest.fixture(scope="module")
def expired_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped member whose 40 first messages have expired: they were those of topic Quiet."""
    root = tmp_path_factory.mktemp("expired")
    with member(root) as one:
        one.lead()
        assert one.put(quiet())[-1][2] == 39
        one.fill()
        one.expire()
        assert one.store.ledger_begin_index >= 40
    return root


@pytest.fixture
def expired(expired_root: Path, tmp_path: Path) -> Path:
    return copy_tree(expired_root, tmp_path / "member")


# The file


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_summary(tmp_path) is None
    for summary in (Summary(-1, -1, {}), SUMMARY):
        write_summary(tmp_path, summary)
        assert read_summary(tmp_path) == summary


def test_no_flipped_bit_and_no_cut_is_accepted() -> None:
    data, random = SUMMARY.to_bytes(), Random(7)
    for _ in range(300):
        wrong = bytearray(data)
        wrong[random.randrange(len(data))] ^= 1 << random.randrange(8)
        with pytest.raises(ValueError, match="expected"):
            parse_summary(wrong)
        with pytest.raises(ValueError, match="expected"):
            parse_summary(data[: random.randrange(len(data))])


@pytest.mark.parametrize(
    "content",
    [
        *({"queues": queues, "identities": []} for queues in ([], {"T": 1}, {"T": {"x": 1}}, {"T": {"0": -1}})),
        *({"queues": {name: {"0": 1}}, "identities": []} for name in ("", "..", "a/b", "x" * 256)),
        *({"queues": {"T": {"0": end}}, "identities": []} for end in (True, 1.5, 2**62, None)),
        *({"queues": {}, "identities": runs} for runs in (7, [[1]], [[5, 4, 0]], [["a", 1, 2]], [[0, 2**63, 0]])),
        {"queues": {}},
        [],
    ],
    ids=str,
)
def test_wrong_contents_with_a_right_checksum_are_rejected(content: object) -> None:
    body = json.dumps(content).encode()
    header = struct.pack("<8sqqQI", b"DLSUMRY1", 7, 3, len(body), crc32(body))
    with pytest.raises(ValueError, match=r"expected|invalid literal"):
        parse_summary(header + struct.pack("<I", crc32(header)) + body)


# Retention


def test_queues_and_identities_survive_expiry_and_the_loss_of_the_queues(expired: Path) -> None:
    shutil.rmtree(expired / "consumequeue")
    with member(expired) as one:
        assert not one.needs_summary
        one.lead()
        assert [(put[0], put[2]) for put in one.put(quiet())] == [(index, -1) for index in range(40)]
        assert [put[2] for put in one.put(quiet(100, 2))] == [40, 41]


def test_nothing_expires_if_the_summary_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_folder: Path, _summary: Summary) -> None:
        raise OSError(28, "No space left on device")

    with member(tmp_path) as one:
        one.lead()
        one.fill()
        with monkeypatch.context() as patched:
            patched.setattr(summary_keeper, "write_summary", full)
            with pytest.raises(OSError, match="No space"):
                one.store.delete_expired(time.time() + 9, force=True)
        assert one.store.ledger_begin_index == 0
        one.expire()


def test_nothing_expires_after_the_service_has_stopped(tmp_path: Path) -> None:
    one = Member(tmp_path)
    one.lead()
    one.fill()
    one.service.stopped()
    assert one.store.delete_expired(time.time() + 9, force=True) == 0
    one.store.shutdown()
    one.service.close()


def test_queue_ends_are_kept_if_only_the_identities_are_lost(expired: Path) -> None:
    for folder in (expired / "consumequeue", expired / "dledger-n0" / "identities"):
        shutil.rmtree(folder)
    with member(expired, replace(SMALL_QUEUES, accept_lost_state=True)) as one:
        one.lead()
        assert [put[2] for put in one.put(quiet(100, 2))] == [40, 41]


def test_nothing_expires_that_is_not_dispatched(tmp_path: Path) -> None:
    with member(tmp_path) as one:
        one.lead()
        one.fill()
        keeper = one.service._summary
        end = one.store.ledger_end_index + 1
        assert keeper.before_expiry(end, False) == end
        assert keeper.before_expiry(end + 5, True) == end


# Missing state


def flipped(file: Path) -> None:
    flip(file, file.stat().st_size // 2, 4)


LOSSES: dict[str, Callable[[Path], object]] = {
    "no summary": lambda node: (node / "summary").unlink(),
    "damaged summary": lambda node: flipped(node / "summary"),
    "no identities": lambda node: [path.unlink() for path in (node / "identities").iterdir()],
    "damaged identities": lambda node: flipped(min((node / "identities").iterdir())),
    "a copy of the log only": lambda node: (
        (node / "summary").unlink(),
        shutil.rmtree(node / "identities"),
        shutil.rmtree(node.parent / "consumequeue"),
    ),
    "other identities of ours": lambda node: ((node / "summary").unlink(), shutil.rmtree(node / "identities")),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_store_without_its_state_needs_that_of_another_member(expired: Path, loss: str) -> None:
    LOSSES[loss](expired / "dledger-n0")
    for _ in range(2):
        with member(expired) as one:
            assert one.needs_summary
            assert rejection(one.service) == ResponseCode.INDEX_OUT_OF_RANGE
            # Another member's state can end before later entries, so all stay until the disk needs room.
            assert one.service._summary.before_expiry(9, False) == -1
            assert one.service._summary.before_expiry(9, True) == 9


def test_the_loss_is_accepted_explicitly_and_once(expired: Path) -> None:
    (expired / "dledger-n0" / "summary").unlink()
    with member(expired, MessageSettings(dispatch=SMALL_QUEUES.dispatch, accept_lost_state=True)) as one:
        assert not one.needs_summary
    with member(expired) as one:
        assert not one.needs_summary
        one.lead()
        # The queues are still there.
        assert [put[2] for put in one.put(quiet(100, 2))] == [40, 41]


def test_a_brokers_store_with_an_expired_front_has_its_state(tmp_path: Path) -> None:
    """A broker deletes no queue's last file, and its messages have no identities."""
    with member(tmp_path) as one:
        one.lead()
        one.put(puts(rows(40, topic="Quiet"), queues=1, job=None))
        one.put(puts(rows(60, size=1000), job=None))
        one.expire()
    shutil.rmtree(tmp_path / "dledger-n0" / "identities")
    (tmp_path / "dledger-n0" / "summary").unlink()
    for first in (100, 200):
        with member(tmp_path) as one:
            assert not one.needs_summary
            one.lead()
            assert one.put(quiet(first, 1))[0][2] == (40 if first == 100 else 41)


# From member to member


def follow(one: Member, source: MmapFileStore, first: int) -> None:
    """Append all entries of another member from an index on, as a follower."""
    at = source.get(first)
    if one.store.ledger_end_index < 0:
        one.store.reset(first, at.pos)
    while first <= source.ledger_end_index:
        part = source.read(first, 1 << 20)
        one.store.append_as_follower(bytes(part.data), 1)
        first = part.last_index + 1
    one.commit()


def rejection(service: MessageService, begin_index: int = 0, snapshot: int = 0) -> ResponseCode:
    with pytest.raises(RejectedError) as caught:
        service.summary(begin_index, snapshot, 0)
    return caught.value.code


def made_summary(service: MessageService, begin_index: int, snapshot: int, offset: int) -> SummaryPart:
    """A part of a summary, once that is made."""

    while True:
        try:
            return service.summary(begin_index, snapshot, offset)
        except RejectedError as rejected:
            if rejected.code != ResponseCode.LEADER_NOT_READY:
                raise
            time.sleep(0.01)


def copy_summary(source: Member, one: Member, limit: int = 10_000) -> None:
    number = offset = 0
    for _ in range(limit):
        part = made_summary(source.service, one.store.ledger_begin_index, number, offset)
        assert one.service.take_summary(part)
        number, offset = part.snapshot, part.end
        if offset == part.size:
            break
    # A node asks in each tick, which also ends the copy.
    eventually(lambda: not one.needs_summary and not list(one.folder.glob("*incoming*")))


@pytest.mark.parametrize("part_size", [100, MAX_SUMMARY_PART])
def test_a_replaced_member_gets_the_state_and_keeps_it(
    expired: Path, tmp_path: Path, part_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Snapshot.read
    monkeypatch.setattr(Snapshot, "read", lambda self, offset: read(self, offset, part_size))
    with member(expired) as source, member(tmp_path / "new") as one:
        source.lead()
        source.put(puts(rows(10, topic="Recent"), queues=1, job="recent"))
        assert not one.needs_summary
        begin = source.store.ledger_begin_index
        follow(one, source.store, begin)
        assert one.needs_summary
        copy_summary(source, one)
        source.put(quiet(100, 2))
        follow(one, source.store, one.store.ledger_end_index + 1)
        expected = source.put(quiet()), source.put(quiet(100, 2))
    for _ in range(2):
        with member(tmp_path / "new") as one:
            assert not one.needs_summary
            one.lead()
            assert (one.put(quiet()), one.put(quiet(100, 2))) == expected
            found = one.put(puts(rows(10, topic="Recent"), queues=1, job="recent"))
            assert [put[2] for put in found] == list(range(10))
    assert "Quiet" in (tmp_path / "new" / "config" / "topics.json").read_text()


def test_a_summary_that_ends_before_the_log_begins_is_not_taken(expired: Path, tmp_path: Path) -> None:
    with member(expired) as source, member(tmp_path / "new") as one:
        part = made_summary(source.service, 0, 0, 0)
        source.lead()
        end = source.store.ledger_end_index
        source.fill("more")
        follow(one, source.store, end + 30)
        assert one.service.take_summary(part)
        assert part.end == part.size
        eventually(lambda: one.service._summary._installing is None or not one.needs_summary)
        assert one.needs_summary
        eventually(lambda: not list(one.folder.glob("*incoming*")))
        assert rejection(source.service, source.store.ledger_end_index + 2) == ResponseCode.INDEX_OUT_OF_RANGE
        copy_summary(source, one)
        assert rejection(source.service, 0, part.snapshot + 1) == ResponseCode.REPEATED_REQUEST


def test_an_old_commitlog_of_other_members_counts_as_expired(tmp_path: Path) -> None:
    """Entry 0 is then not at position 0: queues of earlier messages are on the other members only."""
    with member(tmp_path / "source") as source, member(tmp_path / "new") as one:
        source.lead()
        source.fill()
        one.store.reset(0, FILES["data_file_size"])
        one.store.append_as_leader([b"x" * 100], 1)
        one.commit()
        assert one.needs_summary


# Streams


def stream_of(*runs: bytes) -> bytes:
    found = Snapshot(9, SUMMARY.to_bytes(), runs, {"topics.json": b"{}", "other.json": b"{}"})
    return b"".join(found.read(offset, 7) for offset in range(0, found.size, 7))


def receive(folder: Path, stream: bytes, step: int = 50) -> IncomingStream:
    incoming = IncomingStream(folder)
    for offset in range(0, len(stream), step):
        assert incoming.add(SummaryPart(9, offset, len(stream), stream[offset : offset + step]))
    assert incoming.is_complete
    return incoming


def test_a_stream_is_unpacked(tmp_path: Path) -> None:
    incoming = receive(tmp_path, stream_of())
    received = incoming.unpack(tmp_path)
    assert (received.summary, received.runs, received.config) == (SUMMARY, [], {"topics.json": b"{}"})
    incoming.close()
    assert not list(tmp_path.iterdir())


def test_damaged_streams_are_rejected(tmp_path: Path) -> None:
    stream, random = stream_of(), Random(3)
    for number in range(100):
        wrong = bytearray(stream)
        at = random.randrange(len(stream))
        wrong[at] ^= 1 << random.randrange(8)
        incoming = receive(tmp_path, bytes(wrong) if number % 2 else stream[: at + 1], 4096)
        try:
            found = incoming.unpack(tmp_path)
        except (ValueError, StopIteration):
            continue
        finally:
            incoming.close()
        # Names of config files, and the end of a record, are not in a checksum.
        assert found.summary == SUMMARY


def test_parts_must_follow_and_have_room(tmp_path: Path) -> None:
    incoming = IncomingStream(tmp_path)
    assert not incoming.add(SummaryPart(1, 5, 10, b"12345"))
    assert not incoming.add(SummaryPart(1, 0, 1 << 60, b"12345"))
    assert incoming.add(SummaryPart(1, 0, 10, b"12345"))
    assert not incoming.add(SummaryPart(1, 4, 10, b"12345"))
    assert not incoming.add(SummaryPart(1, 5, 11, b"12345"))
    assert not incoming.add(SummaryPart(1, 5, 10, b"123456"))
    assert not incoming.is_complete
    assert incoming.add(SummaryPart(1, 0, 3, b"123"))
    assert incoming.is_complete
    incoming.close()


def test_a_run_that_is_damaged_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        receive(tmp_path, stream_of(b"DLIDRUN1" + bytes(200))).unpack(tmp_path)
    assert summary_module._RUN_RECORD == 2


def test_a_stream_of_too_many_runs_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a file that is synced, and mapped as long as the node runs."""
    monkeypatch.setattr(summary_module, "_MAX_RUNS", 2)
    run = write_run(tmp_path, CoveredRange(0, 5, 1, 0, 0), concatenated([]), is_durable=False)
    with pytest.raises(ValueError, match="at most 2 runs"):
        receive(tmp_path, stream_of(*[bytes(run.data)] * 3)).unpack(tmp_path)


def test_too_many_queues_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "MAX_SUMMARY_SIZE", 1000)
    with pytest.raises(StoreError, match="bytes at most"):
        Summary(1, 1, {("Topic", number): 1 for number in range(200)}).to_bytes()


# A group


def test_a_group_without_the_state_leads_only_by_a_decision(
    expired: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expired / "dledger-n0" / "summary").unlink()
    expired.rename(tmp_path / "n0")
    monkeypatch.setattr(summary_copy, "_REPORT_AFTER_MS", 0)
    group = MessageNodes(tmp_path, 1, store_options=FILES)
    try:
        group.start()
        eventually(lambda: "--accept-lost-state" in group.nodes["n0"].core.status().problem)
        assert group.status("n0")["role"] == "CANDIDATE"
        group.stop()
        group.settings = replace(SMALL_QUEUES, accept_lost_state=True)
        group.start()
        assert group.ready_leader() == "n0"
    finally:
        group.close()


def test_queue_ends_survive_the_expiry_of_an_old_commitlog(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [mq_message("Orders", b"old", queue_id=0, queue_offset=n) for n in range(40)])
    with member(tmp_path) as one:
        one.lead()
        one.put(quiet(0, 1))
        dispatcher = one.service._dispatcher
        assert dispatcher is not None
        dispatcher.stop()
        cleaner = dispatcher._cleaner
        cleaner.now, cleaner.used = lambda: time.time() + 10**9, lambda _: 0.8
        assert cleaner.run_once().old_files > 0
    shutil.rmtree(tmp_path / "consumequeue")
    with member(tmp_path) as one:
        assert not one.needs_summary
        one.lead()
        assert [put[2] for put in one.put(puts(rows(2, 90), queues=1, job="new"))] == [40, 41]
