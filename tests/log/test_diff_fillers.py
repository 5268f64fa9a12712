"""A comparison knows the fillers of a salvage: they are neither intact nor damaged copies."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.log import open_log
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.support.damaged_groups import Member, write_group
from tests.support.sparse_copy import copy_tree

FORMS = pytest.mark.parametrize("as_messages", [True, False], ids=["messages", "raw"])
LOST = (7, 8, 12)


def group(folder: Path, as_messages: bool) -> list[Member]:
    return write_group(folder, random.Random(3), as_messages)


def lose(member: Member, indexes: tuple[int, ...]) -> None:
    for index in indexes:
        file, offset, data = member.entries[index]
        member.write(file, offset, bytes(len(data)))


def comparison(engine: str, *paths: Path) -> Comparison:
    return compare(open_log(str(paths[0]), replicas=[str(path) for path in paths[1:]], engine=engine))


@FORMS
def test_members_with_fillers_may_start(tmp_path: Path, engine: str, as_messages: bool) -> None:
    members = group(tmp_path, as_messages)
    for member in members:
        lose(member, LOST)
    salvage(SalvageRequest.of([member.path for member in members]), tmp_path / "result")
    found = comparison(engine, tmp_path / "result", members[1].path)
    rows = [row for row in found.rows if row.verdict == "filler"]
    assert [(row.first_index, row.last_index, row.nodes, row.damaged, row.intact) for row in rows] == [
        (7, 8, ("n0",), ("n1",), ()),
        (12, 12, ("n0",), ("n1",), ()),
    ]
    verdict = found.verdict
    assert (verdict.lost, verdict.filled_entries.ranges, verdict.lost_entries.entries) == (
        "some",
        ((7, 8), (12, 12)),
        0,
    )
    n0, n1 = verdict.members
    assert (n0.start, n0.fillers.entries, n0.left_out.entries) == ("yes", 3, 0)
    assert (n1.start, n1.damaged.entries, n1.donors) == ("no", 3, ("n0",))


@FORMS
def test_a_filler_that_all_members_have_is_no_reason_against_a_start(
    tmp_path: Path, engine: str, as_messages: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    members = group(tmp_path, as_messages)
    for member in members:
        lose(member, LOST)
    paths = [member.path for member in members]
    targets = [tmp_path / "a", tmp_path / "b"]
    for node, target in zip(("n0", "n1"), targets, strict=True):
        salvage(SalvageRequest.of(paths, node=node), target)
    found = comparison(engine, *targets)
    assert found.entries["filler"] == 3 and [member.start for member in found.verdict.members] == ["yes", "yes"]
    assert main(["diff", *map(str, targets)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("lost for good: 3 entries, 7 to 8, 12: replaced by fillers of a salvage\n")
    assert "may start and be elected" in text and "must not" not in text
    if as_messages:
        assert "  T queue 0 offset 4, T queue 1 offset 2, T queue 2 offset 2\n" in text


@FORMS
def test_a_filler_is_no_copy_of_what_another_replica_has(
    tmp_path: Path, engine: str, as_messages: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    members = group(tmp_path, as_messages)
    for member in members[:2]:
        lose(member, LOST)
    salvage(SalvageRequest.of([member.path for member in members[:2]]), tmp_path / "result")
    for order in ((tmp_path / "result", members[2].path), (members[2].path, tmp_path / "result")):
        found = comparison(engine, *order)
        by_node = {member.node: member for member in found.verdict.members}
        assert found.entries["filler"] == 3
        assert by_node["n0"].left_out.ranges == ((7, 8), (12, 12)) and by_node["n0"].start == "no"
        assert not by_node["n2"].damaged.entries and found.verdict.filled_entries.entries == 0
    assert main(["diff", str(tmp_path / "result"), str(members[2].path), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["firstIndex"] for row in rows if row["verdict"] == "filler"] == [7, 12]
    assert main(["diff", str(tmp_path / "result"), str(members[2].path)]) == 1
    text = capsys.readouterr().out
    assert "must not start as it is: the salvage that wrote it left out 7 to 8, 12" in text
    if as_messages:
        assert found.verdict.lost == "nothing"
        assert ", which n2 has intact: fillers took their place" in text


@FORMS
def test_a_salvage_prefers_what_another_source_has_to_a_filler(tmp_path: Path, engine: str, as_messages: bool) -> None:
    members = group(tmp_path, as_messages)
    for member in members[:2]:
        lose(member, LOST)
    salvage(SalvageRequest.of([member.path for member in members[:2]]), tmp_path / "result")
    again = salvage(SalvageRequest.of([tmp_path / "result"], engine=engine), tmp_path / "again")
    assert again.lost == 3
    report = salvage(SalvageRequest.of([tmp_path / "again", members[2].path], engine=engine), tmp_path / "whole")
    assert (report.lost, report.decided) == (0, 0)
    found = comparison(engine, tmp_path / "whole", members[2].path)
    assert found.entries.get("filler") is None and found.verdict.lost != "some"


@FORMS
def test_a_replicated_filler_is_one_without_a_list(tmp_path: Path, engine: str, as_messages: bool) -> None:
    """The list of a salvage stays in its target; a member that got the log from it knows the fillers by their topic."""
    members = group(tmp_path, as_messages)
    for member in members[:2]:
        lose(member, LOST)
    salvage(SalvageRequest.of([member.path for member in members[:2]]), tmp_path / "result")
    copy_tree(tmp_path / "result", tmp_path / "other")
    (tmp_path / "other" / "lost.jsonl").unlink()
    for order in (("result", "other"), ("other", "result")):
        found = comparison(engine, *(tmp_path / name for name in order))
        assert found.verdict.filled_entries.ranges == ((7, 8), (12, 12)), order
        assert all(member.fillers.entries == 3 for member in found.verdict.members), order
    if not as_messages:
        return  # without a topic, only the same bytes as those of a listed filler tell
    found = comparison(engine, tmp_path / "other", members[2].path)
    assert found.verdict.lost == "nothing" and found.verdict.members[0].start == "no"
    report = salvage(SalvageRequest.of([tmp_path / "other", members[2].path], engine=engine), tmp_path / "whole")
    assert (report.lost, report.decided) == (0, 0)
