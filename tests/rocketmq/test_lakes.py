"""A table that a log is appended to has each committed row once, also if runs are killed or two run at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import DataLossError, DLedgerError, OptionError, StoreError, StoreInUseError
from pyspark_dledger.rocketmq.export import export
from pyspark_dledger.rocketmq.export import lake_tables as lakes
from pyspark_dledger.rocketmq.export.forms import LAKES
from tests.rocketmq.test_export import HOSTILE, TOO_LONG
from tests.support.generate import mq_message, raw, write_dledger
from tests.support.lakes import Lake, log_rows, message

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parent.parent.parent / "docs" / "lakes.md"
CLASSES = {"iceberg": lakes.IcebergTable, "delta": lakes.DeltaLake}


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages of three topics and two days, of which the last ones are not committed, and entries that are none."""
    return written(tmp_path, 40, committed=30)


def written(folder: Path, count: int, **options: Any) -> Path:
    payloads = [message(number) if number % 8 else raw(b"", "noop") for number in range(count)]
    return write_dledger(folder / "store", payloads, **options).path


@pytest.fixture
def meanwhile(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes the next append of an export run something else first, after the position was read."""

    def run_first(action: Callable[[], object]) -> None:
        append = CLASSES[lake.form].append

        def late(table: Any, *arguments: Any) -> None:
            monkeypatch.setattr(CLASSES[lake.form], "append", append)
            action()
            append(table, *arguments)

        monkeypatch.setattr(CLASSES[lake.form], "append", late)

    return run_first


def commits(lake: Lake) -> int:
    table = lake.table()
    return len(table.snapshots()) if lake.form == "iceberg" else table.version()


def test_each_committed_row_is_appended_once(lake: Lake, store: Path) -> None:
    first = lake.export(store, commitBytes=2048)
    assert (first.rows, first.committed_index) == (31, 30)
    assert first.parts == commits(lake) > 2
    assert lake.rows() == log_rows(store)
    written(store.parent, 90)
    assert lake.export(store).rows == 59
    assert lake.rows() == log_rows(store)
    before = commits(lake)
    last = lake.export(store)
    assert (last.rows, last.parts, commits(lake)) == (0, 0, before)
    assert last.notes == (f"the table has the log up to index 89 (term 1, pos {log_rows(store)[-1]['pos']})",)


def test_the_partitions_are_topic_and_day(lake: Lake, store: Path) -> None:
    lake.export(store)
    table = lake.table()
    if lake.form == "iceberg":
        fields = [(field.name, str(field.transform)) for field in table.spec().fields]
        assert fields == [("topic", "identity"), ("day", "day")]
        found = [(part["topic"], part["day"]) for part in table.inspect.partitions()["partition"].to_pylist()]
    else:
        assert table.metadata().partition_columns == ["topic", "day"]
        days = [(part["topic"], part["day"]) for part in table.partitions()]
        found = [(topic, day and date.fromisoformat(day)) for topic, day in days]
    days = [(f"Topic{number}", date(2023, 11, day)) for number in range(3) for day in (14, 15)]
    assert sorted(found, key=str) == sorted([*days, (None, None)], key=str)


def test_hostile_topics_are_there(lake: Lake, tmp_path: Path) -> None:
    store = write_dledger(tmp_path / "store", [mq_message(topic, b"body") for topic in HOSTILE], file_size=1 << 16)
    lake.export(store.path)
    assert [row["topic"] for row in lake.rows("pos", "topic")] == list(HOSTILE)


def test_a_topic_longer_than_a_file_name(lake: Lake, tmp_path: Path) -> None:
    store = write_dledger(tmp_path / "store", [mq_message(TOO_LONG, b"body"), message(1)]).path
    if lake.form == "delta":
        error = "has a folder with a name of 256 bytes, at most 255 fit: export to a new table with option flat"
        with pytest.raises(StoreError, match=error):
            lake.export(store)
        lake = Lake("delta", tmp_path / "flat")
    lake.export(store, flat=True)
    assert lake.rows() == log_rows(store)


# Two runs, and other writers.


def test_of_two_runs_at_once_one_appends(
    lake: Lake, store: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    lake.export(store)
    written(store.parent, 60)
    meanwhile(lambda: lake.export(store))
    with pytest.raises(StoreInUseError, match=r"another export has appended up to index 59 .* expected index 30 "):
        lake.export(store)
    assert lake.rows() == log_rows(store)


def test_of_two_first_runs_at_once_one_appends(
    lake: Lake, store: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    meanwhile(lambda: lake.export(store))
    with pytest.raises(StoreInUseError, match=r"another export has appended up to index 30 .* expected the start"):
        lake.export(store)
    assert lake.rows() == log_rows(store)


def test_a_commit_of_another_writer_costs_nothing(
    lake: Lake, store: Path, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    lake.export(store)
    written(store.parent, 60)

    def write() -> None:
        rows = pa.table({"index": pa.array([-1]), "pos": pa.array([-1]), "topic": ["Other"]})
        if lake.form == "iceberg":
            table = lake.table()
            with table.update_spec() as update:
                update.remove_field("day")
            table.append(rows)
        else:
            from deltalake import write_deltalake

            write_deltalake(lake.name, rows, mode="append", schema_mode="merge")

    meanwhile(write)
    lake.export(store)
    assert lake.rows()[1:] == log_rows(store)
    assert lake.export(store).rows == 0


def test_the_position_of_iceberg_follows_the_rows(store: Path, tmp_path: Path) -> None:
    lake = Lake("iceberg", tmp_path)
    lake.export(store)
    first = lake.table().current_snapshot()
    written(tmp_path, 60)
    lake.export(store)
    # A rollback takes the rows back, and the position.
    lake.table().manage_snapshots().set_current_snapshot(snapshot_id=first.snapshot_id).commit()
    assert lake.export(store).rows == 29
    # Expired snapshots leave the property of the table.
    table = lake.table()
    table.append(pa.table({"index": pa.array([], pa.int64())}))
    old = [each.snapshot_id for each in table.snapshots()[:-1]]
    lake.table().maintenance.expire_snapshots().by_ids(old).commit()
    assert lake.export(store).rows == 0
    assert lake.rows() == log_rows(store)


def test_the_position_of_delta_survives_a_checkpoint(store: Path, tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.export(store)
    lake.table().create_checkpoint()
    for file in (tmp_path / "delta" / "_delta_log").glob("*.json"):
        file.unlink()
    assert lake.export(store).rows == 0


def test_rows_are_there_once_after_kills() -> None:
    """`make lakes` kills more."""
    run = [sys.executable, "-m", "tests.support.lakes", "--kills", "3", "--seed", "1"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("each once in a table of")) == (0, 2), done.stderr


def test_the_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    payloads = [mq_message("OrderTopic" if number % 2 else "Other", b"body") for number in range(20)]
    store = write_dledger(tmp_path / "store", payloads).path
    code = code.replace("/data/rocketmq/store", str(store)).replace("/lake", str(tmp_path))
    for _ in range(2):
        exec(code, {})
        assert capsys.readouterr().out == "10 10\n"


# Another log, other rows.


@pytest.mark.parametrize("lost", [True, False])
def test_another_log_is_refused(lake: Lake, store: Path, lost: bool, tmp_path: Path) -> None:
    lake.export(store)
    other = write_dledger(tmp_path / "other", [mq_message("Other", b"body") for _ in range(80)]).path
    with pytest.raises(StoreError, match=r"the table has the log up to index 30 .*other is another log, or was overwr"):
        lake.export(other, failOnDataLoss=lost)
    assert lake.rows() == log_rows(store)


def test_a_replica_is_the_same_log(lake: Lake, store: Path, tmp_path: Path) -> None:
    lake.export(store)
    assert lake.export(written(tmp_path / "n1", 60, node="n1")).rows == 29


def test_expired_entries_are_an_error_unless_the_user_says_otherwise(lake: Lake, store: Path) -> None:
    lake.export(store)
    written(store.parent, 120)
    files = sorted((store / "dledger-n0" / "data").iterdir())
    for file in files[:3]:
        file.unlink()
    first = log_rows(store, "index", "pos")[0]["index"]
    error = (
        f"expected index 31 next, found that the log begins with {first}: older ones have expired: restore the log, "
    )
    with pytest.raises(DataLossError, match=f"{error}export to a new table, or set failOnDataLoss=false"):
        lake.export(store)
    report = lake.export(store, failOnDataLoss=False)
    assert f"skipped: {first - 31} expired entries (failOnDataLoss=false)" in report.notes
    assert [row["index"] for row in lake.rows("index", "pos")] == [*range(31), *range(first, 120)]


def test_other_filters_are_refused(lake: Lake, store: Path) -> None:
    assert lake.export(store, topic="Topic1").rows == 9
    with pytest.raises(StoreError, match="the table was written with other filters"):
        lake.export(store)
    assert lake.export(store, topic="Topic1").rows == 0


def test_rows_that_no_filter_passes_are_done(lake: Lake, store: Path) -> None:
    first, second = (lake.export(store, topic="None") for _ in range(2))
    assert (first.rows, first.parts, second.parts) == (0, 1, 0)
    written(store.parent, 60)
    assert lake.export(store, topic="None").parts == 1
    assert lake.rows("pos") == []


def test_the_latest_entry_can_be_the_start(lake: Lake, store: Path) -> None:
    assert lake.export(store, startingOffsets="latest").rows == 0
    written(store.parent, 60)
    assert lake.export(store, startingOffsets="latest").rows == 29


def test_new_columns_are_added(lake: Lake, store: Path) -> None:
    lake.export(store, columns="index,pos,body")
    written(store.parent, 60)
    lake.export(store)
    names = ("index", "pos", "topic", "storeTimestamp", "body", "kind", "properties")
    wanted = log_rows(store, *names)
    assert lake.rows(*names) == [
        {**row, **({"kind": None, "properties": None} if row["index"] <= 30 else {})} for row in wanted
    ]


def test_a_column_of_another_type_is_an_error(lake: Lake, store: Path) -> None:
    lake.export(store, columns="index,pos")
    table = lake.table()
    rows = pa.table({"kind": [1]})
    if lake.form == "iceberg":
        with table.update_schema() as update:
            update.union_by_name(rows.schema)
    else:
        from deltalake import write_deltalake

        write_deltalake(lake.name, rows, mode="append", schema_mode="merge")
    before = commits(lake)
    written(store.parent, 60)
    with pytest.raises(StoreError, match=r"the table cannot be used \("):
        lake.export(store)
    assert commits(lake) == before


# Options and output.


def test_the_command_line(lake: Lake, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", str(store), lake.name, "--to", lake.form]
    command += ["-o", f"catalogProperties={json.dumps(lake.catalog)}"] if lake.form == "iceberg" else []
    for rows in (31, 0):
        assert main(command) == 0
        said = capsys.readouterr().out
        assert re.match(rf"exported to .* \({lake.form}\): {rows} rows of \d+ bytes\ncommits: {bool(rows):d}; ", said)
        assert "note: the table has the log up to index 30 (term 1, pos " in said


def test_nothing_committed_is_nothing_to_append(lake: Lake, tmp_path: Path) -> None:
    store = write_dledger(tmp_path / "store", [message(number) for number in range(5)], checkpoint=False).path
    report = lake.export(store)
    assert (report.rows, report.parts) == (0, 0)
    assert report.notes == ("no committed entry is known: the table has none",)
    assert lake.export(store, committedBound="end").rows > 0


def test_a_wrong_path_of_a_store_creates_no_table(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(DLedgerError, match="found nothing there"):
        lake.export(tmp_path / "absent")
    with pytest.raises(Exception, match=r"(?i)does not exist|no files"):
        lake.table()


@pytest.mark.parametrize("scheme", ["", "file://", "FILE:"])
def test_a_table_in_the_store_is_refused(lake: Lake, scheme: str, store: Path) -> None:
    inside = f"{scheme}{store}/dledger-n0/table"
    target, options = inside, {}
    if lake.form == "iceberg":
        target, options = lake.name, {"catalogProperties": {**lake.catalog, "warehouse": inside}}
    with pytest.raises(StoreError, match="the target is in the store"):
        export(store, target, lake.form, **options)
    assert not list(store.rglob("table"))


def test_a_table_that_forgets_the_position_is_refused(store: Path, tmp_path: Path) -> None:
    lake = Lake("delta", tmp_path)
    lake.export(store)
    retention = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    lake.table().alter.set_table_properties(retention)
    with pytest.raises(StoreError, match=r"found its property delta.setTransactionRetentionDuration set: unset it"):
        lake.export(store)


@pytest.mark.parametrize(
    ("form", "options", "error"),
    [
        ("delta", {"isolationLevel": "read_uncommitted"}, "option isolationLevel has no effect on an export to delta"),
        ("delta", {"catalog": "prod"}, "option catalog is only for an export to iceberg, not to delta"),
        (
            "delta",
            {"storageOptions": "secret"},
            "option storageOptions: expected NAME=VALUE,NAME=VALUE or a JSON object of texts, found something else",
        ),
        ("delta", {"run": map}, "an export to delta runs in one process: leave out spark"),
        ("iceberg", {}, "expected a table NAMESPACE.TABLE of an Iceberg catalog, found messages"),
        ("parquet", {"commitBytes": "1m"}, "option commitBytes is only for an export to iceberg and delta"),
    ],
)
def test_wrong_options(form: str, options: dict[str, Any], error: str, store: Path) -> None:
    with pytest.raises(OptionError, match=error):
        export(store, "messages", form, **options)


def test_properties_are_json_or_a_comma_list(store: Path, tmp_path: Path) -> None:
    catalog = Lake("iceberg", tmp_path).catalog
    text = ",".join(f"{name}={value}" for name, value in catalog.items())
    assert export(store, "a.b", "iceberg", catalogProperties=text).rows == 31
    assert export(store, "a.b", "iceberg", catalogProperties=json.dumps(catalog), catalog="default").rows == 0


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("deltalake", "pyiceberg", "pyiceberg.catalog"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_libraries")
def test_a_missing_library_names_the_extra(lake: Lake, store: Path) -> None:
    with pytest.raises(OptionError, match=r"expected the package .*: pip install 'pyspark_dledger\[iceberg,delta\]'"):
        lake.export(store)
