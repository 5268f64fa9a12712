"""``dledger sql`` runs queries of all tables in DuckDB, which can do nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.rocketmq.tables import TABLES
from tests.support import golden
from tests.support.generate import mq_message, raw, write_dledger


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    payloads = [mq_message("Orders" if number % 4 else "Pay", b"body %d" % number) for number in range(12)]
    return write_dledger(tmp_path_factory.mktemp("sql") / "store", [*payloads, raw(b"\xff")]).path


def test_a_query_prints_its_rows(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = golden.fingerprint(store)
    query = "select topic, count(*) rows, sum(size) size, min(body) body from log where topic = 'Pay' group by 1"
    assert main(["sql", str(store), query, "--json"]) == 0
    rows = [row for batch in dl.open_log(store).scan(topic="Pay") for row in batch.to_pylist()]
    size = sum(row["size"] for row in rows)
    assert json.loads(capsys.readouterr().out) == {"topic": "Pay", "rows": 3, "size": size, "body": "Ym9keSAw"}
    assert main(["sql", str(store), "select storeTimestamp t, body from log where topic is null", "--body", "hex"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["ff"]
    assert main(["sql", str(store), "select 1 from log where pos < 0"]) == 0
    assert capsys.readouterr().out == "no row\n"
    assert main(["sql", str(store), "select count(*) n from log", "-o", "topic=Orders", "--json"]) == 0
    assert capsys.readouterr().out == '{"n": 9}\n'
    assert golden.fingerprint(store) == before


def test_numbers_that_json_lacks_are_texts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(store), "select 'nan'::double a, '-inf'::double b, 0.5::double c", "--json"]) == 0
    assert capsys.readouterr().out == '{"a": "nan", "b": "-inf", "c": 0.5}\n'


def test_ctrl_c_ends_a_query(store: Path) -> None:
    interrupt = threading.Timer(1, os.kill, [os.getpid(), signal.SIGINT])
    began = time.monotonic()
    interrupt.start()
    assert main(["sql", str(store), "select sum(a.i * b.i) from range(10_000_000) a(i), range(10_000_000) b(i)"]) == 130
    interrupt.join()
    assert time.monotonic() - began < 30


def test_all_tables_are_views(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select string_agg(distinct table_name, ',') names from information_schema.tables"
    assert main(["sql", str(store), query, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["names"].split(",")) == {"log", *TABLES}
    query = "select endIndex, count(*) entries from state join log on committed where kind <> 'noop' group by 1"
    assert main(["sql", str(store), query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"endIndex": 12, "entries": 13}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select nothing from log", "not found"),
        ("select * from read_text('/etc/hostname')", "disabled"),
        ("select * from '/etc/hostname'", "does not exist"),
        ("copy log to '{file}'", "disabled"),
        ("attach '{file}'", "disabled"),
        ("export database '{file}'", "disabled"),
        ("set enable_external_access = true", "configuration"),
        ("install httpfs", "disabled"),
        ("load '{file}'", "disabled"),
        ("pragma profiling_output = '{file}'", ""),
        ("call enable_logging(storage = 'file', storage_config = {{'path': '{file}'}})", ""),
        ("set temp_directory = '{file}'", ""),
        ("select * from arrow_scan(94000000000000, 94000000000000, 94000000000000)", "No function"),
        ("insert into log select * from log", "not an? table"),
        ("select * from args", "does not exist"),
        ("this is no query", "syntax error"),
    ],
)
def test_a_query_does_nothing_but_read(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], query: str, message: str
) -> None:
    file = tmp_path / "written"
    assert main(["sql", str(store), query.format(file=file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dledger: sql: ")
    assert error.count("\n") == 1
    assert re.search(message, error), error
    assert not file.exists()


def test_an_error_of_a_table_has_no_traceback(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = next(path.parent for path in store.rglob("00000000000000000000") if path.parent.name == "data")
    copied = shutil.copytree(data, tmp_path / "data")
    assert main(["sql", str(copied), "select count(*) from audit"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dledger: sql: ")
    assert error.endswith("found a log folder without its root: give the root's path.\n")


def test_without_duckdb_the_verb_says_what_to_install(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert main(["sql", str(store), "select 1"]) == 2
    expected = "expected duckdb, found none: pip install 'pyspark_dledger[duckdb]'"
    assert capsys.readouterr().err == f"dledger: sql: {expected}\n"
