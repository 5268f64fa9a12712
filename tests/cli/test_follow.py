"""``dledger follow``: prints rows as they are committed, also when the log is truncated."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import build_parser
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.cli.stores.row_printer import RowPrinter
from pyspark_dledger.cli.verbs.follow import _Tail
from pyspark_dledger.log import open_log
from tests.support.command_line import Ran, process
from tests.support.generate import Store, mq_message, raw, rows_of, write_commitlog, write_consume_queue, write_dledger


def follower(path: Path, *arguments: str) -> tuple[_Tail, Callable[[], None]]:
    """A tail of a store, and the call that looks at it once."""
    args = build_parser().parse_args(["follow", str(path), "--json", *arguments])
    out = Output()
    tail = _Tail(args, RowPrinter(args, out, open_store(args)))

    def look() -> None:
        tail.print_new(open_store(args))
        out.flush()

    return tail, look


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[int]]:
    """The indexes that were printed since the last call."""
    return lambda: [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()]


def test_follow_prints_what_is_committed_as_the_log_grows(tmp_path: Path, printed: Callable[[], list[int]]) -> None:
    entries = [raw(b"x" * 300)] * 40
    path = write_dledger(tmp_path, entries[:3], committed=1).path
    _, look = follower(path, "--from", "earliest")
    for count, committed, new in ((3, 1, [0, 1]), (3, 1, []), (5, 3, [2, 3]), (40, 37, list(range(4, 38)))):
        write_dledger(tmp_path, entries[:count], committed=committed)
        look()
        assert printed() == new


def test_follow_begins_at_the_end(tmp_path: Path, printed: Callable[[], list[int]]) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 3).path
    _, look = follower(path)
    look()
    write_dledger(tmp_path, [raw(b"x")] * 5)
    look()
    assert printed() == [3, 4]


def test_follow_continues_after_a_new_leader_rewrote_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 8, terms=[1, 1, 1, 1, 2, 2, 2, 2], committed=3).path
    _, look = follower(path, "--from", "2", "--uncommitted")
    look()
    write_dledger(tmp_path, [raw(b"y")] * 6, terms=[1, 1, 1, 1, 1, 3], committed=3)
    look()
    look()
    done = capsys.readouterr()
    assert [(row["index"], row["term"]) for row in map(json.loads, done.out.splitlines())] == [
        *[(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2)],
        *[(4, 1), (5, 3)],
    ]
    assert done.err.count("truncated: the printed entries from index 4 on are no longer in it") == 1


def test_follow_continues_after_the_log_became_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it was printed yet, but what comes instead has to be."""
    path = write_dledger(tmp_path, [raw(b"x")] * 8).path
    _, look = follower(path, "--uncommitted")
    look()
    shutil.rmtree(tmp_path / "dledger-n0")
    write_dledger(tmp_path, [raw(b"x")] * 5)
    look()
    write_dledger(tmp_path, [raw(b"x")] * 7, terms=[1] * 5 + [2] * 2)
    look()
    done = capsys.readouterr()
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [5, 6]
    assert "the printed entries from index 5 on are no longer in it" in done.err


def test_follow_notices_entries_that_are_overwritten_in_the_same_term(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a one-node group, which never raises its term."""
    path = write_dledger(tmp_path, [raw(b"x")] * 8).path
    _, look = follower(path, "--from", "5")
    look()
    rewritten = [raw(b"x")] * 6 + [raw(b"longer")] * 5
    write_dledger(tmp_path, rewritten[:9])
    look()
    write_dledger(tmp_path, rewritten)
    look()
    done = capsys.readouterr()
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [5, 6, 7, 8, 9, 10]
    assert done.err.count("the entry of index 7, and perhaps earlier ones, was overwritten in the same term") == 1


def test_follow_notes_positions_that_are_deleted_before_they_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [raw(b"x" * 300)] * 40
    path = write_dledger(tmp_path, entries[:2]).path
    _, look = follower(path)
    look()
    store = write_dledger(tmp_path, entries)
    Path(store.segments[0].path).unlink()
    look()
    done = capsys.readouterr()
    assert "were deleted before they were printed" in done.err
    assert json.loads(done.out.splitlines()[0])["pos"] == store.segments[1].base


def test_follow_of_a_plain_commitlog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_commitlog(tmp_path, [mq_message("T", b"x")] * 3).path
    _, look = follower(path)
    look()
    write_commitlog(tmp_path, [mq_message("T", b"x")] * 5)
    look()
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(("flags", "reads"), [((), 2), (("--uncommitted",), 0)], ids=["committed", "uncommitted"])
def test_a_look_reads_queues_only_for_the_committed_bound(
    flags: tuple[str, ...], reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint it needs the end of each queue, in two reads: how much is written, and its last units."""
    messages = [mq_message("T", b"x", queue_id=number % 4) for number in range(8)]
    write_dledger(tmp_path, messages, checkpoint=False)
    write_consume_queue(tmp_path, rows_of(open_log(tmp_path).scan()))
    _, look = follower(tmp_path, "--from", "earliest", *flags)
    look()
    read: Counter[str] = Counter()
    real_open = os.open

    def counted_open(path: str | Path, flags: int) -> int:
        read[str(path)] += "consumequeue" in str(path)
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", counted_open)
    look()
    assert list((+read).values()) == ([reads] * 4 if reads else [])


def test_follow_waits_for_a_bound_that_is_not_known_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 3, checkpoint=False).path
    _, look = follower(path, "--from", "earliest")
    look()
    look()
    assert capsys.readouterr().err.count("waiting for it") == 1
    write_dledger(tmp_path, [raw(b"x")] * 3)
    look()
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_follow_of_a_store_without_a_bound_fails(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    folder = case_folder("raw-040-snapshot-keep") / "dledger-n0"
    done = run("follow", folder)
    assert done.code == 2
    assert "--uncommitted" in done.err


def test_follow_ends_when_its_reader_is_gone(store: Store) -> None:
    child = process("follow", store.path, "--from", "earliest", "--interval", "0.1")
    assert child.stdout is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=60) == 0
    assert child.stderr is not None
    assert child.stderr.read() == ""


def test_ctrl_c_ends_a_follower_with_whole_lines(store: Store) -> None:
    child = process("follow", store.path, "--from", "earliest", "--interval", "0.01", "--json")
    assert child.stdout is not None
    lines = [json.loads(child.stdout.readline()) for _ in range(7)]
    assert [row["index"] for row in lines] == list(range(7))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "")
