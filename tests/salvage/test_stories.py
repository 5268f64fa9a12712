"""`diff`, `lost` and `salvage` say the same of a group: what is lost for good, and where nothing decides."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.log import open_log
from pyspark_dledger.log.diff.comparison import compare
from pyspark_dledger.log.salvage.plan import SalvagePlan
from pyspark_dledger.log.salvage.plan_rows import headline
from pyspark_dledger.rocketmq.salvage import SalvageRequest, plan, salvage
from tests.consistency.rules import story_differences
from tests.salvage.groups import (
    Group,
    change,
    damage,
    differences,
    generated_plain_group,
    golden_group,
    lose,
    older_terms_group,
)
from tests.salvage.run import group_of
from tests.support.damage import flip, place, write_at
from tests.support.long_runs import some

pytestmark = [pytest.mark.usefixtures("no_fsync"), pytest.mark.slow]

QUEUE_OFFSET_AT, BODY_AT = ENTRY_HEADER_SIZE + 20, 88


def flip_and_touch(folder: Path, pos: int) -> None:
    """Flip a bit at a position of a log.

    The clock of files is coarse, and replicas with equal times would be copies of each other.
    """
    file, at = place(folder, pos)
    flip(file, at)
    os.utime(file, ns=(time.time_ns(), time.time_ns()))


def plan_of(group: Group, **options: str) -> SalvagePlan:
    return plan(SalvageRequest.of(group.members, **options))


@pytest.mark.parametrize(
    "seed", [3006, 3011, 3019, 3022, 5018, 5026, 5049, 6004, 6022, 6052, 6060, 7033, 7049, 8035, 8074]
)
def test_damaged_groups(tmp_path: Path, seed: int) -> None:
    group = group_of(tmp_path, seed)
    damage(group, seed, 4 + seed % 12, is_lossless=False)
    assert story_differences(group) == []


STALE_TAILS = [
    (20024, 12),
    (20026, 14),
    (20047, 11),
    (20036, 12),
    (12, 28),
    (13, 29),
    (27, 18),
    (19, 35),
    (20066, 6),
    (42, 33),
    (47, 38),
]


@pytest.mark.parametrize(("seed", "damages"), some(STALE_TAILS, 4))
def test_damaged_groups_with_stale_tails_of_later_terms(tmp_path: Path, seed: int, damages: int) -> None:
    """Some lost a whole log, cut files, first entries or all index units; the order of the members does not matter."""
    group = older_terms_group(tmp_path, seed)
    damage(group, seed, damages, is_lossless=False)
    for members in (group.members, group.members[::-1]):
        assert story_differences(group, members) == []


def test_an_entry_that_a_cut_file_has_in_part_does_not_hide_those_before(tmp_path: Path) -> None:
    """The index says where it is, and the checkpoint that it is committed."""
    group = golden_group(tmp_path, "raw-three")
    (member, extent) = group.members[0], group.extents[40]
    file = min((member / "data").iterdir())
    for other in (member / "data").iterdir():
        if other != file:
            other.unlink()
    os.truncate(file, extent.pos + extent.size - 1)
    (member / "checkpoint").write_text("committedIndex=40\nendIndex=40\n")
    assert open_log(member).end.last_index == 39


def test_committed_entries_of_a_source_without_a_common_file_are_restored(tmp_path: Path) -> None:
    """The others lost their first files; what the source has after its committed index is left out."""
    group = golden_group(tmp_path, "mq-498-three-diverged")
    for member in group.members[:2]:
        min(next(member.glob("dledger-*/data")).iterdir()).unlink()
    (log,) = plan_of(group).logs
    assert (log.pieces[0].first_index, min(each.index for each in log.lost)) == (0, 178)


def test_a_first_file_of_zeros_is_damaged_and_not_expired(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    file = min((group.members[1] / "data").iterdir())
    size = file.stat().st_size
    file.write_bytes(bytes(size))
    extents = [extent for extent in group.extents if extent.pos < size]
    lose(group, 0, [extents[3].index])
    assert story_differences(group) == []
    log = open_log(str(group.members[0]), replicas=[str(member) for member in group.members[1:]])
    verdict = compare(log).verdict
    n0, n1, _ = verdict.members
    assert n0.damaged.ranges == verdict.unclear_entries.ranges == ((3, 3),)
    assert (n1.begin, n1.damaged.ranges) == (0, ((0, extents[-1].index),))


def test_equal_copies_that_fail_their_checksum_are_undecided(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    extent = group.extents[60]
    for member in group.members:
        flip_and_touch(next(member.glob("dledger-*/data")), extent.pos + ENTRY_HEADER_SIZE + BODY_AT)
    assert story_differences(group) == []
    assert headline(plan_of(group)) == (
        "lost for good: cannot tell for 1 entry, 60: nothing shows that a copy is right"
    )
    with pytest.raises(StoreError, match=r"index 60 at \d+: all fail the same checks alike: n0\+n1\+n2\. --undecided"):
        salvage(SalvageRequest.of(group.members), tmp_path / "refused")
    report = salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result")
    first = next(differences(group, tmp_path / "result"))
    assert (report.lost, report.decided, first) == (0, 1, f"entry 60 at {extent.pos} differs")
    assert salvage(SalvageRequest.of(group.members, undecided="filler"), tmp_path / "filled").lost == 1
    assert plan(SalvageRequest.of(group.members[:1])).logs[0].lost[0].index == 60


def test_equal_messages_that_fail_their_checksum_are_undecided_without_dledger(tmp_path: Path) -> None:
    group = generated_plain_group(tmp_path, 2)
    extent = group.extents[5]
    for member in group.members:
        flip_and_touch(member / "commitlog", extent.pos + BODY_AT)
    assert story_differences(group) == []
    (undecided,) = plan_of(group).logs[0].undecided
    assert (undecided.pos, undecided.variants) == (extent.pos, ((0, 1, 2),))


def test_a_last_message_that_its_queue_does_not_know_is_undecided(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    for member in (1, 2):
        lose(group, member, [60])
    assert plan_of(group).is_lossless
    change(group.members[0], group.extents[60].pos + QUEUE_OFFSET_AT, bytes(7) + b"\x77")
    assert story_differences(group) == []
    (undecided,) = plan_of(group).refused
    assert (undecided.index, undecided.variants, undecided.why) == (60, ((0,),), "the last copy, no queue knows it")
    # The unit speaks against the only copy: there is no majority. A copy with a wrong place would hide later messages.
    filled = plan_of(group, undecided="majority")
    assert ([each.index for each in filled.logs[0].lost], filled.chosen) == ([60], [])
    single = plan(SalvageRequest.of(group.members[:1]))
    assert [each.index for each in single.refused] == [60]


def test_the_last_copy_of_a_raw_entry_is_taken_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = golden_group(tmp_path, "raw-three")
    for member in (1, 2):
        lose(group, member, [5, 6])
    assert story_differences(group) == []
    assert main(["salvage", *map(str, group.members), "--to", str(tmp_path / "result")]) == 1
    expected = "lost for good: cannot tell for 2 entries, 5 to 6: no checksum covers the last copy, which is taken"
    assert capsys.readouterr().out.splitlines()[0] == expected
    assert list(differences(group, tmp_path / "result")) == []


def test_what_cannot_be_read_is_named_in_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    file = min((group.members[1] / "consumequeue").glob("*/*/*"))
    file.unlink()
    file.mkdir()
    assert main(["salvage", *map(str, group.members), "--plan"]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "lost for good: cannot tell if a log was longer: files of n1 cannot be read"
    name = file.relative_to(group.members[1])
    assert f"note: n1: {name} cannot be read (not a file): what it knows does not count" in lines


def test_a_damaged_term_in_an_index_unit_loses_no_entry(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    index = min((group.members[0] / "index").iterdir())
    write_at(index, 7 * INDEX_UNIT_SIZE + 24, b"\0\0\1\0")
    assert plan(SalvageRequest.of(group.members[:1])).is_lossless
    assert story_differences(group) == []


def test_a_damaged_checkpoint_promises_no_memory(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    (group.members[0] / "checkpoint").write_text(f"committedIndex={2**61}\nendIndex=899\n")
    (log,) = plan_of(group).logs
    assert (log.last_index, log.lost_after) == (899, 2**61)
