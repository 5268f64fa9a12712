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


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "test-spark-versions", "docs", "help"])
def test_targets_of_the_readme_exist(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
