"""``diff --json`` says first what the text says: lost for good, who may start or be elected, and the next command."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.stores.diff_text import MEMBER_KEYS, VERDICT_KEYS
from tests.consistency.damages import damage
from tests.consistency.worlds import COMMIT_LOG, world
from tests.support.command_line import Ran
from tests.support.damaged_groups import lose, write_group
from tests.support.generate import mq_message, write_commitlog, write_dledger
from tests.support.sparse_copy import copy_tree

Run = Callable[..., Ran]


def checked_verdicts(run: Run, *paths: Path) -> list[dict[str, Any]]:
    """The verdicts in JSON, which all have the documented keys and say what the text says."""
    printed, found = run("diff", *paths), run("diff", *paths, "--json")
    assert printed.code == found.code
    verdicts = [row for row in found.rows if row["verdict"] == "group"]
    assert verdicts and found.rows[: len(verdicts)] == verdicts
    documented, of_members = (set(chain.from_iterable(keys)) for keys in (VERDICT_KEYS, MEMBER_KEYS))
    lines = printed.out.splitlines()
    for verdict in verdicts:
        assert verdict.keys() <= documented
        assert any(line.startswith("lost for good") and line.endswith(f": {verdict['text']}") for line in lines)
        if verdict["next"] is not None:
            assert f"next: {verdict['next']}" in lines
        for member in verdict["members"]:
            assert member.keys() <= of_members
            assert any(line.startswith(member["node"]) and line.endswith(f" {member['text']}") for line in lines)
    return verdicts


def test_a_damaged_member_and_its_donors(tmp_path: Path, run: Run) -> None:
    members = write_group(tmp_path, random.Random(3), as_messages=True)
    file, offset, data = members[1].entries[5]
    members[1].write(file, offset + 150, bytes([data[150] ^ 1]))
    (verdict,) = checked_verdicts(run, *(member.path for member in members))
    assert (verdict["log"], verdict["lost"], verdict["text"]) == ("dledger", "nothing", "nothing")
    n0, n1, n2 = verdict["members"]
    assert (n1["start"], n1["elect"], n1["donors"]) == ("no", "no", ["n0", "n2"])
    assert n1["damaged"]["ranges"] == n1["silent"]["ranges"] == [[5, 5]]
    assert (n0["start"], n2["start"]) == ("yes", "yes")
    rows = run("diff", *(member.path for member in members), "--json").rows[1:]
    (row,) = [row for row in rows if row["verdict"] == "damaged"]
    assert (row["firstIndex"], row["nodes"], row["intact"]) == (5, ["n1"], ["n0", "n2"])


@pytest.mark.parametrize("seed", range(4))
def test_random_damage(tmp_path: Path, run: Run, seed: int) -> None:
    made = world(tmp_path, seed)
    damage(made)
    (verdict,) = checked_verdicts(run, *(each.path for each in made.replicas))
    starts = {"master", "slave"} if made.kind == COMMIT_LOG else {"yes"}
    assert verdict["log"] == made.kind
    assert {member["start"] for member in verdict["members"]} <= {*starts, "no", "unknown"}


def test_lost_messages_have_their_queue_offsets(tmp_path: Path, run: Run) -> None:
    members = write_group(tmp_path, random.Random(8), as_messages=True)
    lost = lose(members, random.Random(8))
    (verdict,) = checked_verdicts(run, *(member.path for member in members))
    assert verdict["lostEntries"]["entries"] == len(lost)
    offsets = sum(row["lastQueueOffset"] - row["firstQueueOffset"] + 1 for row in verdict["lostQueues"])
    assert offsets == len(lost)


def test_controller_mode_and_an_old_commit_log(case_folder: Callable[[str], Path], tmp_path: Path, run: Run) -> None:
    folder = case_folder("mq-53-controller")
    (verdict,) = checked_verdicts(run, *(folder / name for name in ("b1", "b2", "b3") if (folder / name).is_dir()))
    slaves = [member for member in verdict["members"] if member["start"] == "slave"]
    assert all([member["truncation"]["master"]] == member["ahead"] for member in slaves)
    upgraded = case_folder("mq-53-upgrade")
    verdicts = checked_verdicts(run, upgraded, copy_tree(upgraded, tmp_path / "copy"))
    assert [(verdict["log"], verdict["lost"]) for verdict in verdicts] == [
        ("commitlog", "nothing"),
        ("dledger", "nothing"),
    ]
    assert (verdicts[0]["members"], verdicts[0]["next"]) == ([], None)


def test_one_store_by_two_paths_is_one_store(tmp_path: Path, run: Run) -> None:
    payloads = [mq_message("T", b"x", queue_offset=number) for number in range(3)]
    write_dledger(tmp_path / "n0", payloads, node="n0")
    write_commitlog(tmp_path / "plain", payloads)
    (tmp_path / "link").symlink_to(tmp_path / "n0")
    for first, other in (
        ("n0", "n0/dledger-n0"),
        ("n0/dledger-n0", "n0/dledger-n0/data"),
        ("n0", "link"),
        ("plain", "plain/commitlog"),
    ):
        for options in ([], ["--json"], ["--md5"]):
            done = run("diff", tmp_path / first, tmp_path / other, *options)
            assert done.code == 2
            text = f"{tmp_path / other}: expected each replica once, found this one twice, as {tmp_path / first}"
            assert text in done.err
