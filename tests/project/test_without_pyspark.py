"""Without the extra ``spark`` everything but Spark works, and what needs PySpark says which extra to install."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# Python runs this file when it starts.
BLOCK = """
import sys

class Blocked:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked)
"""
REMEDY = "pip install 'pyspark>=4.0,<5' (the extra spark)"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs this Python with arguments; in it, PySpark cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, *map(str, arguments)]
        return subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "No module named 'pyspark'" in run("-c", "import pyspark").stderr
    return run


def test_every_module_outside_spark_can_be_imported(run: Run) -> None:
    code = """
import importlib, pkgutil, pyspark_dledger
names = [module.name for module in pkgutil.walk_packages(pyspark_dledger.__path__, "pyspark_dledger.")]
wanted = [name for name in names if not name.startswith("pyspark_dledger.spark.") and not name.endswith("__main__")]
for name in wanted:
    importlib.import_module(name)
assert len(wanted) > 100, wanted
for name in pyspark_dledger.__all__:
    assert hasattr(pyspark_dledger, name) == (name != "DefaultSource"), name
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr


def test_versions_say_that_there_is_no_spark(run: Run) -> None:
    done = run("-m", "pyspark_dledger", "--version")
    assert (done.returncode, "\nSpark           none\n" in done.stdout) == (0, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("serve", "--help"),
        ("dump", "{store}", "--limit", "2"),
        ("stats", "{store}"),
        ("verify", "{store}"),
        ("recovery", "{store}"),
        ("diff", "{replicas}/n0", "{replicas}/n1"),
        ("audit", "{store}"),
        ("export", "{store}", "{folder}/plain", "--to", "jsonl"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_verbs(run: Run, case_folder: Callable[[str], Path], tmp_path: Path, arguments: tuple[str, ...]) -> None:
    names = {
        "store": case_folder("mq-53-upgrade"),
        "replicas": case_folder("mq-498-three-diverged"),
        "folder": tmp_path,
    }
    done = run("-m", "pyspark_dledger", *(argument.format(**names) for argument in arguments))
    assert (done.returncode in (0, 1), done.stderr.count("Traceback")) == (True, 0), done.stderr
    assert done.stdout


def test_open_log(run: Run, case_folder: Callable[[str], Path]) -> None:
    code = "import sys, pyspark_dledger as dl; print(sum(b.num_rows for b in dl.open_log(sys.argv[1]).scan(['index'])))"
    done = run("-c", code, case_folder("mq-53-upgrade"))
    assert done.stdout.strip() == "1082", done.stderr


def test_what_needs_pyspark_names_the_extra(run: Run, case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    needs = f"needs PySpark 4.0 or newer: {REMEDY}\n"
    done = run("-c", "import pyspark_dledger.spark.source")
    assert done.stderr.endswith(f"ImportError: the data source dledger {needs}")
    done = run("-c", "import pyspark_dledger; pyspark_dledger.DefaultSource")
    assert done.stderr.endswith(f"AttributeError: pyspark_dledger.DefaultSource: the data source dledger {needs}")
    done = run(
        "-m",
        "pyspark_dledger",
        "export",
        case_folder("mq-53-upgrade"),
        tmp_path / "plain",
        "--to",
        "jsonl",
        "--spark",
        "local[1]",
    )
    assert done.returncode == 2
    assert done.stderr == f"dledger: a session at local[1] {needs}"
