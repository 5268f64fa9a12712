"""What other files and other replicas say of copies: copied folders, lost writes, decisions of an earlier salvage."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.log import open_log
from pyspark_dledger.log.copies.segment_bytes import is_torn, lacks_a_write
from pyspark_dledger.log.diff.comparison import Comparison, compare
from pyspark_dledger.log.salvage.plan_rows import headline, problems_within
from pyspark_dledger.rocketmq.salvage import SalvageRequest, plan, salvage
from tests.consistency.damages import damage
from tests.consistency.worlds import world
from tests.support.damage import flip
from tests.support.damaged_groups import Member, write_group
from tests.support.golden import unpack

pytestmark = pytest.mark.usefixtures("no_fsync")

INDEX = 7


def group(folder: Path) -> list[Member]:
    """Three members with raw entries, which no checksum covers."""
    return write_group(folder, random.Random(3), as_messages=False)


def change(member: Member, offset: int, data: bytes, index: int = INDEX) -> None:
    file, start, _ = member.entries[index]
    member.write(file, start + offset, data)


def comparison(*paths: Path) -> Comparison:
    return compare(open_log(str(paths[0]), replicas=[str(path) for path in paths[1:]]))


@pytest.mark.parametrize("keeps_times", [True, False])
def test_a_copy_of_a_damaged_replica_has_no_vote(tmp_path: Path, keeps_times: bool) -> None:
    n0, n1, _ = group(tmp_path)
    change(n1, ENTRY_HEADER_SIZE + 5, b"?")
    if not keeps_times:
        # The same corrupt bytes show it as well.
        file, start, _ = n1.entries[INDEX + 3]
        n1.write(file, start + 44, b"\1")
    copy = tmp_path / "copy"
    shutil.copytree(n1.path, copy, copy_function=shutil.copy2 if keeps_times else shutil.copy)
    paths = [n0.path, n1.path, copy]
    for order in (paths, paths[::-1]):
        found = plan(SalvageRequest.of(order, undecided="majority"))
        assert [(each.first_index, each.why) for _, each in found.chosen] == [(INDEX, "tie")]
        assert f"{INDEX}: copies differ, no check shows which one is right" in headline(found)
        assert "n1 is a copy of copy: what both have counts once" in found.notes
    assert comparison(*paths).notes[0] == "n1 is a copy of copy: what both have counts once"


def test_two_folders_of_one_node_have_one_vote(tmp_path: Path) -> None:
    """A property that no checksum covers differs on a node and on the copy of its folder, which lost its times."""
    n0, n1, n2 = (unpack("mq-53-three", tmp_path) / f"n{number}" for number in range(3))
    segment = "dledger-n0/data/00000000000000131072"
    flip(n0 / segment, 66046)
    copy = tmp_path / "old"
    shutil.copytree(n0, copy, copy_function=shutil.copy)
    for order in ([n0, copy, n2], [n2, copy, n0]):
        found = plan(SalvageRequest.of(order, undecided="majority"))
        assert [(each.first_index, each.why) for _, each in found.chosen] == [(301, "tie")]
        assert any("is a copy of" in note for note in found.notes)
    found = plan(SalvageRequest.of([n0, n1, n2], undecided="majority"))
    assert [each.first_index for _, each in found.chosen] == [301]
    assert not any("is a copy of" in note for note in found.notes)


def test_replicas_with_files_of_the_same_times_and_other_bytes_are_two(tmp_path: Path) -> None:
    """A clock has ticks: files that are written one after the other can have the same time."""
    n0, n1, n2 = group(tmp_path)
    for number, member in enumerate((n0, n1, n2)):
        change(member, ENTRY_HEADER_SIZE + 5, b"?", INDEX + number)
    for member in (n0, n1, n2):
        for file in Path(member.path).rglob("data/*"):
            os.utime(file, ns=(1_700_000_000_123_456_789,) * 2)
    found = plan(SalvageRequest.of([n0.path, n1.path, n2.path], undecided="majority"))
    assert not any("is a copy of" in note for note in found.notes)
    assert found.logs[0].undecided == ()


def test_a_hole_up_to_the_edge_of_a_sector_is_a_lost_write(tmp_path: Path) -> None:
    data = b"x" * 2000
    assert not is_torn(100, data) and not is_torn(0, data[:511] + bytes(1) + data[512:])
    assert is_torn(100, data[:412] + bytes(70) + data[482:]), "it begins at the edge of a sector"
    assert is_torn(100, data[:300] + bytes(112) + data[412:]), "it ends there"
    assert is_torn(100, bytes(412) + data[412:]), "it began before the bytes"
    n0, n1, n2 = group(tmp_path)
    file, start, entry = next(each for each in n1.entries.values() if each[1] % 512 + len(each[2]) > 512 + 150)
    index = next(index for index, each in n1.entries.items() if each[:2] == (file, start))
    edge = -start % 512
    n1.write(file, start + edge - 100, bytes(100))
    found = comparison(n0.path, n1.path)
    members = {member.node: member for member in found.verdict.members}
    assert members["n1"].damaged.ranges == ((index, index),) and entry
    assert not members["n0"].damaged.entries
    assert plan(SalvageRequest.of([n0.path, n1.path, n2.path])).refused == ()


def test_zeros_from_a_sector_edge_on_are_a_lost_write_if_another_copy_has_more() -> None:
    data = bytes(range(1, 201))
    zeros_at_end = data[:188] + bytes(12)
    assert lacks_a_write(1024 - 188, zeros_at_end, data) and not lacks_a_write(1024 - 188, data, zeros_at_end)
    assert lacks_a_write(1024 - 200, zeros_at_end, data), "they end at an edge"
    assert not lacks_a_write(1024 - 150, zeros_at_end, data), "no edge is at the zeros"
    assert not lacks_a_write(1024 - 188, b"?" + zeros_at_end[1:], data), "another byte differs"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"\0\0"),  # fewer zeros than a lost write has
        (b"", b"\x1f"),
        (b"", b"\xff"),
        (b"UNIQ_KEY", b"UNIQ-KEY"),
        (b"\2", b"?"),
    ],
)
def test_a_message_that_no_broker_writes_is_damaged_if_another_copy_is_better(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    """Nothing but its bytes tells: there are no queues, and no index of keys."""
    paths = [unpack("mq-53-three", tmp_path) / f"n{number}" for number in range(2)]
    for path in paths:
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index")
    file = paths[1] / "dledger-n1/data/00000000000000131072"
    data = file.read_bytes()
    name = data.index(b"UNIQ_KEY", 4096)
    at = data.index(old, name) if old else name + 20
    file.write_bytes(data[:at] + new + data[at + len(new) :])
    for order in (paths, paths[::-1]):
        found = plan(SalvageRequest.of(order))
        assert headline(found) == "lost for good: nothing"
        (damage,) = (each for each in found.logs[0].damages if "another replica has" in each.problem)
        assert found.names[damage.source] == "n1"


def test_what_a_salvage_decided_is_decided_in_a_comparison_with_its_sources(tmp_path: Path) -> None:
    n0, n1, n2 = group(tmp_path)
    change(n1, ENTRY_HEADER_SIZE + 5, b"?")
    paths = [n0.path, n1.path, n2.path]
    assert comparison(*paths).verdict.unclear_entries.ranges == ((INDEX, INDEX),)
    salvage(SalvageRequest.of(paths, undecided="majority"), tmp_path / "result")
    for order in ((tmp_path / "result", n1.path), (n1.path, tmp_path / "result", n2.path)):
        found = comparison(*order)
        assert (found.verdict.lost, found.verdict.unclear_entries.entries) == ("nothing", 0)
        assert [member.start for member in found.verdict.members if member.damaged.entries] == ["no"]


def test_a_copy_that_was_taken_of_two_that_differ_is_not_the_right_one(tmp_path: Path) -> None:
    n0, n1, n2 = group(tmp_path)
    change(n1, ENTRY_HEADER_SIZE + 5, b"?")
    n2.write(*n2.entries[INDEX][:2], bytes(len(n2.entries[INDEX][2])))
    paths = [n0.path, n1.path, n2.path]
    salvage(SalvageRequest.of(paths, undecided="majority"), tmp_path / "result")
    for path in paths[:2]:
        found = comparison(tmp_path / "result", path).verdict
        assert not any(member.damaged.entries for member in found.members)
    found = comparison(tmp_path / "result", *paths[:2]).verdict
    assert found.unclear_entries.ranges == ((INDEX, INDEX),)


def test_that_nothing_confirmed_the_last_copies_is_known_of_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    n0, n1, _ = group(tmp_path)
    for index in (INDEX, INDEX + 1):
        file, start, data = n1.entries[index]
        n1.write(file, start, bytes(len(data)))
    result = tmp_path / "result"
    report = salvage(SalvageRequest.of([n0.path, n1.path]), result)
    assert (report.unconfirmed, report.decided) == (2, 0)
    known = f"cannot tell for 2 entries, {INDEX} to {INDEX + 1}: only one copy is left, and no check covers it"
    for arguments in (["check", str(result)], ["lost", str(result)], ["diff", str(result), str(n0.path)]):
        assert main(arguments) == 1
        said = capsys.readouterr()
        assert known in said.out + said.err
    assert main(["check", str(result), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["lost"] == "unknown"


def test_fillers_of_first_entries_have_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    members = write_group(tmp_path, random.Random(3), as_messages=True)
    for member in members:
        for index in (0, 1):
            file, start, data = member.entries[index]
            member.write(file, start, bytes(len(data)))
    salvage(SalvageRequest.of([member.path for member in members]), tmp_path / "result")
    assert main(["lost", str(tmp_path / "result"), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == [0, 1]
    assert "1970" not in json.dumps(rows)


def test_an_entry_that_a_salvage_replaced_because_nothing_decided_is_not_left_out(tmp_path: Path) -> None:
    n0, n1, _ = group(tmp_path)
    change(n1, ENTRY_HEADER_SIZE + 5, b"?")
    salvage(SalvageRequest.of([n0.path, n1.path], undecided="filler"), tmp_path / "result")
    found = comparison(tmp_path / "result", n0.path, n1.path)
    result = next(member for member in found.verdict.members if member.fillers.entries)
    assert (result.start, result.left_out.entries) == ("yes", 0)


def test_a_copied_replica_confirms_no_last_copy(tmp_path: Path) -> None:
    n0, n1, _ = group(tmp_path)
    file, start, data = n1.entries[INDEX]
    n1.write(file, start, bytes(len(data)))
    shutil.copytree(n0.path, tmp_path / "copy", copy_function=shutil.copy2)
    for paths in ([n0.path, n1.path], [n0.path, n1.path, tmp_path / "copy"]):
        assert comparison(*paths).verdict.unclear_entries.ranges == ((INDEX, INDEX),)


@pytest.mark.parametrize(("store", "node"), [("raw-three-diverged", "n1"), ("mq-498-three-diverged", "n2")])
def test_an_old_file_on_one_replica_does_not_outvote_the_log_of_a_later_term(
    tmp_path: Path, store: str, node: str
) -> None:
    """The other replica with the old file has entries of an earlier term, which were never committed."""
    folders = {path.parent.name: path for path in unpack(store, tmp_path).rglob("dledger-n?/data")}
    old, new = folders.pop(f"dledger-{node}"), folders.pop("dledger-n0")
    (good,) = folders.values()
    put_back(old, new)
    roots = [path.parent if store.startswith("raw") else path.parent.parent for path in (new, old, good)]
    for order in (roots, roots[::-1]):
        found = plan(SalvageRequest.of(order))
        (log,) = found.logs
        assert not log.lost
        assert log.pieces[-1].term == 2
        assert node not in {found.names[number] for number in log.pieces[-1].sources}


@pytest.mark.parametrize(("store", "node"), [("raw-three-diverged", "n1"), ("mq-498-three-diverged", "n2")])
def test_entries_before_those_that_an_index_has_are_no_copies_of_them(tmp_path: Path, store: str, node: str) -> None:
    """Only the index of the replica with the old file knows the entries of the later term: they are lost."""
    folders = {path.parent.name: path for path in unpack(store, tmp_path).rglob("dledger-n?/data")}
    old, new = folders[f"dledger-{node}"], folders["dledger-n0"]
    put_back(old, new)
    roots = [path.parent if store.startswith("raw") else path.parent.parent for path in (new, old)]
    for order in (roots, roots[::-1]):
        found = plan(SalvageRequest.of(order))
        (log,) = found.logs
        assert {each.term for each in log.lost} == {2}
        assert headline(found).startswith("lost for good: ")


def test_a_file_of_the_elected_leader_makes_no_damage_of_the_tail_that_follows_it(tmp_path: Path) -> None:
    """The stranded leader has its own entries after the file of the other one."""
    folders = {path.parent.name: path for path in unpack("raw-three-diverged", tmp_path).rglob("dledger-n?/data")}
    put_back(folders["dledger-n0"], folders["dledger-n1"])
    roots = [path.parent for path in folders.values()]
    found = plan(SalvageRequest.of(roots))
    (log,) = found.logs
    assert (log.lost, log.last_index, log.last_term) == ((), 324, 2)
    assert [(found.names[number], tail.last_index) for tail in log.tails for number in tail.sources] == [("n1", 359)]
    verdict = comparison(*roots).verdict
    assert verdict.lost == "nothing"
    assert {member.node: member.start for member in verdict.members}["n1"] == "no"


def test_an_index_that_ends_before_the_end_in_the_checkpoint_does_not_make_the_log_another_one(tmp_path: Path) -> None:
    """The index of the elected leader is put back on the stranded one, whose log and checkpoint have the same end."""
    folders = {path.parent.name: path for path in unpack("raw-three-diverged", tmp_path).rglob("dledger-n?/data")}
    put_back(folders["dledger-n0"].parent / "index", folders["dledger-n1"].parent / "index")
    (log,) = plan(SalvageRequest.of([path.parent for path in folders.values()])).logs
    assert (log.lost, log.last_term) == ((), 2)
    verdict = comparison(*(path.parent for path in folders.values())).verdict
    assert verdict.lost == "nothing"
    assert {member.node: member.damaged.entries for member in verdict.members} == {"n0": 0, "n1": 0, "n2": 0}


def test_damage_after_the_start_of_a_diverged_tail_is_no_problem_of_the_restored_log(tmp_path: Path) -> None:
    """Of the stranded leader only an entry of its tail is intact."""
    made = world(tmp_path, seed=200627)
    damage(made)
    found = plan(SalvageRequest.of([each.path for each in made.replicas]))
    (log,) = found.logs
    (tail,) = log.tails
    assert [found.names[number] for number in tail.sources] == ["n1"]
    assert "n1" not in problems_within(found)(log, tail.start - 8, log.end)


@pytest.mark.parametrize("term", [-1, 0, 9])
def test_a_damaged_term_between_two_entries_of_one_term_is_damage_of_its_entry_only(tmp_path: Path, term: int) -> None:
    file = min(unpack("raw-three-diverged", tmp_path).rglob("dledger-n0/data/*"))
    shutil.rmtree(file.parent.parent / "index")
    data = bytearray(file.read_bytes())
    second = int.from_bytes(data[4:8], "big")
    data[second + 16 : second + 24] = term.to_bytes(8, "big", signed=True)
    file.write_bytes(data)
    (log,) = plan(SalvageRequest.of([file.parent.parent])).logs
    assert [each.pos for each in log.lost] == [second]


def test_old_messages_are_no_copies_of_those_that_the_queues_of_their_replica_have(tmp_path: Path) -> None:
    """A file of a master that was alone was put back on the one that was elected after it."""
    made = world(tmp_path, seed=100027)
    put_back(made.replica("n0").log_folder, made.replica("n2").log_folder)
    diverged = next(one.pos for one, two in zip(made.main, made.replica("n0").entries, strict=False) if one != two)
    for order in itertools.permutations(each.path for each in made.replicas):
        found = plan(SalvageRequest.of(order, log_of="n2"))
        (log,) = found.logs
        assert (log.lost, log.end) == ((), made.main[-1].end)
        piece = next(each for each in log.pieces if each.end > diverged)
        assert [found.names[number] for number in piece.sources] == ["n1"]


def put_back(old: Path, new: Path) -> None:
    """Replace the first file in which the folders differ."""
    for file in sorted(new.iterdir()):
        if (old / file.name).read_bytes() != file.read_bytes():
            file.write_bytes((old / file.name).read_bytes())
            return


def test_messages_of_another_history_that_a_file_brought_back_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are whole, and may be the last copy of what a former master acknowledged."""
    root = unpack("mq-53-controller", tmp_path)
    b1, b2, b3 = (root / f"b{number}" for number in (1, 2, 3))
    file = min((b1 / "commitlog").iterdir()).name
    shutil.copyfile(b1 / "commitlog" / file, b2 / "commitlog" / file)
    assert main(["salvage", str(b2), str(b3), "--plan"]) == 0
    said = capsys.readouterr()
    (row,) = (line for line in said.out.splitlines() if line.startswith("leftOut "))
    pos = int(row.split()[2])
    assert f"""--to jsonl --option 'startingOffsets={{"pos": {pos}}}'""" in said.out + said.err
    assert row.endswith("of another history than the log of b3, as queues of b2 show")
