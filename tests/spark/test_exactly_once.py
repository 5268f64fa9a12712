"""Streams write and tail a group, while the leader and the Spark driver are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.exactly_once import matrix
from tests.exactly_once.rounds import differences, run, wrong_offsets
from tests.support.faulty_sink import KILLED, REFUSED, ROWS, STATE, WRITTEN


@pytest.mark.spark
@pytest.mark.slow
def test_each_message_is_written_and_tailed_exactly_once(tmp_path: Path) -> None:
    """`make exactly-once` runs more rounds."""
    report = run(tmp_path, rounds=1, seed=7)
    assert report.wrong == []
    assert set(report.faults) == {"kill_leader", "kill_driver"}
    assert report.drivers >= 2, report
    assert report.terms >= 1, report


def test_differences_are_missing_and_duplicate_messages() -> None:
    rows = [{"body": body} for body in (b"a", b"b", b"b", b"c")]
    assert list(differences(rows, Counter([b"a", b"b", b"d", b"d"]))) == [
        "'b' expected 1 times, found 2 times",
        "'c' expected 0 times, found 1 times",
        "'d' expected 2 times, found 0 times",
    ]
    assert list(differences(rows, Counter([b"a", b"b", b"b", b"c"]))) == []
    assert list(differences(rows, Counter([b"a", b"b", b"c", b"d"]), is_whole=False)) == [
        "'b' expected 1 times, found 2 times"
    ]


def test_wrong_offsets_are_skipped_and_duplicate_ones() -> None:
    places = [(0, 0), (1, 0), (0, 1), (0, 1), (1, 2)]
    rows = [{"index": index, "queueId": queue, "queueOffset": at} for index, (queue, at) in enumerate(places)]
    assert list(wrong_offsets(rows[:3])) == []
    assert list(wrong_offsets(rows)) == [
        "index 3: expected offset 2 of queue 0, found 1",
        "index 4: expected offset 1 of queue 1, found 2",
    ]


@pytest.mark.parametrize(
    ("kind", "ends", "first", "last", "outcome"),
    [
        ("distinct", [WRITTEN], 0, ROWS, "once"),
        ("distinct", [WRITTEN], 1, ROWS, "1 messages are missing"),
        ("distinct", [WRITTEN], -1, ROWS, "1 messages too many"),
        ("distinct", [REFUSED, WRITTEN], 0, ROWS, "refused"),
        ("equal", [REFUSED, WRITTEN], 0, 0, "3000 messages are missing"),
    ],
)
def test_a_cell_is_once_if_each_message_is_there_and_none_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ends: list[str], first: int, last: int, outcome: str
) -> None:
    outcomes = iter([KILLED, *ends])

    def run_query(folder: Path, _: object) -> str:
        if (end := next(outcomes)) == KILLED:
            (folder / "faults" / "end-all").unlink()
            for name in STATE:
                (folder / "killed" / name).mkdir(parents=True)
        return end

    monkeypatch.setattr(matrix.Matrix, "_driver", lambda *_: SimpleNamespace(run=run_query))
    found = Counter(str(number) for number in range(first, last))
    monkeypatch.setattr(matrix, "bodies", lambda root: found if "then" in str(root) else Counter())
    cell = matrix.Cell(matrix.Beginning("fixed", "4 cores", "end-all", kind), "1 core")
    assert matrix.Matrix(tmp_path).run(cell) == outcome
