"""Output on terminals and in pipes, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ran, process
from tests.support.generate import Store, mq_message, write_dledger

ESCAPE = "\x1b"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose texts would paint a terminal."""
    messages = [mq_message(f"evil{ESCAPE}[31m", b"\x1b]0;title\x07", properties=[("KEYS", "a\x9b1m\u202eb\u2028")])]
    return write_dledger(tmp_path, messages).path


VERBS = ("dump", "segments", "state", "stats", "verify", "recovery", "audit", "find")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_piped_output_has_no_escape_codes(verb: str, hostile: Path) -> None:
    (hostile / "consumequeue").mkdir()
    for more in ([], ["--json"]):
        child = process(verb, hostile, *(["0"] if verb == "find" else []), *more)
        out, err = child.communicate(timeout=60)
        assert child.returncode in (0, 1), err
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", out + err)


def on_terminal(*arguments: object, width: int = 100) -> tuple[int, str]:
    """A command whose output and errors are a terminal: exit code and what it showed."""
    master, slave = pty.openpty()
    line = [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width)}
    child = subprocess.Popen(line, stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:
        pass  # Linux reports the end of a terminal so
    os.close(master)
    return child.wait(timeout=60), shown.decode()


@pytest.mark.parametrize("verb", VERBS)
def test_a_terminal_gets_tables_and_no_control_characters_of_the_store(verb: str, hostile: Path) -> None:
    (hostile / "consumequeue").mkdir()
    code, shown = on_terminal(verb, hostile, *(["0"] if verb == "find" else []))
    assert code in (0, 1)
    assert f"{ESCAPE}[31m" not in shown
    assert f"{ESCAPE}]0" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("width", [40, 400])
def test_a_narrow_terminal_loses_nothing(width: int, store: Store, run: Callable[..., Ran]) -> None:
    _, shown = on_terminal("segments", store.path, width=width)
    words = re.sub(rf"{ESCAPE}\[[0-9;?]*[A-Za-z]", "", shown).split()
    assert [word for word in run("segments", store.path).out.split() if word not in words] == []


def test_progress_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark_dledger.cli.output import stream as progress

    monkeypatch.setattr(progress, "_FIRST_SHOWN", 0)
    shown = progress.ProgressBar()
    shown(1, 2)
    shown.clear()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = progress.ProgressBar()
    shown(1, 2)
    shown.clear()
    assert "50%" in capsys.readouterr().err


def test_a_reader_that_ends_early_is_no_error(case_folder: Callable[[str], Path]) -> None:
    for more in ("", "--json"):
        line = f"{sys.executable} -m pyspark_dledger dump {case_folder('mq-498-single')} {more} | head -n 1"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


def test_an_error_in_writing_the_output_is_reported(store: Store) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "pyspark_dledger", "dump", str(store.path)]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("dledger: the output: ")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_leaves_no_half_line_with_a_slow_reader(unbuffered: str, case_folder: Callable[[str], Path]) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    child = process("dump", case_folder("mq-498-single"), "--json", env=environment)
    assert child.stdout is not None
    first = os.read(child.stdout.fileno(), 10)  # it writes now, and its pipe fills up
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")
    lines = (first.decode() + out).splitlines(keepends=True)
    assert all(line.endswith("\n") and json.loads(line) for line in lines)
    assert len(lines) < 2080, "it ended before all was printed"


def test_a_second_ctrl_c_does_not_wait_for_the_reader(case_folder: Callable[[str], Path]) -> None:
    child = process("dump", case_folder("mq-498-single"), "--json")
    assert child.stdout is not None
    os.read(child.stdout.fileno(), 10)
    time.sleep(0.3)
    for _ in range(2):
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert child.wait(timeout=60) == 130
