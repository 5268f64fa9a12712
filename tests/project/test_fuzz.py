"""A short run of what `make fuzz` does for longer: no crash, no leak, no broken invariant, and the engines agree.

The targets are built with the compiler of the package, sanitizers on, and run by a driver of our own.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz import corpus, differential
from tests.fuzz.build import ENVIRONMENT, TARGETS, build, standalone
from tests.support.long_runs import BREADTH

ITERATIONS = {"fuzz_scan": 200, "fuzz_walk": 500, "fuzz_codec": 2000, "fuzz_append": 3000, "fuzz_puts": 3000}
CASES = 75


@pytest.fixture(scope="module")
def targets() -> dict[str, Path]:
    return build(standalone())


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    assert corpus.write(folder) > 300
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_the_native_engine(target: str, targets: dict[str, Path], seeds: Path, tmp_path: Path) -> None:
    reproducer = tmp_path / "reproducer"
    command = [str(targets[target]), str(seeds / target), str(ITERATIONS[target]), "1", str(reproducer)]
    environment = os.environ | ENVIRONMENT
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    assert done.returncode == 0, f"{targets[target]} {reproducer}\n{done.stderr}"
    assert f"{ITERATIONS[target]} made and run" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2] if BREADTH else [1])
def test_native_and_python_agree(seed: int, tmp_path: Path) -> None:
    done = {differential.check_case(CASES * seed + case, tmp_path) for case in range(CASES)}
    assert {"made", "golden", "noise"} <= done
