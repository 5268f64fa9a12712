"""The first line of diff, lost and the report of one group: they agree, in any order of the replicas."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.cli.output.stream import ProgressBar
from pyspark_dledger.cli.report.facts import gather
from pyspark_dledger.log import Log, open_log
from tests.consistency.damages import damage
from tests.consistency.worlds import world
from tests.support.damaged_groups import write_group
from tests.support.long_runs import mostly_slow
from tests.support.sparse_copy import copy_tree

Printed = Callable[..., tuple[int, str]]
_QUESTION = "lost for good: "
_START = re.compile(r"(\S+)(?: \(.*\))? (may start|must not start as it is|may be damaged|cannot tell)")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """The exit code and the output of a verb."""

    def run(verb: str, *words: object) -> tuple[int, str]:
        code = main([verb, *map(str, words)])
        return code, capsys.readouterr().out

    return run


def answer_of(line: str) -> str:
    """``nothing``, ``unknown`` or ``some``: the answer of a first line about what is lost for good."""
    text = line.lower().removeprefix(_QUESTION)
    if text.startswith("nothing"):
        return "nothing"
    return "unknown" if text.startswith("cannot tell") else "some"


def report_answers(paths: list[Path]) -> dict[str, str]:
    """The answers of the report about the group, by question."""
    group = open_log(paths[0], replicas=[str(path) for path in paths[1:]])
    alone = Log(group.path, replace(group.options, replicas=None))
    facts = gather(alone, group, ProgressBar())
    return {verdict.question: verdict.answer for verdict in facts.group_verdicts}


def check(paths: list[Path], printed: Printed) -> None:
    """Check what all verbs say of a group in their first lines, and of which members may start."""
    orders = list(permutations(paths))
    outputs = [printed("diff", *order) for order in orders]
    verdicts = {(code, *sorted(line for line in out.splitlines() if _is_verdict(line))) for code, out in outputs}
    assert len(verdicts) == 1
    _, out = outputs[0]
    answer = answer_of(out.splitlines()[0])
    assert out.startswith(_QUESTION)
    losses = {(found, out.splitlines()[0]) for found, out in (printed("lost", *order) for order in orders[::2])}
    assert [answer_of(line) for _, line in losses] == [answer]
    report = report_answers(paths)
    assert answer_of(report["Is anything lost for good?"]) == answer
    for line in out.splitlines():
        if found := _START.match(line):
            said = report[f"May {found[1]} start?"].lower()
            # The report also knows files that diff does not read, and that stop a start.
            assert said.startswith(found[2]) or "would not start: " in said


def _is_verdict(line: str) -> bool:
    return line.startswith(_QUESTION) or _START.match(line) is not None


@pytest.mark.parametrize("seed", mostly_slow(range(30), 3, suite=10))
def test_first_lines_agree_about_a_damaged_group(tmp_path: Path, printed: Printed, seed: int) -> None:
    made = world(tmp_path, seed)
    damage(made)
    check([each.path for each in made.replicas], printed)


@pytest.mark.parametrize(
    ("case", "nodes", "folder"),
    [
        ("raw-three-diverged", ("dledger-n1", "dledger-n2"), "data"),
        ("mq-53-controller", ("b2", "b3"), "commitlog"),
    ],
)
def test_an_only_file_that_is_shorter_than_those_of_the_others_is_not_loaded(
    case_folder: Callable[[str], Path], tmp_path: Path, printed: Printed, case: str, nodes: tuple[str, str], folder: str
) -> None:
    copies = [copy_tree(case_folder(case) / node, tmp_path / node) for node in nodes]
    files = [sorted((copy / folder).iterdir()) for copy in copies]
    for others in files:
        for file in others[1:]:
            file.unlink()
    os.truncate(files[0][0], 100_001)
    code, out = printed("diff", *copies)
    assert code == 1
    assert f"load {folder}/{files[0][0].name}: shorter than the other files" in out


def test_a_short_file_is_not_loaded(tmp_path: Path, printed: Printed) -> None:
    """Nothing is lost with the zeros at its end, and Java ends."""
    members = write_group(tmp_path, random.Random(1), as_messages=True)
    last = max((members[1].path / "dledger-n1" / "data").iterdir())
    last.write_bytes(last.read_bytes().rstrip(b"\0") + bytes(2))
    code, out = printed("diff", *(member.path for member in members))
    assert code == 1
    assert out.startswith("lost for good: nothing\n")
    assert f"n1 must not start as it is: Java does not load data/{last.name}: shorter than the other files\n" in out
    assert printed("diff", *(member.path for member in members), "--json")[0] == 1


@pytest.mark.parametrize("has_index", [True, False])
def test_a_group_without_any_entry_left_has_lost_them(tmp_path: Path, printed: Printed, has_index: bool) -> None:
    members = write_group(tmp_path, random.Random(1), as_messages=False)
    last = max(members[0].entries)
    for member in members:
        node = member.path / f"dledger-{member.node}"
        (node / "checkpoint").unlink(missing_ok=True)
        for file in [*(node / "data").iterdir(), *(() if has_index else (node / "index").iterdir())]:
            size = file.stat().st_size
            file.write_bytes(b"\x01" * 500 + bytes(size - 500))
    code, out = printed("diff", *(member.path for member in members))
    shown = f"entries 0 to {last}: " if has_index else "cannot tell: no entry is left on any member"
    assert code == 1
    assert out.startswith(f"lost for good: {shown}")


def test_a_damaged_end_of_a_data_file_has_no_entry_and_is_said(tmp_path: Path, printed: Printed) -> None:
    members = write_group(tmp_path, random.Random(1), as_messages=True)
    own = members[1].entries.values()
    first = min(path for path, _, _ in own)
    blank = max(offset + len(data) for path, offset, data in own if path == first)
    with first.open("r+b") as file:
        file.seek(blank)
        file.write(bytes(first.stat().st_size - blank))
    code, out = printed("diff", *(member.path for member in members))
    assert code == 1
    assert out.startswith("lost for good: nothing\n")
    assert (
        f"n1 must not start as it is: the end of a data file is damaged at position {blank}, where no entry was" in out
    )


def test_one_damaged_term_does_not_hide_the_term_before(tmp_path: Path, printed: Printed) -> None:
    """Of a member without an index: only the damaged entry is blamed, not the shorter term around it."""
    members = write_group(tmp_path, random.Random(71), as_messages=True)
    terms = [int.from_bytes(data[16:24], "big") for *_, data in members[0].entries.values()]
    first = terms.index(2)
    file, offset, _ = members[0].entries[first + 3]
    members[0].write(file, offset + 16, (1).to_bytes(8, "big"))
    for path in (members[0].path / "dledger-n0" / "index").iterdir():
        path.unlink()
    (members[0].path / "dledger-n0" / "index").rmdir()
    out = printed("diff", *(member.path for member in members))[1]
    assert f"n0 must not start as it is: 1 entry damaged, {first + 3}, intact on n1 and n2; " in out
