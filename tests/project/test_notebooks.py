"""The notebooks say what they kept: executed anew, every text and table comes out the same."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import nbformat
import pyarrow as pa
import pytest

import pyspark_dledger as dl
from tests.support.golden import GOLDENS

FOLDER = Path(__file__).resolve().parent.parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# As of a memory address or a temporary folder: no two runs have the same.
CHANGING = re.compile(r"0x[0-9a-f]{6,}|/[^\s'\"]*/dledger-[a-z0-9_]{8}")


@pytest.fixture(scope="module")
def run() -> ModuleType:
    """The program that executes notebooks."""
    spec = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(notebook: nbformat.NotebookNode) -> list[tuple[int, str]]:
    """What each cell shows as text, with the number of the cell; of a figure its title."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            text = output.data.get("text/plain", "") if "data" in output else output.get("text", output.get("evalue"))
            found.append((number, CHANGING.sub("...", text)))
    return found


def figures(notebook: nbformat.NotebookNode) -> list[int]:
    """Which cells have a figure."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def test_there_are_four_notebooks_and_the_readme_names_each() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert len(NOTEBOOKS) == 4
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in readme] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_kept(path: Path, run: ModuleType) -> None:
    kept, again = nbformat.read(path, as_version=4), run.execute(path)
    nbformat.validate(kept)
    assert texts(again) == texts(kept), "where the change is wanted: make notebooks"
    assert figures(again) == figures(kept) != []


def test_the_live_golden_holds_what_its_producer_was_told(case_folder: Callable[[str], Path]) -> None:
    told = json.loads((GOLDENS / "mq-53-live.meta.json").read_text())["acknowledged"]
    for node in ("n0", "n1", "n2"):
        log = dl.open_log(case_folder("mq-53-live") / node)
        columns = ["topic", "queueId", "queueOffset", "offsetMsgId", "uniqKey"]
        rows = pa.Table.from_batches(log.scan(columns, topic=",".join(told["topics"]))).to_pylist()
        assert len(rows) == told["messages"]
        lines = sorted("\t".join(str(row[name]) for name in columns) for row in rows)
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == told["sha256"], node
