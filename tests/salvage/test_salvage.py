"""Salvage: damaged groups give the undamaged log again."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pyspark_dledger
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import MESSAGE_MAGIC_V2
from pyspark_dledger.format.state_files import encode_epochs
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.state_files import read_current_term, read_epochs
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.salvage.plan_rows import plan_rows
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.findings import Finding
from pyspark_dledger.log.verify.verify_store import verify
from pyspark_dledger.rocketmq.recovery.plain_recovery import preview_plain
from pyspark_dledger.rocketmq.salvage import SalvageRequest, plan, salvage, salvage_job, segment_file
from pyspark_dledger.rocketmq.salvage.lost_list import _time_text
from tests.salvage.groups import (
    GOLDENS,
    change,
    damage,
    differences,
    generated_group,
    generated_plain_group,
    golden_group,
    lose,
    lost_indexes,
    older_terms_group,
    plain_group,
    spread_data,
)
from tests.salvage.heal import heal_differences
from tests.support.damage import write_log
from tests.support.dispatching import audit
from tests.support.generate import mq_message, rows_of, write_commitlog, write_dledger
from tests.support.golden import fingerprint, unpack
from tests.support.long_runs import mostly_slow
from tests.support.sparse_copy import copy_tree

ENGINES = ("native", "python")

pytestmark = [pytest.mark.usefixtures("no_fsync"), pytest.mark.slow]


def findings(path: Path) -> list[object]:
    return [found for found in verify(StoreView(str(path), ReadOptions())) if found.severity != "info"]


@pytest.mark.parametrize("seed", mostly_slow(range(6), 2, suite=4))
@pytest.mark.parametrize("engine", ENGINES)
def test_generated_groups(tmp_path: Path, seed: int, engine: str) -> None:
    group = generated_group(tmp_path, seed)
    damage(group, seed, 8)
    before = [fingerprint(member) for member in group.members]
    request = SalvageRequest.of(group.members, undecided="majority", engine=engine)
    report = salvage(request, tmp_path / "result")
    assert list(differences(group, tmp_path / "result")) == []
    assert (report.lost, report.findings) == (0, ())
    assert findings(tmp_path / "result") == []
    assert [fingerprint(member) for member in group.members] == before


@pytest.mark.parametrize("case", GOLDENS)
def test_goldens(tmp_path: Path, case: str) -> None:
    group = golden_group(tmp_path, case)
    damage(group, 1, 12)
    report = salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result")
    assert list(differences(group, tmp_path / "result")) == []
    assert (report.lost, report.findings) == (0, ())


@pytest.mark.parametrize("seed", [5, 21])
def test_stale_entries_of_later_terms_are_not_restored(tmp_path: Path, seed: int) -> None:
    group = older_terms_group(tmp_path, seed)
    damage(group, seed, 10)
    report = salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result")
    assert list(differences(group, tmp_path / "result")) == []
    assert (report.lost, report.findings) == (0, ())


def test_sources_with_several_data_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = generated_group(tmp_path, 7)
    damage(group, 7, 8)
    sources = [spread_data(member) for member in group.members]
    monkeypatch.chdir(tmp_path)
    near = [source.replace(f"{tmp_path}/", "") for source in sources]
    assert near[0] == "n0,n0/path1,n0/path2"
    assert main(["salvage", *near, "--undecided", "majority", "--to", "result"]) == 0
    assert list(differences(group, tmp_path / "result")) == []
    assert findings(tmp_path / "result") == []
    assert list(heal_differences(near, tmp_path / "result")) == []
    with pytest.raises(StoreError, match=r"dataDirs: expected a folder with segment files at .*/n0/path9, found none"):
        plan(SalvageRequest.of([f"{near[0]},n0/path9", *near[1:]]))
    with pytest.raises(StoreError, match="is in the store"):
        salvage(SalvageRequest.of(near), tmp_path / "n0/path1/result")


def test_a_source_with_few_files_does_not_change_their_size(tmp_path: Path) -> None:
    group = generated_group(tmp_path, 7)
    first, second, third, *others = sorted((group.members[1] / "dledger-n1/data").iterdir())
    first.write_bytes(first.read_bytes()[:500])
    for file in (second, *others):
        file.unlink()
    assert third.stat().st_size == int(second.name)
    report = salvage(SalvageRequest.of([group.members[1], group.members[0]]), tmp_path / "result")
    assert (report.lost, report.findings) == (0, ())
    assert list(differences(group, tmp_path / "result")) == []


def test_a_source_that_committed_an_entry_has_its_bytes(tmp_path: Path) -> None:
    group = generated_group(tmp_path, 30131)
    damage(group, 30131, 15)
    assert salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result").lost == 0


def test_a_damaged_last_message_is_no_divergence(tmp_path: Path) -> None:
    group = generated_plain_group(tmp_path, 900042)
    damage(group, 900042, 10)
    assert salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result").lost == 0
    assert list(differences(group, tmp_path / "result")) == []


def test_a_path_with_a_comma_is_one_path(tmp_path: Path) -> None:
    write_dledger(tmp_path / "a,b", [mq_message("T", b"1")], node="n0")
    assert len(rows_of(open_log(tmp_path / "a,b").scan(["index"]))) == 1
    assert SalvageRequest.of([tmp_path / "a,b"]).sources == (str(tmp_path / "a,b"),)


def test_stores_with_snapshots_are_refused(tmp_path: Path) -> None:
    for node in ("n0", "n1"):
        write_dledger(tmp_path / node, [mq_message("T", b"1")], node=node)
    (tmp_path / "n1/dledger-n1/snapshot").mkdir()
    refused = (
        r"n1: found a store of DLedger 0\.4\.0 with snapshots, .* dledger diff names .*: replace the others by copies"
    )
    with pytest.raises(StoreError, match=refused):
        plan(SalvageRequest.of([tmp_path / "n0", tmp_path / "n1"]))


def test_a_finished_salvage_is_in_its_manifest(tmp_path: Path) -> None:
    group = generated_group(tmp_path, 1)
    salvage(SalvageRequest.of(group.members), tmp_path / "result")
    manifest = json.loads((tmp_path / "result/_export.json").read_text())
    assert (manifest["state"], manifest["form"]) == ("finished", "salvage")
    assert (tmp_path / "result").stat().st_mode & 0o777 == 0o700


def test_times_of_damaged_units_are_no_error() -> None:
    assert [_time_text(time) for time in (None, 0, 2**62, 2**70)] == [None, "1970-01-01T00:00:00.000Z", None, None]


def test_what_nobody_has_becomes_a_listed_filler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    lost = [0, 50, 51, 300]
    for member in range(3):
        lose(group, member, lost)
    report = salvage(SalvageRequest.of(group.members), tmp_path / "result")
    assert (report.lost, report.findings, lost_indexes(tmp_path / "result")) == (4, (), lost)
    assert list(differences(group, tmp_path / "result", lost)) == []
    rows = [json.loads(line) for line in (tmp_path / "result/lost.jsonl").read_text().splitlines()]
    assert [set(row["problems"]) for row in rows] == [{"n0", "n1", "n2"}] * 4
    assert {len(row["messages"]) for row in rows} == {1}
    assert rows[1]["messages"][0]["witnesses"] == ["consumeQueue", "indexFile"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", rows[1]["messages"][0]["firstStoreTimestamp"])
    entries = rows_of(open_log(tmp_path / "result").scan(columns=("index", "topic", "transaction", "problem")))
    assert [row["topic"] for row in entries if row["index"] in lost] == ["DLEDGER_LOST"] * 4
    assert {row["problem"] for row in entries} == {None}
    assert {row["code"] for row in audit(tmp_path / "result")} <= {"queueOffsetGap"}
    target = str(tmp_path / "result")
    assert [main(["find", target, index]) for index in ("50", "49")] == [1, 0]
    assert "a filler of a salvage: no source had the entry" in capsys.readouterr().err
    assert main(["lost", target, "--json"]) == 1
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in listed] == lost
    assert [(row["topic"], row["queueOffset"]) for row in listed] == [
        (row["messages"][0]["topic"], row["messages"][0]["queueOffset"]) for row in rows
    ]


def test_fillers_at_the_end_do_not_contradict_the_checkpoint_of_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = golden_group(tmp_path, "mq-53-three").members[0]
    max((member / "dledger-n0/data").iterdir()).unlink()
    report = salvage(SalvageRequest.of([member]), tmp_path / "result")
    assert (report.lost, report.findings) == (63, ())
    checkpoint = tmp_path / "result/checkpoint"
    data = checkpoint.read_bytes()
    last = max(row["storeTimestamp"] or 0 for row in rows_of(open_log(tmp_path / "result").scan()))
    assert int.from_bytes(data[:8], "big") * 1000 == last
    assert main(["verify", str(tmp_path / "result"), "--least", "warning"]) == 0
    capsys.readouterr()
    main(["check", str(member)])
    assert "would start without the committed entries 548 to 610, would cut 62" in capsys.readouterr().out


def test_findings_of_the_result_are_lines_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = generated_group(tmp_path, 1)
    found = Finding(
        *("warning", "corruptBytes", "n0", "dledger-n0/data/0", 8, 5, None, None), "a header", "zeros", "Not noticed."
    )
    monkeypatch.setattr(salvage_job, "read_findings", lambda _: iter([found]))
    assert main(["salvage", *map(str, group.members), "--to", str(tmp_path / "result")]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("verify finds "))
    assert lines[at + 1] == (
        "  warning corruptBytes: dledger-n0/data/0 at byte 8 (index 5): expected a header, found zeros"
    )


def test_copies_that_differ_without_a_checksum_are_refused(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    extent = group.extents[7]
    change(group.members[0], extent.pos + 60, b"?")
    with pytest.raises(
        StoreError, match=r"1 entry: nothing shows that a copy is right.*index 7 at .*: copies differ: n0 and n1\+n2"
    ):
        salvage(SalvageRequest.of(group.members), tmp_path / "result")
    assert not (tmp_path / "result").exists()
    filled = salvage(SalvageRequest.of(group.members, undecided="filler"), tmp_path / "filled")
    assert (filled.lost, lost_indexes(tmp_path / "filled")) == (1, [7])
    assert [main(["find", str(tmp_path / "filled"), "7"]), main(["lost", str(tmp_path / "filled")])] == [1, 1]
    chosen = salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "chosen")
    assert (chosen.lost, chosen.decided, list(differences(group, tmp_path / "chosen"))) == (0, 1, [])
    (row,) = map(json.loads, (tmp_path / "chosen/decided.jsonl").read_text().splitlines())
    assert (row["index"], row["why"], row["sources"], row["others"]) == (7, "majority", ["n1", "n2"], [["n0"]])
    wrong = salvage(SalvageRequest.of(group.members, take={7: "n0"}), tmp_path / "taken")
    assert wrong.decided == 1
    assert next(differences(group, tmp_path / "taken")).startswith("entry 7 at")
    with pytest.raises(OptionError, match=r"take: expected an undecided entry, .* found 8"):
        plan(SalvageRequest.of(group.members, take={7: "n0", 8: "n0"}))


def test_a_plan_shows_the_choice_for_undecided_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = golden_group(tmp_path, "raw-three")
    change(group.members[0], group.extents[7].pos + 60, b"?")
    paths = [str(member) for member in group.members]
    for choice, code, expected in (
        (["--undecided", "refuse"], 1, ("undecided", None, ["n0", "n1", "n2"])),
        (["--undecided", "filler"], 1, ("filler", None, ["n0", "n1", "n2"])),
        (["--undecided", "majority"], 0, ("copy", "n1", ["n1", "n2"])),
        (["--take", "7=n2"], 0, ("copy", "n1", ["n1", "n2"])),
    ):
        assert main(["salvage", *paths, "--plan", "--json", *choice]) == code
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["action"], row["donor"], row["sources"]) for row in rows if row["firstIndex"] == 7] == [expected]
    assert main(["salvage", *paths, "--to", str(tmp_path / "result")]) == 1
    assert "1 entry: nothing shows that a copy is right" in capsys.readouterr().err
    assert main(["salvage", *paths, "--to", str(tmp_path / "result"), "--take", "7=n1"]) == 0
    assert "decided by --undecided majority or --take: 1, listed in " in capsys.readouterr().out


def test_a_copy_of_a_message_of_a_commit_log_is_taken_by_its_position(tmp_path: Path) -> None:
    group = plain_group(tmp_path, "mq-plain")
    message = group.extents[7]
    write_log(group.members[0] / "commitlog", message.pos + 16, b"\x00\x00\x00\x07")
    sources = group.members[:2]
    with pytest.raises(
        OptionError, match=rf"take: expected an undecided entry, .* found {message.pos + 1}: see --plan"
    ):
        plan(SalvageRequest.of(sources, take={message.pos + 1: "m1"}))
    assert salvage(SalvageRequest.of(sources, take={message.pos: "m1"}), tmp_path / "result").decided == 1
    assert list(differences(group, tmp_path / "result")) == []


def test_a_copy_that_fails_its_checks_is_told_even_if_the_request_chose_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    for number, member in enumerate(group.members):
        for index in (5, 50 + number):
            change(member, group.extents[index].pos + 48 + 90, b"?")
    paths = [str(member) for member in group.members]
    assert main(["salvage", *paths, "--undecided", "majority", "--to", str(tmp_path / "result")]) == 1
    assert "verify finds 1:\n  info decidedCopy: " in capsys.readouterr().out
    assert main(["check", str(tmp_path / "result")]) == 1


def test_of_two_different_copies_one_is_kept_and_never_a_filler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = golden_group(tmp_path, "raw-three")
    change(group.members[0], group.extents[7].pos + 60, b"?")
    paths = [str(member) for member in group.members[:2]]
    assert main(["salvage", *paths, "--plan"]) == 1
    text = "of different copies without a majority, it takes one, and nothing shows that it is right: --take INDEX=ID"
    assert text in capsys.readouterr().out
    assert main(["salvage", *paths, "--to", str(tmp_path / "result")]) == 1
    assert "or one of the copies if there is no majority; " in capsys.readouterr().err
    logs = []
    for order in (paths, paths[::-1]):
        result = tmp_path / f"result of {Path(order[0]).name}"
        assert main(["salvage", *order, "--undecided", "majority", "--to", str(result)]) == 1
        said = capsys.readouterr().out.splitlines()[0]
        assert said == (
            "lost for good: cannot tell for 1 entry, 7: copies differ, no check shows which one is right, and one of "
            "them is taken"
        )
        assert not (result / "lost.jsonl").exists()
        (row,) = map(json.loads, (result / "decided.jsonl").read_text().splitlines())
        assert (row["index"], row["why"], [row["sources"], *row["others"]]) == (7, "tie", [["n1"], ["n0"]])
        assert main(["check", str(result)]) == 1
        known = "cannot tell for 1 entry, 7: copies differ, and no check shows which"
        assert known in capsys.readouterr().out.splitlines()[1]
        assert main(["lost", str(result)]) == 1
        assert known in capsys.readouterr().out
        again = tmp_path / f"again of {Path(order[0]).name}"
        assert main(["salvage", str(result), "--to", str(again)]) == 1
        assert capsys.readouterr().out.splitlines()[0] == said
        assert main(["check", str(again)]) == 1
        assert known in capsys.readouterr().out.splitlines()[1]
        # The result's copy is that of one of the two: it is no further witness.
        for sources in ([paths[1], str(result)], [*paths, str(result)]):
            assert main(["salvage", *sources, "--undecided", "majority", "--plan"]) == 1
            assert capsys.readouterr().out.splitlines()[0] == said
        assert main(["check", *paths, str(result)]) == 1
        assert any("may start and be elected" in line for line in capsys.readouterr().out.splitlines())
        logs.append([file.read_bytes() for file in sorted(result.glob("dledger-*/data/*"))])
    assert logs[0] == logs[1]


def test_a_last_copy_without_a_checksum_is_doubtful_where_the_others_lost_their_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = golden_group(tmp_path, "raw-three")
    for member in group.members[1:]:
        os.truncate(max(member.glob("data/*")), 4000)
    paths = [str(member) for member in group.members]
    assert main(["salvage", *paths, "--plan"]) == 1
    headline = capsys.readouterr().out.splitlines()[0]
    assert headline.startswith("lost for good: cannot tell for ")
    assert headline.endswith(": no checksum covers the last copy, which is taken")
    assert main(["check", *paths]) == 1
    assert "only one copy is left, and no check covers it" in capsys.readouterr().out.splitlines()[1]


def test_an_export_of_a_salvaged_store_still_says_what_nothing_proves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    change(group.members[0], group.extents[7].pos + 110, b"?")
    result, exported, again = (str(tmp_path / name) for name in ("result", "exported", "again"))
    two = [str(member) for member in group.members[:2]]
    assert main(["salvage", *two, "--undecided", "majority", "--to", result]) == 1
    assert main(["export", result, exported, "--to", "commitlog"]) == 0
    assert main(["salvage", exported, "--to", again]) == 0
    for path in (exported, again):
        capsys.readouterr()
        assert main(["check", path]) == 1
        said = f"when a salvage wrote the store that {Path(path).name} was exported from: cannot tell for 1 entry, 7: "
        assert said in capsys.readouterr().out.splitlines()[1]


def test_plan_rows_are_split_where_the_sources_change(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    lose(group, 1, [5])
    rows = [(row.first_index, row.last_index, row.sources) for row in plan_rows(plan(SalvageRequest.of(group.members)))]
    assert rows == [(0, 4, ("n0", "n1", "n2")), (5, 5, ("n0", "n2")), (6, 899, ("n0", "n1", "n2"))]


def test_queue_units_decide_between_copies(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    extent = group.extents[60]
    change(group.members[0], extent.pos + 48 + 20, b"\0\0\0\0\0\0\1\0")  # queueOffset has no checksum
    found = plan(SalvageRequest.of(group.members[:2]))
    assert [(row.donor, row.first_index) for row in plan_rows(found) if row.why == "queueUnit"] == [("n1", 60)]


def test_a_diverged_tail_is_named_and_can_be_chosen(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three-diverged")
    found = plan(SalvageRequest.of(group.members))
    left_out = [row for row in plan_rows(found) if row.action == "leftOut"]
    assert left_out
    name = left_out[0].sources[0]
    chosen = plan(SalvageRequest.of(group.members, log_of=name))
    assert chosen.logs[0].last_index == max(row.last_index or 0 for row in left_out if name in row.sources)
    with pytest.raises(OptionError, match="log-of: expected one of n0, n1, n2, found n7"):
        plan(SalvageRequest.of(group.members, log_of="n7"))


def test_the_own_term_of_a_node_that_is_too_low_is_named(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three-diverged")
    sources = [group.members[number] for number in (1, 0, 2)]
    report = salvage(SalvageRequest.of(sources), tmp_path / "result")
    note = "currterm: that of n1 has term 1, before that of the last entry, 2; n1 gets term 2, the highest of all"
    assert [each for each in report.notes if each.startswith("currterm")] == [note]
    for file in sources[0].glob("currterm*"):
        file.unlink()
    report = salvage(SalvageRequest.of(sources), tmp_path / "other")
    note = "currterm: no source has that of n1; n1 gets term 2, the highest of all"
    assert [each for each in report.notes if each.startswith("currterm")] == [note]


def test_one_store_and_its_own_witnesses(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    lose(group, 0, [20, 21])
    report = salvage(SalvageRequest.of(group.members[:1]), tmp_path / "result")
    assert (report.lost, lost_indexes(tmp_path / "result")) == (2, [20, 21])
    assert list(differences(group, tmp_path / "result", [20, 21])) == []


def test_a_damaged_header_is_restored_from_its_index_unit(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    lose(group, 0, [20, 21, 300], size=48)
    found = plan(SalvageRequest.of(group.members[:1]))
    rows = [row for row in plan_rows(found) if row.action != "copy"]
    assert [(row.action, row.donor) for row in rows] == [("repair", "n0")] * 2
    assert [(row.first_index, row.last_index) for row in rows] == [(20, 21), (300, 300)]
    report = salvage(SalvageRequest.of(group.members[:1]), tmp_path / "result")
    assert (report.lost, report.findings, list(differences(group, tmp_path / "result"))) == (0, (), [])


def test_an_interrupted_salvage_is_continued(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    done: list[int] = []

    def some(work: Any, parts: Any) -> Iterator[Any]:
        for number, part in enumerate(parts):
            if isinstance(part, tuple) and number == 3:
                raise KeyboardInterrupt
            done.append(number)
            yield work(part)

    request = SalvageRequest.of(group.members)
    with pytest.raises(KeyboardInterrupt):
        salvage(request, tmp_path / "result", run=some)
    for path in ("", "dledger-n0", "dledger-n0/data"):
        with pytest.raises(StoreError, match=r"found an unfinished salvage in .*: run the same dledger salvage again"):
            open_log(tmp_path / "result" / path)
    with pytest.raises(StoreError, match="the interrupted salvage has the undecided 'refuse', this one 'majority'"):
        salvage(SalvageRequest.of(group.members, undecided="majority"), tmp_path / "result")
    report = salvage(request, tmp_path / "result")
    assert (report.resumed, report.parts) == (3, 10)
    assert list(differences(group, tmp_path / "result")) == []
    with pytest.raises(StoreError, match="found a finished salvage"):
        salvage(request, tmp_path / "result")


def test_a_killed_salvage_is_continued(tmp_path: Path) -> None:
    """The process ends at a random moment, each time where something must have reached the disk."""
    group = golden_group(tmp_path, "mq-53-three")
    damage(group, 3, 10)
    request = SalvageRequest.of(group.members, undecided="majority")
    draw, killed = random.Random(7), 0
    while killed < 4 and _end_at(draw.randrange(60), request, tmp_path / "result"):
        killed += 1
    assert killed > 1
    if not (tmp_path / "result/_export.json").exists() or "running" in (tmp_path / "result/_export.json").read_text():
        assert salvage(request, tmp_path / "result").findings == ()
    assert findings(tmp_path / "result") == []
    assert list(differences(group, tmp_path / "result")) == []
    assert not list((tmp_path / "result/_export").glob("tmp*"))


def _end_at(call: int, request: SalvageRequest, target: Path) -> bool:
    """Salvage in another process, which ends without any cleaning at this call of fsync; false if it ended before."""
    child = os.fork()
    if not child:
        calls = itertools.count()
        os.fsync = lambda _: os._exit(9) if next(calls) == call else None
        try:
            salvage(request, target)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = golden_group(tmp_path, "raw-three")
    wanted = segment_file.write_file

    def write_file(part: Any, *others: Any) -> Any:
        change(group.members[0], group.extents[7].pos + 60, b"other bytes")
        return wanted(part, *others)

    monkeypatch.setattr("pyspark_dledger.rocketmq.salvage.salvage_job.write_file", write_file)
    with pytest.raises(StoreError, match="the file changed during the salvage: stop its broker, then salvage again"):
        salvage(SalvageRequest.of(group.members), tmp_path / "result")


def test_links_to_the_files_of_a_source_are_no_other_source(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    shutil.copytree(group.members[0], tmp_path / "links", copy_function=os.link)
    with pytest.raises(OptionError, match="links: expected each source once, found this one twice"):
        plan(SalvageRequest.of([group.members[0], tmp_path / "links"]))


def test_another_group_is_refused(tmp_path: Path) -> None:
    one, two = generated_group(tmp_path / "one", 1), generated_group(tmp_path / "two", 3)
    with pytest.raises(StoreError, match="it is of another group: leave it out"):
        plan(SalvageRequest.of([one.members[0], two.members[0]]))
    with pytest.raises(OptionError, match="expected each source once"):
        plan(SalvageRequest.of([one.members[0], one.members[0]]))


def test_config_is_the_first_intact_one(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    for member, text in zip(group.members, ("{broken", '{"of": 1}', '{"of": 2}'), strict=True):
        (member / "config").mkdir()
        (member / "config/topics.json").write_text(text)
    for member in group.members:
        shutil.rmtree(member / "compaction", ignore_errors=True)
    (group.members[1] / "compaction/compactionLog/Compacted").mkdir(parents=True)
    (group.members[2] / "compaction/compactionLog").mkdir(parents=True)
    report = salvage(SalvageRequest.of(group.members), tmp_path / "result")
    wanted = f"compaction/compactionLog is not salvaged: if the broker needs it, copy {group.members[1]}/compaction"
    assert any(note.startswith(wanted) for note in report.notes)
    assert (tmp_path / "result/config/topics.json").read_text() == '{"of": 1}'
    term = read_current_term(tmp_path / "result/dledger-n0")
    assert term == read_current_term(group.members[0] / "dledger-n0")


@pytest.mark.parametrize("case", ["mq-plain", "mq-53-upgrade"])
def test_commit_logs_without_dledger(tmp_path: Path, case: str) -> None:
    root = unpack(case, tmp_path)
    members = [copy_tree(root, tmp_path / f"m{number}") for number in range(3)]
    for number, member in enumerate(members):
        for file in sorted((member / "commitlog").iterdir())[number : number + 1]:
            file.write_bytes(file.read_bytes()[:5000] + bytes(file.stat().st_size - 5000))
    report = salvage(SalvageRequest.of(members, undecided="majority"), tmp_path / "result")
    assert (report.lost, report.findings) == (0, ())
    for folder in ("commitlog", "consumequeue"):
        for file in (root / folder).rglob("*"):
            if file.is_file():
                assert (tmp_path / "result" / file.relative_to(root)).read_bytes() == file.read_bytes(), file


def test_epochs_of_controller_mode(tmp_path: Path) -> None:
    root = unpack("mq-53-controller", tmp_path)
    for name in ("b1", "b2"):
        request = SalvageRequest.of([root / "b1", root / "b2", root / "b3"], log_of=str(root / name))
        assert salvage(request, tmp_path / name).findings == ()
        written, original = (each / "epochFileCheckpoint" for each in (tmp_path / name, root / name))
        assert written.read_bytes() == original.read_bytes()
    for file in root.glob("b2/epochFileCheckpoint*"):
        file.write_text("1\n7\n")
    salvage(SalvageRequest.of([root / "b2", root / "b3"]), tmp_path / "other")
    assert (tmp_path / "other/epochFileCheckpoint").read_bytes() == written.read_bytes()
    report = salvage(SalvageRequest.of([root / "b2", root / "b1"], log_of=str(root / "b2")), tmp_path / "none")
    assert any(note.startswith("epochFileCheckpoint is damaged in all sources") for note in report.notes)


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_backup_of_the_epochs_can_lack_the_last_one_that_other_members_of_the_log_have(
    tmp_path: Path, is_chosen: bool
) -> None:
    root = unpack("mq-53-controller", tmp_path)
    original = (root / "b2/epochFileCheckpoint").read_bytes()
    epochs, _ = read_epochs(root / "b2")
    (root / "b2/epochFileCheckpoint").write_bytes(b"#" + original)
    (root / "b2/epochFileCheckpoint.bak").write_bytes(encode_epochs(epochs[:-1]))
    sources = [root / "b2", root / "b3", *([root / "b1"] if is_chosen else [])]
    salvage(SalvageRequest.of(sources, log_of=str(root / "b2") if is_chosen else None), tmp_path / "result")
    assert (tmp_path / "result/epochFileCheckpoint").read_bytes() == original


@pytest.mark.parametrize("has_queues", [True, False])
def test_all_of_a_salvaged_log_of_controller_mode_is_confirmed(tmp_path: Path, has_queues: bool) -> None:
    """Else a broker reads the log from its start, and rejects messages whose topic has more than 127 bytes."""
    root = unpack("mq-53-controller", tmp_path)
    for name in ("b2", "b3"):
        if not has_queues:
            shutil.rmtree(root / name / "consumequeue")
    salvage(SalvageRequest.of([root / "b2", root / "b3"]), tmp_path / "result")
    log = StoreView(str(tmp_path / "result"), ReadOptions())
    assert any(row["messageMagic"] == MESSAGE_MAGIC_V2 for row in rows_of(open_log(log.path).scan()))
    end = log.max_offset
    for version in ("5.1.4", "5.3.3", "5.5.0"):
        found = preview_plain(log, version)
        assert (found.outcome, found.max_phy_offset, found.confirm_offset) == ("loads", end, end), version
    assert queued(tmp_path / "result")


def test_diverged_commit_logs_are_not_mixed(tmp_path: Path) -> None:
    def group(seed: int, common: int) -> list[Any]:
        bodies = [b"%d" % number for number in range(common)] + [b"%d of %d" % (n, seed) for n in range(20)]
        return [mq_message(body=body.ljust(300 + seed, b"x"), queue_offset=n) for n, body in enumerate(bodies)]

    for seed in range(2):
        messages = group(0, 10)[:10] + group(seed, 10)[10:]
        write_commitlog(tmp_path / f"m{seed}", messages, file_size=4096)
    members = [tmp_path / "m0", tmp_path / "m1"]
    with pytest.raises(StoreError, match=r"nothing tells which one the last master wrote\. Choose the one to restore"):
        plan(SalvageRequest.of(members))
    for number, member in enumerate(members):
        target = tmp_path / f"result{number}"
        salvage(SalvageRequest.of(members, log_of=str(member)), target)
        for file in (member / "commitlog").iterdir():
            assert (target / "commitlog" / file.name).read_bytes() == file.read_bytes()
    write_commitlog(tmp_path / "short", group(0, 10)[:8], file_size=4096)
    with pytest.raises(StoreError, match="short ends before the others diverged"):
        plan(SalvageRequest.of([*members, tmp_path / "short"], log_of=str(tmp_path / "short")))


@pytest.mark.parametrize("case", ["mq-53-three", "mq-53-upgrade"])
def test_a_result_without_dledger(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack(case, tmp_path)
    members = [root] if case == "mq-53-upgrade" else [root / name for name in ("n0", "n1", "n2")]
    wanted = queued(members[0])
    for number, member in enumerate(members[:2]):
        for file in list(member.glob("dledger-*/data/*"))[number : number + 1] if len(members) > 1 else ():
            file.write_bytes(file.read_bytes()[:7000] + bytes(file.stat().st_size - 7000))
    target = tmp_path / "deep/result"
    paths = [str(member) for member in members]
    assert main(["salvage", *paths, "--to", str(target), "--as", "commitlog", "--undecided", "majority"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "lost for good: nothing"
    assert "  enableDLegerCommitLog=false" in printed
    assert sorted(path.name for path in target.parent.iterdir()) == ["result"]
    assert not list(target.glob("dledger-*"))
    assert queued(target) == wanted
    assert (findings(target), audit(target)) == ([], [])
    assert main(["salvage", *paths, "--to", str(target), "--as", "commitlog"]) == 2
    assert "found a finished salvage or export" in capsys.readouterr().err


def queued(root: Path) -> dict[Any, Any]:
    """The messages of a store by queue and queue offset."""
    columns = ("topic", "queueId", "queueOffset", "body", "storeTimestamp")
    rows = rows_of(open_log(root).scan(columns=columns))
    return {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows if row["topic"] is not None}


def test_a_result_without_dledger_has_fillers_and_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    for member in range(3):
        lose(group, member, [50, 51])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    request = SalvageRequest.of(group.members, store_as="commitlog")
    for function in ("export", "_converted_report"):
        with monkeypatch.context() as patched:
            patched.setattr(f"pyspark_dledger.rocketmq.salvage.salvage_job.{function}", interrupted)
            with pytest.raises(KeyboardInterrupt):
                salvage(request, tmp_path / "result")
        assert (tmp_path / "result.dledger").is_dir()
    report = salvage(request, tmp_path / "result")
    assert (report.lost, report.findings, (tmp_path / "result.dledger").exists()) == (2, (), False)
    rows = [json.loads(line) for line in (tmp_path / "result/lost.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [50, 51]
    assert {"pos" in row or row["sourcePos"] is None for row in rows} == {False}
    topics = [row["topic"] for row in rows_of(open_log(tmp_path / "result").scan(columns=("topic",)))]
    assert topics.count("DLEDGER_LOST") == 2
    assert {row["code"] for row in audit(tmp_path / "result")} <= {"queueOffsetGap"}


def test_topics_from_the_log(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "mq-53-three")
    for member in group.members:
        shutil.rmtree(member / "config", ignore_errors=True)
    report = salvage(SalvageRequest.of(group.members, topics_from_log=True), tmp_path / "result")
    assert any(note.startswith("config/topics.json is built from the log: ") for note in report.notes)
    found = json.loads((tmp_path / "result/config/topics.json").read_text())["topicConfigTable"]
    queues: dict[str, int] = {}
    for topic, queue_id, _ in queued(tmp_path / "result"):
        if topic != "SCHEDULE_TOPIC_XXXX" and not topic.lower().startswith("rmq_sys_"):
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
    assert {name: topic["readQueueNums"] for name, topic in found.items()} == queues
    assert {topic["perm"] for topic in found.values()} == {6}


def test_fillers_split_the_rows_of_a_plan_without_indexes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [mq_message(body=b"%03d" % number * 90, queue_offset=number) for number in range(30)]
    store = write_commitlog(tmp_path / "m0", messages, file_size=4096)
    lost = store.rows[5]
    file = tmp_path / "m0/commitlog" / f"{lost['pos'] // 4096 * 4096:020d}"
    data = file.read_bytes()
    at = lost["pos"] % 4096
    file.write_bytes(data[:at] + bytes(lost["size"]) + data[at + lost["size"] :])
    rows = list(plan_rows(plan(SalvageRequest.of([tmp_path / "m0"]))))
    assert [(row.action, row.pos) for row in rows] == [
        ("copy", 0),
        ("filler", lost["pos"]),
        ("copy", lost["pos"] + lost["size"]),
    ]
    target = str(tmp_path / "new/parents/result")
    assert main(["salvage", str(tmp_path / "m0"), "--to", target]) == 1
    expected = f"lost for good: 1 extent of messages, {lost['size']} bytes: no source has it intact"
    assert capsys.readouterr().out.splitlines()[0] == expected


@pytest.mark.parametrize("how", [["--plan"], ["--to", "new/result"]])
def test_an_interrupt_before_the_first_copy_is_a_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: list[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    group = generated_group(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pyspark_dledger.rocketmq.salvage.salvage_job.plan_salvage", interrupted)
    assert main(["salvage", str(group.members[0]), *how]) == 130
    assert capsys.readouterr().err == "dledger: interrupted: nothing was written\n"
    assert not (tmp_path / "new").exists()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = golden_group(tmp_path, "raw-three")
    lose(group, 0, [5, 6])
    paths = list(map(str, group.members))
    assert main(["salvage", *paths, "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "lost for good: nothing"
    assert lines[1] == "log of n0 (dledger): index 0 to 899, pos 0 to 310651"
    assert [line.split()[6] for line in lines[3:] if line.startswith("copy ")] == ["1", "1", "1"]
    assert main(["salvage", *paths, "--plan", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["firstIndex"], row["lastIndex"], row["donor"]) for row in rows] == [
        (0, 4, "n0"),
        (5, 6, "n1"),
        (7, 899, "n0"),
    ]
    assert main(["salvage", *paths, "--to", str(tmp_path / "result")]) == 0
    printed = capsys.readouterr().out
    assert "read back and verified" in printed
    assert printed.splitlines()[-2] == f"next: dledger check {tmp_path}/result"
    assert main(["salvage", *paths]) == 2
    assert "expected either --to TARGET or --plan" in capsys.readouterr().err


def test_spark_tasks_do_the_same(tmp_path: Path, spark: SparkSession) -> None:
    group = golden_group(tmp_path, "raw-three")
    damage(group, 3, 8)
    report = pyspark_dledger.salvage(group.members, tmp_path / "result", spark=spark, undecided="majority")
    assert (report.lost, report.findings) == (0, ())
    assert list(differences(group, tmp_path / "result")) == []


def test_the_order_of_the_sources_chooses_no_donor(tmp_path: Path) -> None:
    for name in ("m0", "m1", "m2"):
        write_commitlog(tmp_path / name, [mq_message("Orders", b"x" * n, queue_offset=n) for n in range(9)])
    paths = [tmp_path / name for name in ("m2", "m0", "m1")]
    found = [[row.donor for row in plan_rows(plan(SalvageRequest.of(order)))] for order in (paths, paths[::-1])]
    assert found == [["m0"], ["m0"]]
