"""Exports to Parquet and JSON lines have the rows of the log table; an export rejects, continues and verifies."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import DiskFullError, MalformedError, OptionError, StoreError, StoreInUseError
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.log.io import remote_reads
from pyspark_dledger.rocketmq.export import export, row_files
from pyspark_dledger.rocketmq.export.row_files import NULL_PARTITION
from pyspark_dledger.rocketmq.jobs import map_here
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile
from pyspark_dledger.rocketmq.jobs.target_folder import PARQUET_MANIFEST, new_file, read_manifest
from pyspark_dledger.spark.tasks import map_on
from tests.support import golden
from tests.support.attempts import run_at_once
from tests.support.damage import flip, write_at
from tests.support.generate import Store, mq_message, raw, rows_of, write_dledger
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.slow

CASES = ("mq-53-upgrade", "mq-498-upgrade-killed", "mq-53-retention", "mq-plain-crc", "raw-expired")
FORMS = ("parquet", "jsonl")
INVISIBLE = ("erased\x9b2K", "txt\u202egpj")
HOSTILE = (
    *("../../escaped", "/etc/x", "a/b\\c", "..", ".", "a%2Fb", "a=b", "new\nline", "x\x00y", "主题", " lead"),
    *("q\"'#*?\x7f", "_hidden", NULL_PARTITION, "007", "{[^]}", *INVISIBLE),
)
TOO_LONG = "t" * 250
PARTITIONING = ds.partitioning(pa.schema([("topic", pa.string()), ("day", pa.date32())]), flavor="hive")
SMALL = {"maxPartitionBytes": "65536"}
# Is killed after the third file is written, before it has its name.
KILLED = """
import os, signal, sys
from pyspark_dledger.rocketmq.export import export, row_files
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile
count = 0
def dying(call):
    def called(*args):
        global count
        call(*args)
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    return called
row_files.sync_file, DirectFile.finish = dying(row_files.sync_file), dying(DirectFile.finish)
export(sys.argv[1], sys.argv[2], sys.argv[3], maxPartitionBytes=4096)
"""
# The system limits the size of files for this process.
LIMITED = """
import resource, sys
from pyspark_dledger.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60000, resource.RLIM_INFINITY))
sys.exit(main(["export", *sys.argv[1:]]))
"""


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def files_of(folder: Path) -> dict[str, bytes]:
    """The exported files, without the state of the export."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != "export.parquet")
    return {str(name): (folder / name).read_bytes() for name in names if not name.parts[0].startswith("_export")}


def names_of(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*")}


def parquet_rows(target: Path) -> list[dict[str, Any]]:
    """The rows of all files in the order of the log, with the topic from the path."""
    table = (
        ds.dataset(target, partitioning=PARTITIONING)
        .to_table()
        .sort_by([("source", "ascending"), ("pos", "ascending")])
    )
    return rows_of(table.drop_columns("day").select(DEFAULT_NAMES).to_batches())


def log_rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    return rows_of(dl.open_log(path).scan(**options))


def is_too_long(row: dict[str, Any]) -> bool:
    return row["topic"] is not None and len(row["topic"].encode()) > 249


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three segments: messages of two topics, entries, and a noop."""
    payloads = [mq_message("Orders", b"body %d" % i) if i % 3 else mq_message("Pay", b"x" * i) for i in range(40)]
    return write_dledger(tmp_path / "source", [*payloads, raw(b"plain"), raw(b"", "noop")], committed=35)


@pytest.fixture
def hostile(tmp_path: Path) -> Store:
    topics = [topic for topic in (*HOSTILE, "", TOO_LONG) for _ in range(2)]
    return write_dledger(tmp_path / "hostile", [mq_message(topic, b"body") for topic in topics], file_size=1 << 16)


@pytest.fixture
def damaged(tmp_path: Path) -> Store:
    made = write_dledger(tmp_path / "damaged", [mq_message("Orders", b"body of it"), raw(b"entry")] * 8)
    with Path(made.segments[0].path).open("r+b") as file:
        file.seek(made.rows[4]["pos"] + 57)  # the message's CRC
        file.write(b"\x01\x02\x03")
        file.seek(made.rows[7]["pos"])  # a header
        file.write(b"\xff\xee")
    return made


# Contents.


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_parquet_has_the_rows_of_the_log(case: str, case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    path = case_folder(case) / next(each.folder for each in golden.ALL if each.case == case)
    report = export(path, tmp_path / "out", "parquet")
    rows = log_rows(path)
    kept = [row for row in rows if not is_too_long(row)]
    assert parquet_rows(tmp_path / "out") == sorted(kept, key=lambda row: (row["source"], row["pos"]))
    assert (report.rows, report.skipped) == (len(kept), len(rows) - len(kept))
    assert len(report.first_skipped) == report.skipped


@pytest.mark.parametrize(
    ("case", "compression"), [*((case, "none") for case in CASES), (CASES[0], "gzip"), (CASES[0], "zstd")]
)
def test_json_lines_are_those_of_dump(
    case: str,
    compression: str,
    case_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = case_folder(case) / next(each.folder for each in golden.ALL if each.case == case)
    report = export(path, tmp_path / "out", "jsonl", compression=compression, **SMALL)
    names = sorted((tmp_path / "out").glob("part-*"))
    streams = [pa.input_stream(str(name), compression=None if compression == "none" else compression) for name in names]
    text = b"".join(stream.read() for stream in streams).decode()
    main(["dump", "--json", str(path)])
    assert text == capsys.readouterr().out
    assert text.count("\n") == report.rows


@pytest.mark.parametrize("form", FORMS)
def test_columns_and_filters_choose_what_is_exported(form: str, store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(store.path, target, form, columns="pos,topic,body", topic="Orders", isolationLevel="read_committed")
    wanted = [(row["pos"], "Orders", row["body"]) for row in store.rows[:36] if row["topic"] == "Orders"]
    if form == "parquet":
        table = ds.dataset(target, partitioning=PARTITIONING).to_table()
        assert table.schema.names == ["pos", "body", "topic", "day"]
        assert sorted(zip(*(table[name].to_pylist() for name in ("pos", "topic", "body")), strict=True)) == wanted
    else:
        rows = [json.loads(line) for line in (target / "part-00000.jsonl").read_text().splitlines()]
        assert [(row["pos"], row["topic"]) for row in rows] == [row[:2] for row in wanted]
        assert [list(row) for row in rows] == [["pos", "topic", "body"]] * len(rows)


def test_rows_after_the_committed_bound_are_exported_and_noted(store: Store, tmp_path: Path) -> None:
    report = export(store.path, tmp_path / "all", "jsonl")
    assert (report.rows, report.committed_index, report.beyond_committed) == (42, 35, 6)
    assert "6 entries after the committed index 35" in report.notes[0]
    report = export(store.path, tmp_path / "committed", "jsonl", isolationLevel="read_committed")
    assert (report.rows, report.beyond_committed, report.notes) == (36, 0, ())


@pytest.mark.parametrize(("start", "end", "beyond"), [(0, 30, 0), (10, 40, 4), (36, 42, 6), (40, 42, 2)])
def test_rows_after_the_committed_bound_are_counted_in_the_exported_range(
    start: int, end: int, beyond: int, store: Store, tmp_path: Path
) -> None:
    report = export(store.path, tmp_path / "out", "jsonl", startingOffsets=start, endingOffsets=end)
    assert (report.rows, report.beyond_committed) == (end - start, beyond)


def test_positions_limit_the_export(store: Store, tmp_path: Path) -> None:
    positions = {
        "startingOffsets": {"pos": store.rows[3]["pos"] - 1},
        "endingOffsets": {"pos": store.rows[20]["pos"] + 1},
    }
    export(store.path, tmp_path / "out", "jsonl", columns=["index"], **positions)
    rows = map(json.loads, (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines())
    assert [row["index"] for row in rows] == list(range(3, 21))
    for column in ("body", "problem"):
        assert export(store.path, tmp_path / column, "parquet", columns=column).rows == 42
    with pytest.raises(StoreError, match="the options choose no rows"):
        export(store.path, tmp_path / "none", "jsonl", startingOffsets=42)
    assert not (tmp_path / "none").exists()


def test_damage_is_exported_as_it_is_read(damaged: Store, tmp_path: Path) -> None:
    rows = log_rows(damaged.path)
    assert [row["problem"] is not None for row in rows].count(True) == 2
    assert export(damaged.path, tmp_path / "out", "parquet").problems == 2
    assert parquet_rows(tmp_path / "out") == rows
    report = export(damaged.path, tmp_path / "dropped", "parquet", mode="DROPMALFORMED")
    assert (report.rows, report.problems) == (len(rows) - 2, 0)
    for form in FORMS:
        with pytest.raises(MalformedError):
            export(damaged.path, tmp_path / form, form, mode="FAILFAST")


@pytest.mark.parametrize("form", FORMS)
def test_rows_with_a_problem_are_counted(
    form: str, damaged: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(damaged.path), str(tmp_path / "out"), "--to", form, "--columns", "pos"]
    assert main(command) == 1
    assert "\nrows with a problem: 2, " in capsys.readouterr().out
    if form == "jsonl":
        lines = (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [{"pos": row["pos"]} for row in log_rows(damaged.path)]
    assert main([*command[:2], str(tmp_path / "json"), *command[3:], "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == 2
    assert main([*command[:2], str(tmp_path / "dropped"), *command[3:], "-o", "mode=DROPMALFORMED"]) == 0
    assert "rows with a problem" not in capsys.readouterr().out


@pytest.mark.parametrize("form", FORMS)
def test_filters_that_no_row_passes_are_listed(
    form: str, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["export", str(store.path), str(tmp_path / "out"), "--to", form, "--topic", "Ordres"]
    assert main([*command, "-o", "queueId=0,1", "-o", "startingTimestamp=1000"]) == 1
    said = capsys.readouterr().out
    assert "note: no row passed the filters: topic=Ordres, queueId=0,1, startingTimestamp; " in said


def test_hostile_topics_stay_in_the_target(hostile: Store, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if "out" not in path.parts}
    report = export(hostile.path, tmp_path / "out", "parquet")
    assert {path for path in tmp_path.rglob("*") if "out" not in path.relative_to(tmp_path).parts} == before
    found = [row["topic"] for row in parquet_rows(tmp_path / "out")]
    # pyarrow reads a topic of that name as null, Spark does not.
    wanted = [None if topic in ("", NULL_PARTITION) else topic for topic in (*HOSTILE, "") for _ in range(2)]
    assert found == wanted
    assert report.skipped == 2
    assert "the folder of the topic has a name of 256 bytes, at most 255 fit" in report.first_skipped[0]
    assert report.notes == (
        f"without a topic, or with an empty one, 2 rows are in the partition {NULL_PARTITION}, which is read as null",
        "4 rows have a topic with invisible characters, which Spark reads as others: use option flat",
    )
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert all(map(str.isprintable, names))
    assert {"topic=erased%C2%9B2K", "topic=txt%E2%80%AEgpj"} < set(names)
    with pytest.raises(MalformedError, match="a name of 256 bytes"):
        export(hostile.path, tmp_path / "failfast", "parquet", mode="FAILFAST")


def test_without_folders_all_topics_are_there(hostile: Store, tmp_path: Path) -> None:
    report = export(hostile.path, tmp_path / "out", "parquet", flat=True, **SMALL)
    assert list(files_of(tmp_path / "out")) == ["part-00000.parquet"]
    assert rows_of(pq.read_table(tmp_path / "out").to_batches()) == log_rows(hostile.path)
    assert (report.skipped, report.notes) == (0, ())
    assert export(hostile.path, tmp_path / "topics", "parquet", flat=True, columns="topic").rows == report.rows


def test_many_topics_need_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_MAX_OPEN_FILES", 2)
    monkeypatch.setattr(row_files, "_MAX_BUFFERED_BYTES", 1)
    made = write_dledger(tmp_path / "source", [mq_message(f"T{i % 5}", b"b%d" % i) for i in range(30)])
    report = export(made.path, tmp_path / "out", "parquet", maxBatchRows=10)
    assert parquet_rows(tmp_path / "out") == log_rows(made.path)
    assert report.files > 5
    assert any(name.endswith("/part-00000-1.parquet") for name in files_of(tmp_path / "out"))


def test_days_are_in_utc_and_null_if_there_is_none(tmp_path: Path) -> None:
    day = 24 * 3600 * 1000
    times = [0, day - 1, day, -1, 253402300800000]
    made = write_dledger(tmp_path / "source", [mq_message("T", b"b", store_timestamp=time) for time in times])
    export(made.path, tmp_path / "out", "parquet")
    names = sorted(path.parent.name for path in (tmp_path / "out").rglob("part-*.parquet"))
    assert names == ["day=1969-12-31", "day=1970-01-01", "day=1970-01-02", f"day={NULL_PARTITION}"]


def test_a_remote_store_is_exported_as_a_local_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fs.SubTreeFileSystem(str(store.path), fs.LocalFileSystem())
    monkeypatch.setattr(remote_reads, "_file_system", lambda _store, _pid: (system, ""))
    for form in FORMS:
        here, there = tmp_path / f"{form}-here", tmp_path / f"{form}-there"
        export(store.path, here, form, maxPartitionBytes=4096)
        with pytest.raises(KeyboardInterrupt):
            export("hdfs://user:secret@host/bucket", there, form, run=first_only, maxPartitionBytes=4096)
        report = export("hdfs://user:secret@host/bucket", there, form, maxPartitionBytes=4096)
        assert (report.source, report.resumed) == ("hdfs://***@host/bucket", 1)
        assert files_of(there) == files_of(here)
        manifest = read_manifest(there)
        assert manifest is not None
        assert manifest["report"]["rows"] == report.rows
        assert "secret" not in str(manifest)


# Rejected.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "csv"}, "expected a form to export to, found csv: commitlog: .*parquet: .*jsonl: "),
        ({"nonsense": 1}, "unknown option nonsense: "),
        ({"colums": "pos"}, "the nearest of an export is columns"),
        ({"table": "state"}, "option table has no effect on an export to parquet"),
        (
            {"maxBytesPerTrigger": "1m"},
            "option maxBytesPerTrigger has no effect on an export to p.*, only on a stream",
        ),
        ({"columns": "pos,nope"}, "unknown column nope"),
        ({"columns": "topic"}, "expected another column than topic"),
        ({"preserveOffsets": True}, "option preserveOffsets is only for an export to commitlog, not to parquet"),
        ({"compression": "lzo"}, "option compression: expected none, gzip or zstd, found 'lzo'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str, store: Store, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        export(store.path, tmp_path / "out", **{"to": "parquet", **options})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", FORMS)
def test_only_new_or_empty_folders_are_written(form: str, store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "mine").touch()
    with pytest.raises(StoreError, match="expected a new or empty folder, found mine: name another folder"):
        export(store.path, target, form)
    with pytest.raises(StoreError, match="expected a new or empty folder, found a file"):
        export(store.path, target / "mine", form)
    assert os.listdir(target) == ["mine"]
    (target / "mine").unlink()
    export(store.path, target, form)
    before = golden.fingerprint(target)
    with pytest.raises(StoreError, match=r"found a finished export of .*source: name another folder"):
        export(store.path, target, form)
    assert golden.fingerprint(target) == before


def test_the_target_must_be_outside_the_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.path / "dledger-n0" / "data")
    for target in (store.path, store.path / "new", tmp_path / "link" / "new"):
        with pytest.raises(StoreError, match=r"the target is in the store .*: name another folder"):
            export(store.path, target, "jsonl")
    replica = write_dledger(tmp_path / "other", [], node="n1").path / "dledger-n1"
    with pytest.raises(StoreError, match=r"the target is in the store .*dledger-n1"):
        export(store.path, replica / "new", "jsonl", replicas=str(replica))
    with pytest.raises(StoreError, match="expected a new or empty folder, found link, other, source"):
        export(store.path, tmp_path, "jsonl")
    with pytest.raises(OptionError, match="target s3://bucket/key: expected a local folder to write to, found a URI"):
        export(store.path, "s3://bucket/key?secret_key=x", "jsonl")
    with pytest.raises(OptionError, match="expected a folder to write to, found an empty path"):
        export(store.path, "", "jsonl")


def test_one_export_at_a_time(store: Store, tmp_path: Path) -> None:
    def meanwhile(work: Any, parts: Any) -> Iterator[Any]:
        with pytest.raises(StoreInUseError, match="another export is writing to this folder"):
            export(store.path, tmp_path / "out", "jsonl")
        return map_here(work, parts)

    assert export(store.path, tmp_path / "out", "jsonl", run=meanwhile).rows == 42


# Continued.


def first_only(work: Any, parts: Any) -> Iterator[Any]:
    """Runs the first part, then is interrupted as by Ctrl-C."""
    yield work(parts[0])
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_killed_export_is_continued(form: str, tmp_path: Path) -> None:
    payloads = [mq_message(("Orders", "Pay")[i % 2], b"body %d" % i) for i in range(90)]
    path = write_dledger(tmp_path / "source", payloads).path
    whole = export(path, tmp_path / "whole", form, maxPartitionBytes=4096)
    assert whole.parts == 4
    run = python(KILLED, path, tmp_path / "out", form)
    assert run.returncode == -9, run.stderr
    left = files_of(tmp_path / "out")
    assert left.items() < files_of(tmp_path / "whole").items(), "a file with its name is complete"
    resumed = export(path, tmp_path / "out", form, maxPartitionBytes=4096)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert (resumed.rows, resumed.files, resumed.bytes) == (whole.rows, whole.files, whole.bytes)
    assert resumed.resumed == {"jsonl": 2, "parquet": 1}[form]
    assert names_of(tmp_path / "out") == names_of(tmp_path / "whole")


@pytest.mark.parametrize("form", FORMS)
def test_concurrent_attempts_at_a_part_are_safe(form: str, store: Store, tmp_path: Path) -> None:
    """Spark starts a slow task a second time."""
    report = export(store.path, tmp_path / "twice", form, run=run_at_once, maxPartitionBytes=4096)
    export(store.path, tmp_path / "once", form, maxPartitionBytes=4096)
    assert report.rows == 42
    assert files_of(tmp_path / "twice") == files_of(tmp_path / "once")


def test_a_part_whose_file_is_missing_is_written_again(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export(store.path, target, "jsonl", run=first_only, maxPartitionBytes=4096)
    (target / "part-00000.jsonl").unlink()
    assert export(store.path, target, "jsonl", maxPartitionBytes=4096).resumed == 0
    assert sum(text.count(b"\n") for text in files_of(target).values()) == 42


def test_only_the_same_export_is_continued(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export(store.path, target, "jsonl", run=first_only)
    for form, options, message in (
        ("parquet", {}, "the interrupted export has the form 'jsonl', this one 'parquet'"),
        (
            "jsonl",
            {"topic": "Pay"},
            "has the options topic None, this one topic .*'Pay'.*: use the same to continue it",
        ),
        ("jsonl", {"compression": "gzip"}, "options compression None, this one compression 'gzip'"),
    ):
        with pytest.raises(StoreError, match=message):
            export(store.path, target, form, **options)


def test_a_damaged_manifest_is_rejected(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export(store.path, target, "jsonl", run=first_only)
    good = json.loads((target / "_export.json").read_text())
    not_ours = "not a file of a job, or damaged: write to a new folder"
    for text, message in (
        ("{}", "expected version 2, found None"),
        ("[" * 100_000, not_ours),
        (
            json.dumps({name: value for name, value in good.items() if name != "plan"}),
            "the plan of the interrupted export differs",
        ),
        *((json.dumps({**good, "start": bad}), not_ours) for bad in (None, -1, "0", float("inf"), 1 << 70)),
        *((json.dumps({**good, "beyondCommitted": bad}), not_ours) for bad in ("6", [], 1.5)),
        *((json.dumps({**good, "last": {**good["last"], "pos": bad}}), not_ours) for bad in (None, "0", {})),
        (json.dumps({**good, "last": {"position": 0}}), not_ours),
    ):
        (target / "_export.json").write_text(text)
        with pytest.raises(StoreError, match=message):
            export(store.path, target, "jsonl")


def test_a_damaged_report_is_rejected(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export(store.path, tmp_path / "out", "jsonl", run=first_only)
    file = tmp_path / "out" / "_export" / "part-00000.json"
    good = json.loads(file.read_text())
    for bad in (
        {},
        {**good, "rows": "many"},
        {**good, "files": [{"path": 1}]},
        {**good, "more": 1},
        {**good, "counts": 3},
    ):
        file.write_text(json.dumps(bad))
        with pytest.raises(StoreError, match=r"part-00000.json: not a report of a part, or damaged: delete it"):
            export(store.path, tmp_path / "out", "jsonl")


def rewritten(store: Store, payloads: list[Any]) -> None:
    """The same store with other entries."""
    shutil.rmtree(store.path)
    write_dledger(store.path, payloads, committed=35)


def test_a_log_that_grew_is_exported_up_to_its_old_end(tmp_path: Path) -> None:
    payloads = [mq_message("Orders", b"body %d" % i) for i in range(60)]
    made = write_dledger(tmp_path / "source", payloads[:40], committed=35)
    with pytest.raises(KeyboardInterrupt):
        export(made.path, tmp_path / "out", "jsonl", run=first_only, maxPartitionBytes=4096)
    rewritten(made, payloads)
    report = export(made.path, tmp_path / "out", "jsonl", maxPartitionBytes=4096)
    assert (report.rows, report.resumed, report.committed_index) == (40, 1, 35)
    assert any("the log has grown since the export began" in note for note in report.notes)


@pytest.mark.parametrize("number", [20, 40])
def test_a_log_that_was_truncated_or_replaced_is_rejected(number: int, tmp_path: Path) -> None:
    payloads = [mq_message("Orders", b"body %d" % i) for i in range(40)]
    made = write_dledger(tmp_path / "source", payloads, committed=10)
    with pytest.raises(KeyboardInterrupt):
        export(made.path, tmp_path / "out", "jsonl", run=first_only)
    rewritten(made, [*payloads[:19], *(mq_message("Orders", b"BODY %d" % i) for i in range(19, number))])
    with pytest.raises(StoreError, match="the log was truncated or replaced meanwhile: export to a new folder"):
        export(made.path, tmp_path / "out", "jsonl")


def test_a_log_that_is_truncated_during_the_export_is_an_error(tmp_path: Path) -> None:
    payloads = [mq_message("Orders", b"body %d" % i) for i in range(40)]
    made = write_dledger(tmp_path / "source", payloads, committed=10)

    def truncating(work: Any, parts: Any) -> Iterator[Any]:
        yield from map_here(work, parts)
        rewritten(made, payloads[:20])

    with pytest.raises(StoreError, match="the log was truncated or replaced meanwhile"):
        export(made.path, tmp_path / "out", "jsonl", run=truncating)


def test_a_log_whose_beginning_expired_is_rejected(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export(store.path, tmp_path / "out", "jsonl", run=first_only)
    Path(store.segments[0].path).unlink()
    with pytest.raises(
        StoreError, match="its chosen range begins at pos 0, the log at pos 4096: the beginning has expired"
    ):
        export(store.path, tmp_path / "out", "jsonl")


# Verified.


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_byte_that_changes_on_disk_is_an_error(
    form: str, compression: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = DirectFile._write

    def change(file: Path) -> None:
        flip(file, file.stat().st_size // 3, 4)

    def write_wrong(file: DirectFile, data: memoryview, offset: int) -> None:
        data[len(data) // 3] ^= 4
        write(file, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(row_files, "sync_file", change)
        patch.setattr(DirectFile, "_write", write_wrong)
        with pytest.raises(StoreError, match=r"the file differs when read back: expected .*, found .*: check the disk"):
            export(store.path, tmp_path / "out", form, compression=compression)
    assert files_of(tmp_path / "out") == {}
    assert export(store.path, tmp_path / "out", form, compression=compression).rows == 42


def test_pages_have_checksums_that_readers_can_check(store: Store, tmp_path: Path) -> None:
    export(store.path, tmp_path / "out", "parquet", flat=True, compression="none")
    file = tmp_path / "out" / "part-00000.parquet"
    rows = pq.ParquetFile(file, page_checksum_verification=True).read(["body"])
    content = bytearray(file.read_bytes())
    body = max((value for value in rows["body"].to_pylist() if value is not None), key=len)
    content[content.index(body) + 1] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="checksum"):
        pq.ParquetFile(file, page_checksum_verification=True).read()


def test_lost_rows_are_an_error(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid file with fewer rows than were to be written."""
    write_table = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        pq.ParquetWriter,
        "write_table",
        lambda writer, table, **options: write_table(writer, table.slice(1), **options),
    )
    with pytest.raises(StoreError, match=r"expected \d+ rows, found \d+: check the disk"):
        export(store.path, tmp_path / "out", "parquet")


def test_a_missing_file_is_an_error(store: Store, tmp_path: Path) -> None:
    def losing(work: Any, parts: Any) -> Iterator[Any]:
        yield from map_here(work, parts)
        (tmp_path / "out" / "part-00000.jsonl").write_bytes(b"")

    with pytest.raises(
        StoreError, match=r"part-00000.jsonl: the export wrote a file of \d+ bytes, which is missing or changed"
    ):
        export(store.path, tmp_path / "out", "jsonl", run=losing)


@pytest.mark.parametrize("form", FORMS)
def test_an_export_without_space_is_continued_once_there_is_some(form: str, tmp_path: Path) -> None:
    payloads = [mq_message("Orders", random.Random(i).randbytes(1000)) for i in range(80)]
    path = write_dledger(tmp_path / "source", payloads, file_size=1 << 17).path
    run = python(LIMITED, path, tmp_path / "out", "--to", form)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1, run.stderr
    assert "no space left" in run.stderr
    assert "free some, then run the same export again to continue" in run.stderr
    assert export(path, tmp_path / "out", form).rows == 80


def test_no_space_is_an_error_of_its_own(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: DirectFile, _size: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(DirectFile, "finish", full)
    with pytest.raises(DiskFullError, match="No space left on device"):
        export(store.path, tmp_path / "out", "jsonl")


# Spark and the command line.


def test_spark_reads_back_what_its_tasks_wrote(
    spark: SparkSession, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = case_folder("mq-53-retention")
    report = dl.export(path, tmp_path / "out", "parquet", spark=spark, maxPartitionBytes="100k")
    assert report.parts > 1
    back = spark.read.parquet(str(tmp_path / "out")).select(*DEFAULT_NAMES).toArrow()
    rows = sorted(rows_of(back.to_batches()), key=lambda row: row["pos"])
    assert rows == [row for row in log_rows(path) if not is_too_long(row)]
    export(path, tmp_path / "here", "parquet", maxPartitionBytes="100k")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "here")


def test_spark_reads_hostile_topics_and_damage(
    spark: SparkSession, hostile: Store, damaged: Store, tmp_path: Path
) -> None:
    export(hostile.path, tmp_path / "a", "parquet")
    rows = spark.read.parquet(str(tmp_path / "a")).select("pos", "topic").orderBy("pos").collect()
    read = {topic: topic.encode().decode("latin-1") for topic in INVISIBLE} | {"": None}
    assert [row.topic for row in rows] == [read.get(topic, topic) for topic in (*HOSTILE, "") for _ in range(2)]
    export(damaged.path, tmp_path / "b", "parquet")
    rows = spark.read.parquet(str(tmp_path / "b")).select("pos", "kind", "problem").orderBy("pos").collect()
    assert [row.asDict() for row in rows] == log_rows(damaged.path, columns=["pos", "kind", "problem"])


def test_an_error_of_a_task_is_an_error_of_the_export(spark: SparkSession, damaged: Store, tmp_path: Path) -> None:
    with pytest.raises(MalformedError):
        dl.export(damaged.path, tmp_path / "out", "jsonl", spark=spark, mode="FAILFAST")
    # Any other error fails the task; its last line is the reason.
    with pytest.raises(StoreError, match=r"a Spark task failed with ValueError: .*'x': see Spark's log$"):
        list(map_on(spark)(int, ["x"]))


def test_an_invalid_master_is_named(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Failed.\n: java.SparkException: no scheme\n\tat a.stack\nCaused by: Could not parse nope\n\tat a.stack"

    def fails(_builder: Any) -> None:
        raise PySparkException(said)

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", fails)
    assert main(["export", str(store.path), str(tmp_path / "out"), "--to", "jsonl", "--spark", "nope"]) == 2
    error = capsys.readouterr().err
    assert "expected a Spark master such as local[4] or spark://HOST:7077, found nope: Caused by: Could not" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_line_prints_the_report(
    store: Store, hostile: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(store.path), str(tmp_path / "a"), "--to", "jsonl", "--topic", "Orders"]) == 0
    said = capsys.readouterr().out
    assert f"exported to {tmp_path / 'a'} (jsonl): 26 rows" in said
    assert "read back and verified" in said
    assert main(["export", str(hostile.path), str(tmp_path / "b"), "--to", "parquet"]) == 1
    assert "left out: 2 rows\n  pos=" in capsys.readouterr().out
    assert main(["export", str(store.path), str(tmp_path / "c"), "--to", "parquet", "--columns", "pos", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["form"], report["rows"], report["committedIndex"], report["beyondCommitted"]) == (
        "parquet",
        42,
        35,
        6,
    )
    assert main(["export", str(store.path), str(tmp_path / "c"), "--to", "parquet"]) == 2
    assert "found a finished export" in capsys.readouterr().err
    assert main(["export", str(store.path), str(tmp_path / "d")]) == 2
    assert "expected a form to export to, found none: commitlog: " in capsys.readouterr().err
    twice = ["export", str(store.path), str(tmp_path / "d"), "--to", "jsonl", "--columns", "pos", "-o", "COLUMNS=pos"]
    assert main(twice) == 2
    assert "option columns and --columns are both given" in capsys.readouterr().err


def test_an_interrupted_command_says_how_to_continue(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_file: DirectFile, _size: int) -> None:
        raise KeyboardInterrupt

    command = ["export", str(store.path), str(tmp_path / "out"), "--to", "jsonl"]
    with monkeypatch.context() as patch:
        patch.setattr(DirectFile, "finish", interrupted)
        patch.setattr("pyspark_dledger.cli.main._abandon_output", lambda: None)
        assert main(command) == 130
    assert "interrupted: the same command continues the export" in capsys.readouterr().err
    assert main(command) == 0


@pytest.mark.parametrize("form", ["commitlog", "parquet", "jsonl"])
def test_a_late_part_changes_nothing(case_folder: Callable[[str], Path], tmp_path: Path, form: str) -> None:
    """Such as a task whose executor was given up as lost: a broker may use the export by then."""
    late: list[Callable[[], Any]] = []

    def keeping(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterator[Any]:
        late.extend(partial(work, part) for part in parts)
        return map(work, parts)

    target = tmp_path / "target"
    export(case_folder("mq-53-single"), target, form, run=keeping)
    files = (file for file in sorted(target.rglob("*")) if file.is_file() and file.name != PARQUET_MANIFEST)
    written = next(file for file in files if not str(file.relative_to(target)).startswith("_export"))
    write_at(written, 0, b"a broker's")
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    for part in late:
        with pytest.raises(StoreError, match="expected the export of this part in state running, found finished"):
            part()
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before


def test_a_file_that_is_complete_too_late_does_not_get_its_name(tmp_path: Path) -> None:
    manifest = tmp_path / "_export.json"

    def written_late() -> None:
        manifest.write_text(json.dumps({"state": "running"}))
        with new_file(tmp_path, "a") as file:
            file.write_bytes(b"new")
            manifest.write_text(json.dumps({"state": "finished"}))

    with pytest.raises(StoreError, match="the task is too late; it changed nothing"):
        written_late()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["_export.json"]


@pytest.mark.parametrize("form", ["commitlog", "parquet", "jsonl"])
def test_a_target_below_a_name_that_is_not_utf_8_is_rejected_at_once(
    case_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "link").symlink_to(folder)
    for target in ("target", tmp_path / "link" / "target"):
        with pytest.raises(OptionError, match="expected a path in UTF-8"):
            export(case_folder("mq-53-single"), target, form)
    assert not list(folder.iterdir())


def test_a_source_below_a_name_that_is_not_utf_8_can_be_read_through_a_link(
    case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    copy_tree(case_folder("mq-53-single"), folder / "store")
    (tmp_path / "link").symlink_to(folder)
    report = export(tmp_path / "link" / "store", tmp_path / "target", "commitlog")
    assert report.source == str(tmp_path / "link" / "store")
    with pytest.raises(StoreError, match="expected a path in UTF-8"):
        export(folder / "store", tmp_path / "other", "commitlog")
