"""The runner of the benchmarks: one that fails or hangs does not keep the others from running."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks.measure import PeerMissing, Result, meanwhile
from tests.project.test_docs import ROOT


def passes(name: str) -> Result:
    return Result(name, 1.5, "s").with_most(1)


def fails(name: str) -> Result:
    raise ValueError(f"{name} cannot open its store")


def lacks_peer(name: str) -> Result:
    raise PeerMissing(f"{name} needs Maven")


def hangs(_: str) -> Result:
    while True:
        time.sleep(0.01)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes the runner know only the given benchmarks."""

    def replace(**benchmarks: Callable[[str], Result]) -> None:
        module = type("Module", (), {"BENCHMARKS": benchmarks})
        monkeypatch.setattr(runner, "MODULES", ("only",))
        monkeypatch.setattr(runner, "import_module", lambda _: module)
        monkeypatch.setattr(sys, "argv", ["benchmarks"])

    return replace


def test_a_benchmark_that_fails_does_not_end_the_others(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    only(first=fails, second=lacks_peer, third=passes)
    assert runner.main() == 1
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"name": "first", "met": None, "error": "ValueError: first cannot open its store"}
    assert second == {"name": "second", "met": None, "skipped": "second needs Maven"}
    assert (third["name"], third["value"], third["met"]) == ("third", 1.5, False)


def test_a_missed_goal_is_no_error(only: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    only(first=passes, second=lacks_peer)
    assert runner.main() == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_benchmark_that_hangs_is_ended() -> None:
    text, has_run = runner.line("first", hangs, seconds=1)
    assert not has_run
    assert json.loads(text)["error"] == "TimeoutError: the benchmark has not ended after 1 s"


def test_a_thread_ends_with_the_block_that_raises() -> None:
    threads = threading.active_count()
    during = []

    def measure() -> None:
        with meanwhile(threading.Event.wait):
            during.append(threading.active_count())
            fails("memory-1g")

    with pytest.raises(ValueError, match="cannot open"):
        measure()
    assert during == [threads + 1]
    assert threading.active_count() == threads


@pytest.mark.slow
def test_the_memory_of_a_log_is_that_of_all_its_segments(case_folder: Callable[[str], Path]) -> None:
    folder = case_folder("mq-53-three")
    command = [sys.executable, "-m", "benchmarks.memory"]
    run = subprocess.run([*command, str(folder / "n0"), "64k"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(run.stdout)
    assert found["rows"] > 0
    assert found["partitions"] > 1
    assert found["peak"] >= found["before"] > 0


@pytest.mark.slow
def test_a_log_that_cannot_be_read_ends_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.memory", str(tmp_path / "missing")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "missing" in run.stderr
