"""The notebooks give the outputs that they keep, and run on other stores without a change to them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pyarrow as pa
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output
from traitlets.config import Config

import pyspark_dledger as dl
from tests.support.golden import GOLDENS, fingerprint, unpack
from tests.support.long_runs import some
from tools.words import problems

FOLDER = Path(__file__).resolve().parent.parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# Memory addresses and temporary folders change from run to run.
CHANGING = re.compile(r"0x[0-9a-f]{6,}|/[^\s'\"]*/dledger-[a-z0-9_]{8}")
LINK = re.compile(r"\]\(([^)\s]+)\)")
WITH_REPLICAS = ("02-replicas", "05-salvage")
STORE_LINE = re.compile(r"^STORE = .*$", re.MULTILINE)


@pytest.fixture(scope="module")
def run() -> ModuleType:
    """The program that executes notebooks."""
    spec = importlib.util.spec_from_file_location("run_notebooks", FOLDER / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(notebook: nbformat.NotebookNode) -> list[tuple[int, str]]:
    """The number of each cell with its texts; the text of a figure is its title."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            text = output.data.get("text/plain", "") if "data" in output else output.get("text", output.get("evalue"))
            found.append((number, CHANGING.sub("...", text)))
    return found


def figures(notebook: nbformat.NotebookNode) -> list[int]:
    """The numbers of the cells with a figure."""
    return [
        number
        for number, cell in enumerate(notebook.cells)
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]


def test_there_are_five_notebooks_and_the_readme_names_each() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert len(NOTEBOOKS) == 5
    assert [path.name for path in NOTEBOOKS if f"({path.name})" not in readme] == []


def prose(path: Path) -> str:
    """The text of a page or of a notebook."""
    if path.suffix == ".md":
        return path.read_text()
    return "\n\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")


@pytest.mark.parametrize(
    "path", [*NOTEBOOKS, FOLDER / "README.md", FOLDER.parent / "examples" / "README.md"], ids=lambda path: path.name
)
def test_the_text_is_short_and_its_links_exist(path: Path) -> None:
    text = prose(path)
    assert list(problems(path.name, text)) == []
    for link in LINK.findall(text):
        name, _, anchor = link.partition("#")
        assert (path.parent / name).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose(path.parent / name) if name else text, re.MULTILINE)
            assert anchor.lower() in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, (
                link
            )


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_the_outputs_that_it_keeps(path: Path, run: ModuleType) -> None:
    kept, again = nbformat.read(path, as_version=4), run.execute(path)
    nbformat.validate(kept)
    assert texts(again) == texts(kept), "where the change is wanted: make notebooks"
    assert figures(again) == figures(kept) != []
    assert not any("Skipped:" in text for _, text in texts(kept))


# Other stores

Make = Callable[[Path], list[Path]]


def case(name: str, *nodes: str, without: tuple[str, ...] = ()) -> Make:
    """Make a golden store, or some nodes of it, that lack folders."""

    def make(folder: Path) -> list[Path]:
        stores = [unpack(name, folder) / node for node in nodes or ("",)]
        for path in [path for store in stores for pattern in without for path in store.glob(pattern)]:
            shutil.rmtree(path)
        return stores

    return make


def log_files_only(folder: Path) -> list[Path]:
    """Make a data folder without the rest of its node."""
    data = unpack("mq-498-single", folder) / "dledger-n0" / "data"
    (folder / "copied").mkdir()
    return [data.rename(folder / "copied" / "data")]


def one_file(folder: Path) -> list[Path]:
    return [unpack("mq-498-single", folder) / "dledger-n0" / "data" / "00000000000000131072"]


NO_INDEX = ("dledger-*/index", "index")
NO_QUEUES = ("consumequeue",)
SINGLE_STORES = {
    "plain-commitlog": case("mq-plain"),
    "no-index": case("mq-498-single", without=NO_INDEX),
    "no-consumequeue": case("mq-498-single", without=NO_QUEUES),
    "no-messages": case("raw-single"),
    "no-entries": case("raw-040-snapshot-blank", "dledger-n2"),
    "killed": case("mq-498-upgrade-killed-early"),
    "log-files-only": log_files_only,
    "one-file": one_file,
}
MEMBERS = ("n0", "n1", "n2")
STORES: dict[str, dict[str, Make]] = {
    "01-incident": SINGLE_STORES,
    "02-replicas": {
        "plain-commitlog": lambda folder: [*case("mq-plain")(folder), *case("mq-plain-crc")(folder)],
        "no-index": case("mq-498-three-diverged", *MEMBERS, without=NO_INDEX),
        "no-consumequeue": case("mq-498-three-diverged", *MEMBERS, without=NO_QUEUES),
        "no-messages": case("raw-three-diverged", *(f"dledger-{member}" for member in MEMBERS)),
        "no-entries": case("raw-040-snapshot-blank", *(f"dledger-{member}" for member in MEMBERS)),
        "equal": case("mq-53-live", *MEMBERS),
        "two-groups": lambda folder: [*case("mq-498-single")(folder), *case("mq-53-three", "n0")(folder)],
        "one-path": case("mq-498-single"),
    },
    "03-log-and-consumequeue": {
        name: SINGLE_STORES[name]
        for name in ("plain-commitlog", "no-index", "no-consumequeue", "no-messages", "log-files-only")
    },
    "04-time": SINGLE_STORES,
    "05-salvage": {
        "different-logs": lambda folder: [*case("mq-plain")(folder), *case("mq-plain-crc")(folder)],
        "no-messages": case("raw-three", *(f"dledger-{member}" for member in MEMBERS)),
        "one-path": case("mq-498-single"),
    },
}
# What a cell prints instead of a figure or a table, by notebook and store.
SAYS = {
    ("01-incident", "plain-commitlog"): "this is no store of a DLedger node",
    ("01-incident", "no-consumequeue"): "the store has no ConsumeQueue units",
    ("01-incident", "no-messages"): "the log has no messages",
    ("02-replicas", "plain-commitlog"): "no replica has DLedger entries",
    ("02-replicas", "no-messages"): "the entries have no times",
    ("02-replicas", "equal"): "the replicas do not contradict each other",
    ("02-replicas", "one-path"): "STORE has one path",
    ("03-log-and-consumequeue", "plain-commitlog"): "expected topics.json",
    ("03-log-and-consumequeue", "no-messages"): "the log has no messages",
    ("03-log-and-consumequeue", "log-files-only"): "found a log folder without its root",
    ("04-time", "no-messages"): "the log has no messages with times",
    ("05-salvage", "different-logs"): "the logs diverged",
    ("05-salvage", "no-messages"): "no copy is damaged",
    ("05-salvage", "one-path"): "heal needs replicas",
    ("04-time", "no-index"): "only the bundled store has a record of events",
}
# These lack nothing that the notebook shows.
COMPLETE = {
    ("01-incident", "no-index"),
    *(("02-replicas", name) for name in ("no-index", "no-consumequeue", "two-groups")),
}


def other_stores() -> Iterator[object]:
    for path in NOTEBOOKS:
        for name in some(STORES[path.stem], 4):
            yield pytest.param(path, name, id=f"{path.stem}-{name}")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """The shell of a notebook's kernel, in this process."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    InteractiveShell.clear_instance()
    # The next test gets a scratch folder of its own.
    for name in ("plots", "stores"):
        sys.modules.pop(name, None)


def run_cells(shell: InteractiveShell, cells: list[str]) -> tuple[str, list[RichOutput]]:
    """What the cells print, and what else they show. Raises the first error of a cell."""
    printed, shown = "", []
    for cell in cells:
        with capture_output() as captured:
            shell.display_trap.hook = sys.displayhook
            result = shell.run_cell(cell)
        assert result.success, f"{cell}\n{captured.stdout}{captured.stderr}"
        printed += captured.stdout
        shown += captured.outputs
    return printed, shown


@pytest.mark.slow
@pytest.mark.parametrize(("path", "name"), list(other_stores()))
def test_a_notebook_runs_on_another_store_and_leaves_it_as_it_was(
    path: Path, name: str, shell: InteractiveShell, tmp_path: Path
) -> None:
    given = [str(store) for store in STORES[path.stem][name](tmp_path)]
    before = fingerprint(tmp_path)
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    value = given if path.stem in WITH_REPLICAS else given[0]
    cells[0], count = STORE_LINE.subn(lambda _: f"STORE = {value!r}", cells[0])
    assert count == 1
    printed, shown = run_cells(shell, cells)
    assert fingerprint(tmp_path) == before
    lines = [line for line in printed.splitlines() if line]
    assert [line for line in lines if not line.startswith("Skipped: ")] == []
    assert SAYS.get((path.stem, name), "") in printed
    assert (lines == []) == ((path.stem, name) in COMPLETE)
    assert shown or lines


@pytest.mark.slow
def test_the_notebooks_damage_copies_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    stores = importlib.import_module("stores")
    store = unpack("mq-498-single", tmp_path)
    bundled = Path(stores.bundled("mq-498-single"))
    for root in (store, bundled):
        file = root / "checkpoint"
        with pytest.raises(ValueError, match="only copies are damaged"):
            stores.zero(file, 0, 8)
        with pytest.raises(ValueError, match="only copies are damaged"):
            stores.delete(file)
        assert file.exists()
    copied = Path(stores.copy(str(store), "copied"))
    assert [path.read_bytes() for path in files_of(copied)] == [path.read_bytes() for path in files_of(store)]
    stores.zero(copied / "checkpoint", 0, 8)
    stores.delete(copied / "checkpoint")
    monkeypatch.setattr(stores, "MAX_COPY_BYTES", 1 << 20)
    with pytest.raises(stores.MissingError, match=r"is not copied: the limit stores\.MAX_COPY_BYTES is"):
        stores.copy(str(store), "again")
    with pytest.raises(stores.MissingError, match="only a local store is copied"):
        stores.copy("s3://bucket/store", "again")


def files_of(store: Path) -> list[Path]:
    """The files that a copy has, in order."""
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "lock")


def test_the_live_golden_has_what_was_acknowledged_to_its_producer(case_folder: Callable[[str], Path]) -> None:
    acknowledged = json.loads((GOLDENS / "mq-53-live.meta.json").read_text())["acknowledged"]
    for node in ("n0", "n1", "n2"):
        log = dl.open_log(case_folder("mq-53-live") / node)
        columns = ["topic", "queueId", "queueOffset", "offsetMsgId", "uniqKey"]
        rows = pa.Table.from_batches(log.scan(columns, topic=",".join(acknowledged["topics"]))).to_pylist()
        assert len(rows) == acknowledged["messages"]
        lines = sorted("\t".join(str(row[name]) for name in columns) for row in rows)
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == acknowledged["sha256"], node
