"""The command line: what it prints, its exit codes, and what it never loads."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from tests.generate import Store, mq_message, raw, write_dledger


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_dledger(tmp_path, [mq_message("Orders", b"body"), raw(b"raw body")] * 5, committed=6)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyspark_dledger", *arguments], capture_output=True, text=True, check=False
    )


def test_state_tells_where_a_store_stands(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", str(store.path), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert (state["node"], state["endIndex"], state["committedIndex"], state["committedFrom"]) == (
        "n0",
        9,
        6,
        "checkpoint",
    )
    assert main(["state", str(store.path)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(state)


def test_dump_prints_an_object_a_row(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(store.path), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == list(range(10))
    assert base64.b64decode(rows[1]["body"]) == b"raw body"


def test_dump_prints_a_line_a_row(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(store.path), "--columns", "index,topic", "-o", "startingOffsets=8"]) == 0
    assert capsys.readouterr().out == "index=8 topic=Orders\nindex=9\n"


def test_a_row_with_a_problem_is_exit_code_1(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with Path(store.segments[0].path).open("r+b") as file:
        file.seek(store.rows[3]["pos"])
        file.write(b"\xff\xee")
    assert main(["dump", str(store.path)]) == 1
    assert "kind=corrupt" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["no/such/store"], ["{store}", "-o", "topik=a"], ["{store}", "-o", "topic"]])
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    store: Store, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", *(argument.format(store=store.path) for argument in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("dledger: ") and printed.err.count("\n") == 1


def test_a_reader_that_leaves_is_no_error(store: Store) -> None:
    command = f"{sys.executable} -m pyspark_dledger dump {store.path} --json | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_never_loads_spark(store: Store) -> None:
    code = f"import sys; from pyspark_dledger.cli.main import main; main(['dump', {str(store.path)!r}]); "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'pyspark' not in sys.modules"], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_the_module_is_the_command() -> None:
    done = run("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: dledger")
