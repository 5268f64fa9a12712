"""Reads with heal=true: the rows are those of a salvage, and nothing is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import MalformedError, OptionError
from pyspark_dledger.format.spec import Filters
from pyspark_dledger.log import open_log
from pyspark_dledger.log.healed_store import open_store
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.salvage.groups import (
    GOLDENS,
    PLAIN_GOLDENS,
    Group,
    change,
    damage,
    generated_group,
    golden_group,
    lose,
    plain_group,
)
from tests.salvage.heal import Row, heal_differences, healed_rows, without
from tests.support.generate import mq_message, rows_of, write_dledger
from tests.support.golden import fingerprint

ENGINES = ("native", "python")

pytestmark = [pytest.mark.usefixtures("no_fsync"), pytest.mark.slow]


def salvaged(group: Group, folder: Path) -> Path:
    salvage(SalvageRequest.of(group.members, undecided="filler"), folder)
    return folder


def plain_rows(path: Path, columns: list[str] | None = None, **options: Any) -> list[Row]:
    return rows_of(open_log(path).scan(columns, **options))


def replicas(group: Group) -> dict[str, str]:
    return {"replicas": json.dumps([str(member) for member in group.members[1:]]), "heal": "true"}


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """Three members of a broker group; the first one lost the entries 5 to 9, 300 and its first file's end."""
    found = golden_group(tmp_path, "mq-53-three")
    lose(found, 0, [5, 6, 7, 8, 9, 300, 511, 512])
    return found


# The rows


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_a_salvage(tmp_path: Path, seed: int, engine: str) -> None:
    group = generated_group(tmp_path, seed)
    damage(group, seed, 10, is_lossless=seed % 2 == 0)
    before = [fingerprint(member) for member in group.members]
    assert list(heal_differences(group.members, salvaged(group, tmp_path / "result"), engine)) == []
    assert [fingerprint(member) for member in group.members] == before


@pytest.mark.parametrize("case", GOLDENS)
def test_rows_of_groups_that_java_wrote(tmp_path: Path, case: str) -> None:
    group = golden_group(tmp_path, case)
    damage(group, 1, 12)
    assert list(heal_differences(group.members, salvaged(group, tmp_path / "result"))) == []


@pytest.mark.parametrize(("case", "engine"), [*zip(PLAIN_GOLDENS, ENGINES, strict=True), ("mq-53-upgrade", "native")])
def test_rows_of_commit_logs_without_dledger(tmp_path: Path, case: str, engine: str) -> None:
    group = plain_group(tmp_path, case)
    damage(group, 3, 8)
    assert list(heal_differences(group.members, salvaged(group, tmp_path / "result"), engine)) == []


def test_a_column_names_the_replica_that_a_row_comes_from(group: Group) -> None:
    rows = healed_rows(group.members, ["index", "healedFrom", "problem"])
    assert [row["index"] for row in rows if row["healedFrom"] == "n1"] == [5, 6, 7, 8, 9, 300, 511, 512]
    assert {row["healedFrom"] for row in rows} == {None, "n1"}
    assert {row["problem"] for row in rows} == {None}
    assert {row["healedFrom"] for row in plain_rows(group.members[0], ["healedFrom"])} == {None}


def test_entries_after_the_end_of_the_first_replica_come_from_others(tmp_path: Path) -> None:
    for node, count in (("n0", 20), ("n1", 30)):
        write_dledger(tmp_path / node, [mq_message("T", b"%d" % n) for n in range(count)], node=node, committed=15)
    rows = healed_rows([tmp_path / "n0", tmp_path / "n1"], ["index", "healedFrom", "committed"])
    assert [row["healedFrom"] for row in rows] == [None] * 20 + ["n1"] * 10
    assert [row["committed"] for row in rows] == [True] * 16 + [False] * 14


# What nobody has


def test_what_nobody_has_stays_as_without_heal(group: Group) -> None:
    for member in range(3):
        lose(group, member, [50, 51, 100])
    lose(group, 0, [52])
    rows = healed_rows(group.members)
    corrupt = [row for row in rows if row["kind"] == "corrupt"]
    plain = [row for row in plain_rows(group.members[0]) if row["kind"] == "corrupt"]
    extents = {extent.index: extent for extent in group.extents}
    assert corrupt[1] in plain
    first = next(row for row in plain if row["pos"] == corrupt[0]["pos"])
    assert first["size"] == corrupt[0]["size"] + extents[52].size
    assert corrupt[0] == {**first, "size": extents[50].size + extents[51].size}
    assert [row["index"] for row in rows if row["kind"] != "corrupt"] == [
        extent.index for extent in group.extents if extent.index not in (50, 51, 100)
    ]
    for columns in (["size"], ["size", "kind"], ["kind"], ["pos"]):
        assert healed_rows(group.members, columns) == [{name: row[name] for name in columns} for row in rows]


def test_a_file_that_nobody_has_is_one_corrupt_row(tmp_path: Path) -> None:
    payloads = [mq_message("T", bytes(600), queue_offset=number) for number in range(24)]
    members = [tmp_path / node for node in ("n0", "n1")]
    for member in members:
        write_dledger(member, payloads, node=member.name)
        (member / f"dledger-{member.name}/data/{4096:020d}").unlink()
    rows = healed_rows(members, ["kind", "pos", "size", "segment", "problem", "healedFrom"])
    plain = plain_rows(members[0], ["kind", "pos", "size", "segment", "problem", "healedFrom"])
    assert [row["kind"] for row in rows] == [row["kind"] for row in plain]
    (found,) = [row for row in rows if row["kind"] == "corrupt"]
    assert (found["pos"], found["segment"]) == (4096, f"{4096:020d}")
    assert found["problem"].endswith("found no file")


def test_entries_of_a_diverged_tail_are_not_in_the_place_of_lost_ones(tmp_path: Path) -> None:
    def write(node: str, term: int, count: int) -> Path:
        bodies = [b"common %d" % number for number in range(10)]
        bodies += [b"%d of term %d" % (number, term) for number in range(count)]
        payloads = [mq_message("T", body, queue_offset=number) for number, body in enumerate(bodies)]
        terms = [1] * 10 + [term] * count
        write_dledger(tmp_path / node, payloads, node=node, terms=terms, committed=9)
        return tmp_path / node

    members = [write("n0", 1, 8), write("n1", 2, 15), write("n2", 2, 15)]
    lost = plain_rows(members[1], ["index", "pos", "size"])[13]
    for member in members[1:]:
        change(member, lost["pos"], bytes(lost["size"]))
    rows = healed_rows(members, ["index", "term", "kind", "pos", "size", "healedFrom"])
    assert [row["term"] for row in rows] == [1] * 10 + [2] * 3 + [None] + [2] * 11
    assert rows[13] == {**lost, "index": None, "term": None, "kind": "corrupt", "healedFrom": None}
    assert {row["healedFrom"] for row in rows[10:] if row["kind"] == "message"} == {"n1"}


def test_copies_that_differ_without_a_checksum_have_a_problem(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    extent = group.extents[7]
    change(group.members[0], extent.pos + 60, b"XY")
    text = "copies differ: n0 and n1+n2, and nothing shows that one is right"
    rows = healed_rows(group.members, ["index", "kind", "problem", "healedFrom"])
    assert [row for row in rows if row["problem"]] == [
        {"index": 7, "kind": "entry", "problem": text, "healedFrom": None}
    ]
    kept = healed_rows(group.members, ["index"], mode="DROPMALFORMED")
    assert kept == [{"index": row["index"]} for row in rows if row["index"] != 7]
    with pytest.raises(MalformedError, match="copies differ"):
        healed_rows(group.members, ["index"], mode="FAILFAST")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_header_that_all_lost_is_restored_from_its_index_unit(group: Group, engine: str) -> None:
    for member in range(3):
        lose(group, member, [60], size=48)
    rows = healed_rows(group.members, includeEntryBody=True, engine=engine)
    original = plain_rows(group.original, includeEntryBody=True, engine=engine)
    assert without(rows, []) == without(original, [])
    assert rows[60]["healedFrom"] == "n0"
    assert healed_rows(group.members, ["index"], startingOffsets=60, endingOffsets=62) == [{"index": 60}, {"index": 61}]


# Plans, filters and columns


@pytest.mark.parametrize(
    ("options", "engine"),
    [({"minPartitions": 2}, "native"), ({"minPartitions": 40}, "python"), ({"maxPartitionBytes": 1000}, "native")],
)
def test_any_number_of_partitions_gives_the_same_rows(group: Group, options: dict[str, int], engine: str) -> None:
    for member in range(3):
        lose(group, member, [50, 51, 310])
        lose(group, member, [60], size=48)
    expected = healed_rows(group.members, engine=engine)
    assert healed_rows(group.members, engine=engine, **options) == expected
    log = open_log(group.members[0], replicas=list(map(str, group.members[1:])), heal=True, engine=engine)
    parsed = parse_options({"heal": True, "replicas": group.members[1:], "engine": engine, **options})
    assert len(log.plan(("pos",), parsed, Filters())) >= options.get("minPartitions", 100)


FILTERS: list[dict[str, Any]] = [
    {"topic": "OrderTopic"},
    {"queueId": "1,2"},
    {"tags": "TagA"},
    {"startingOffsets": 7, "endingOffsets": 302},
    {"startingOffsets": {"pos": 5000}, "endingOffsets": {"pos": 300000}},
    {"isolationLevel": "read_committed"},
    {"committedBound": 8},
    {"committedBound": "end"},
    {"verifyCrc": False, "maxBatchRows": 3},
]


@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filters_and_ranges_are_those_of_the_salvaged_store(group: Group, options: dict[str, Any]) -> None:
    expected = plain_rows(group.original, **options)
    assert without(healed_rows(group.members, **options), []) == without(expected, [])


def test_one_column_is_that_of_all_columns(group: Group) -> None:
    rows = healed_rows(group.members)
    for name in ("index", "healedFrom", "body", "segment"):
        assert healed_rows(group.members, [name]) == [{name: row[name]} for row in rows]


def test_undamaged_replicas_are_read_from_the_first(tmp_path: Path) -> None:
    group = golden_group(tmp_path, "raw-three")
    assert healed_rows(group.members) == plain_rows(group.members[0])


# Refusals


def test_heal_needs_replicas_and_is_the_only_proof(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    path, others = str(group.members[0]), [str(group.members[1])]
    with pytest.raises(OptionError, match="option heal has no effect without option replicas: give the replicas as"):
        open_log(path, heal=True)
    for name, value in (("groupSize", 3), ("committedBound", "quorum")):
        with pytest.raises(OptionError, match=f"option {name} has no effect with option heal"):
            open_log(path, heal=True, replicas=others, **{name: value})
    with pytest.raises(OptionError, match="found this one twice"):
        healed_rows([group.members[0], group.members[0]])
    assert main(["dump", path, "-o", "heal=true"]) == 2
    assert "option heal has no effect without option replicas" in capsys.readouterr().err
    follow = "dledger follow, which reads one store while it grows: heal in a batch read, such as dledger dump"
    for verb, text in (("follow", follow), ("state", "table state, only on table log")):
        assert main([verb, path, *others, "-o", "heal=true"]) == 2
        assert f"option heal has no effect on {text}" in capsys.readouterr().err


# Command line, exports, Spark


def test_dump_and_stats_heal(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    paths = list(map(str, group.members))
    assert main(["dump", *paths]) == 1
    capsys.readouterr()
    assert main(["dump", *paths, "-o", "heal=true", "--columns", "index,healedFrom", "--from", "4", "--to", "6"]) == 0
    assert capsys.readouterr().out.splitlines() == ["index=4", "index=5 healedFrom=n1"]
    for given in (paths, [paths[0], "-o", f"replicas={','.join(paths[1:])}"]):
        assert main(["stats", *given, "-o", "heal=true"]) == 0
        assert "611" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["index", "queueOffset", "key"])
def test_find_heals(group: Group, capsys: pytest.CaptureFixture[str], what: str) -> None:
    row = plain_rows(group.original, ["index", "keys", "topic", "queueId", "queueOffset"])[300]
    what = {"key": row["keys"].split()[0], "index": "300"}.get(
        what, f"{row['topic']}/{row['queueId']}/{row['queueOffset']}"
    )
    arguments = ["find", *map(str, group.members), what, "--columns", "index,healedFrom", "-o", "heal=true"]
    assert main(arguments) == 0
    assert "index=300 healedFrom=n1" in capsys.readouterr().out.splitlines()


EXPORTS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda folder: [
        {name: value for name, value in json.loads(line).items() if name != "healedFrom"}
        for file in sorted(folder.glob("part-*.jsonl"))
        for line in file.read_text().splitlines()
    ],
    "commitlog": lambda folder: {file.name: file.read_bytes() for file in (folder / "commitlog").iterdir()},
    "parquet": lambda folder: sorted(
        ds.dataset(folder, partitioning="hive").to_table(columns=["index", "topic", "body"]).to_pylist(),
        key=lambda row: row["index"],
    ),
}


@pytest.mark.parametrize(("form", "preserve"), [*((form, False) for form in EXPORTS), ("commitlog", True)])
def test_exports_are_those_of_the_undamaged_store(tmp_path: Path, group: Group, form: str, preserve: bool) -> None:
    options = {"preserveOffsets": "true"} if preserve else {}
    for member in range(3):
        lose(group, member, [60], size=48)
    report = dl.export(group.members[0], tmp_path / "healed", form, **replicas(group), **options)
    dl.export(group.original, tmp_path / "expected", form, **options)
    assert (report.problems, report.skipped, report.lost) == (0, 0, 0)
    assert EXPORTS[form](tmp_path / "healed") == EXPORTS[form](tmp_path / "expected")


def test_an_export_is_not_continued_with_other_replicas(group: Group) -> None:
    options = parse_options(replicas(group))
    first = [repr(segment.file) for segment in open_store(str(group.members[0]), options).segments]
    lose(group, 0, [20])
    assert [repr(segment.file) for segment in open_store(str(group.members[0]), options).segments] != first


def test_spark_heals(tmp_path: Path, group: Group, spark: SparkSession) -> None:
    for member in range(3):
        lose(group, member, [60], size=48)
        lose(group, member, [100])
    paths = list(map(str, group.members))
    reader = spark.read.format("dledger").option("heal", "true").option("minPartitions", "5")
    frame = reader.load(paths)
    found = [row.asDict() for row in frame.select("index", "kind", "healedFrom", "topic").collect()]
    assert found == healed_rows(group.members, ["index", "kind", "healedFrom", "topic"])
    assert frame.where("healedFrom = 'n1' and index < 10").count() == 5
    assert "healedFrom" in spark.read.format("dledger").load(paths[0]).columns
    with pytest.raises(Exception, match="option heal has no effect on a stream"):
        spark.readStream.format("dledger").option("heal", "true").load(paths[0]).writeStream.format(
            "noop"
        ).start().processAllAvailable()
    with pytest.raises(Exception, match="heal"):
        frame.select("body").write.format("dledger").mode("append").option("heal", "true").save(str(tmp_path / "new"))
    shutil.rmtree(group.members[2])
