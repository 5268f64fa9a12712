"""What README.md and docs/ show is what the code says and prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.docs import FILES, rendered

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
# A Python block, and the output that follows it.
_INCIDENT = README[README.index("## After an incident") : README.index("## Without Spark")]
SETUP, *COMMANDS = re.findall(r"```\n(.*?)```", _INCIDENT, re.DOTALL)
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_tables_are_those_of_the_code(file: Path) -> None:
    assert file.read_text() == rendered(file.read_text()), "run make docs"


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=["spark", "python"])
def test_examples_print_what_the_readme_shows(code: str, output: str, case_folder: Callable[[str], Path]) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(ROOT / "examples" / "conf")}
    folder = case_folder("mq-53-upgrade").parent
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == output.strip()


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands that set up the README's incident were run."""
    folder = tmp_path_factory.mktemp("incident")
    (folder / "tests").symlink_to(ROOT / "tests")
    subprocess.run(["bash", "-ec", SETUP], cwd=folder, capture_output=True, check=True)
    return folder


def test_the_readme_has_an_incident() -> None:
    assert [shown.split()[2] for shown in COMMANDS] == ["verify", "recovery", "diff", "dump", "audit", "find", "dump"]


@pytest.mark.parametrize("shown", COMMANDS, ids=lambda shown: shown.split()[2])
def test_commands_print_what_the_readme_shows(shown: str, incident: Path) -> None:
    """A line `...` stands for any number of lines, and digests are of a key that is made anew for each run."""
    command, _, expected = shown.removeprefix("$ dledger ").partition("\n")
    # The path of this Python may have spaces.
    run = subprocess.run(
        ["bash", "-c", f'"$0" -m pyspark_dledger {command}', sys.executable],
        cwd=incident,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    pattern = re.escape(expected).replace(re.escape("...\n"), "(?:.*\n)*")
    pattern = re.sub(r"redacted:[0-9a-f]{16}", "redacted:[0-9a-f]{16}", pattern)
    assert re.fullmatch(pattern, run.stdout), run.stdout


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "test-spark-versions", "docs", "help"])
def test_targets_of_the_readme_exist(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
