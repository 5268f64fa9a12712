"""Verdicts on groups of damaged replicas: no intact copy is blamed, no damaged one is trusted, in any order."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.cli.stores.verdict_text import lost_text
from pyspark_dledger.log import open_log
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.diff.copy_ranges import Ranges
from pyspark_dledger.log.salvage.plan_rows import plan_rows
from pyspark_dledger.rocketmq.salvage import SalvageRequest
from pyspark_dledger.rocketmq.salvage import plan as salvage_plan
from tests.support.damaged_groups import Member, copied_member, damage, lose, write_group
from tests.support.generate import raw, write_dledger
from tests.support.golden import Golden
from tests.support.long_runs import mostly_slow

_OF_GROUP = ("committed", "onMajority", "stale")


def comparison(members: list[Member], engine: str) -> Comparison:
    first, *others = [str(member.path) for member in members]
    return compare(open_log(first, replicas=others, engine=engine))


def indexes(ranges: Ranges) -> set[int]:
    return {index for first, last in ranges.ranges for index in range(first, last + 1)}


def verdict_of(found: Comparison) -> Any:
    """The verdict, without anything that depends on the order of the arguments."""
    rows = {
        (row.first_index, row.last_index, row.verdict, *map(frozenset, (row.nodes, row.terms, row.damaged, row.intact)))
        for row in found.rows
    }
    members = {
        member.node: (member.start, member.elect, member.damaged, member.silent, member.unclear, set(member.donors))
        for member in found.verdict.members
    }
    verdict = found.verdict
    return rows, members, verdict.lost, verdict.lost_entries, verdict.unclear_entries, found.committed_index


def check(members: list[Member], found: Comparison) -> None:
    by_node = {member.node: member for member in members}
    for row in found.rows:
        if row.verdict in _OF_GROUP:
            continue
        for index in range(row.first_index, row.last_index + 1):
            for node in row.damaged:
                assert index in by_node[node].damaged, f"{node} is blamed for {index}"
            for node in row.intact:
                is_intact = index in by_node[node].entries and index not in by_node[node].damaged
                assert is_intact, f"{node} is no donor of {index}"
    for verdict in found.verdict.members:
        member = by_node[verdict.node]
        state = next(each for each in found.standings if each.node == verdict.node)
        in_log = {index for index in member.damaged if index <= state.end_index}
        assert in_log <= indexes(verdict.damaged) | indexes(verdict.unclear)
        assert indexes(verdict.damaged) <= member.damaged
        if in_log:
            assert verdict.start != "yes" and verdict.elect not in ("yes", "withLoss")


def assert_no_order_matters(members: list[Member], found: Comparison, engine: str, seed: int) -> None:
    """Compare with two other orders of the members; five seeds have all orders."""
    others = list(permutations(members))[1:]
    for number in (seed, seed + 2):
        order = others[number % len(others)]
        assert verdict_of(comparison(list(order), engine)) == verdict_of(found)


@pytest.mark.parametrize("as_messages", [True, False], ids=["messages", "raw"])
@pytest.mark.parametrize("seed", mostly_slow(range(20), 3, suite=5))
def test_an_intact_copy_is_never_blamed(tmp_path: Path, engine: str, seed: int, as_messages: bool) -> None:
    rng = random.Random(seed)
    members = write_group(tmp_path, rng, as_messages)
    damage(members, rng)
    found = comparison(members, engine)
    check(members, found)
    assert found.verdict.lost in ("nothing", "unknown")
    assert found.verdict.lost_entries.entries == 0
    assert_no_order_matters(members, found, engine, seed)


@pytest.mark.parametrize("seed", mostly_slow(range(20), 5, suite=8))
def test_entries_that_are_intact_nowhere_are_lost(tmp_path: Path, engine: str, seed: int) -> None:
    rng = random.Random(seed)
    members = write_group(tmp_path, rng, as_messages=True)
    lost = lose(members, rng)
    found = comparison(members, engine)
    check(members, found)
    assert (found.verdict.lost, indexes(found.verdict.lost_entries)) == ("some", lost)
    assert found.verdict.lost_entries.entries == len(lost)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_group_of_brokers(case_folder: Callable[[str], Path], tmp_path: Path, engine: str, seed: int) -> None:
    rng = random.Random(seed)
    folder = case_folder("mq-53-three")
    members = [copied_member(folder / node, tmp_path / node, node) for node in ("n0", "n1", "n2")]
    damage(members, rng, 12)
    found = comparison(members, engine)
    check(members, found)
    assert found.verdict.lost_entries.entries == 0
    assert_no_order_matters(members, found, engine, seed)


def test_diff_salvage_and_lost_agree_on_copies_that_differ(
    case_folder: Callable[[str], Path], tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = case_folder("mq-53-three")
    members = [copied_member(folder / node, tmp_path / node, node) for node in ("n0", "n1", "n2")]
    with_keys = [index for index, (*_, data) in members[2].entries.items() if b"UNIQ_KEY" in data and b"x-long" in data]
    known, unknown = with_keys[0], with_keys[1]
    for index, name in ((known, b"UNIQ_KEY"), (unknown, b"x-long")):
        file, offset, data = members[2].entries[index]
        members[2].write(file, offset + data.index(name), b"O")
    found = comparison(members, engine)
    verdicts = {member.node: member for member in found.verdict.members}
    assert indexes(verdicts["n2"].damaged) == {known}
    assert not verdicts["n0"].damaged.entries and not verdicts["n1"].damaged.entries
    assert indexes(found.verdict.unclear_entries) == {unknown}
    paths = [str(member.path) for member in members]
    plan = salvage_plan(SalvageRequest.of(paths, engine=engine))
    rows = [row for row in plan_rows(plan) if row.action == "undecided"]
    assert [(row.first_index, row.last_index) for row in rows] == [(unknown, unknown)]
    assert main(["lost", *paths]) == 1
    text = capsys.readouterr().out
    assert f"lost for good: cannot tell for 1 entry, {unknown}: copies differ" in text
    assert "\nlost on some replicas and intact on others: 1 message\n" in text
    assert main(["lost", *paths, "--json"]) == 1
    (row,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (row["index"], row["lostOn"], row["intactOn"]) == (known, ["n2"], ["n0", "n1"])
    assert main(["diff", *paths]) == 1
    steps = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    assert steps == f"next: dledger salvage {' '.join(paths[2:] + paths[:2])} --plan"
    assert main(shlex.split(steps)[2:]) == 1
    assert "--undecided majority --to healthy\n" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mq-498-three-diverged", "raw-three-diverged", "raw-040-snapshot-keep"])
@pytest.mark.parametrize("seed", range(2))
def test_a_group_that_was_damaged_while_it_was_diverged(
    case_folder: Callable[[str], Path], tmp_path: Path, engine: str, seed: int, case: str
) -> None:
    rng = random.Random(seed)
    members = []
    for node in ("n0", "n1", "n2"):
        name = Golden(case, node).folder
        members.append(copied_member(case_folder(case) / name, tmp_path / node / name, node))
    damage(members, rng, 10)
    found = comparison(members, engine)
    check(members, found)
    assert found.verdict.lost_entries.entries == 0
    assert_no_order_matters(members, found, engine, seed)


def test_entries_whose_headers_alone_are_damaged_are_restorable(tmp_path: Path, engine: str) -> None:
    members = write_group(tmp_path, random.Random(1), as_messages=True)
    for number, member in enumerate(members):
        file, offset, _ = member.entries[7]
        member.write(file, offset + 12, b"\x55\x55")
        file, offset, _ = member.entries[9]
        # Copies that are damaged alike may have been written so.
        member.write(file, offset + 48 + 100, bytes((0, 255 - number, 0)))
    verdict = comparison(members, engine).verdict
    assert (verdict.lost, verdict.lost_entries.ranges) == ("some", ((7, 7), (9, 9)))
    assert verdict.restorable.ranges == ((7, 7),)
    text = lost_text(verdict)
    assert text == (
        "2 entries, 7, 9: intact on no replica; only headers are damaged of 7: dledger salvage restores them"
    )
    assert not verdict.is_restorable


@pytest.mark.parametrize("unit", [b"", b"damaged"])
def test_a_replica_of_which_only_the_index_is_left_must_not_start(tmp_path: Path, unit: bytes) -> None:
    for node in ("n0", "n1", "n2"):
        write_dledger(tmp_path / node, [raw(b"%d" % number * 100) for number in range(20)], node=node)
    for file in (tmp_path / "n2" / "dledger-n2" / "data").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    (index,) = (tmp_path / "n2" / "dledger-n2" / "index").iterdir()
    index.write_bytes(unit + index.read_bytes()[len(unit) :])
    log = open_log(tmp_path / "n0", replicas=[str(tmp_path / "n1"), str(tmp_path / "n2")])
    verdict = compare(log).verdict
    assert [(member.node, member.start, member.is_emptied) for member in verdict.members] == [
        ("n0", "yes", False),
        ("n1", "yes", False),
        ("n2", "no", True),
    ]
