"""What docs/ says of the repository is so: paths, links, layouts, settings; without running anything."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import build_parser
from pyspark_dledger.format.layout import Field
from tests.support.groups import free_ports
from tools.docs import FILES, TABLES

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = (*FILES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "examples/README.md")))
FORMAT = (ROOT / "docs" / "format.md").read_text()
# `log/plan.py`, `native/scan.cpp`, `tests/goldens/`: below the repository or the package. Not `dledger-<id>/` and other
# folders of a store: those begin with a name that is in neither.
_PATH = re.compile(r"`([a-z_]+/[\w./-]*)`")
_SOURCE = re.compile(r"\.(py|cpp|hpp|java|sql|md)$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(file: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", file.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(file: Path) -> set[str]:
    """The fragments that headings of a page can be linked by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text_of(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def named_paths(file: Path) -> Iterator[str]:
    """What looks like a path of the repository: a source file, or its first folder is there."""
    for name in _PATH.findall(text_of(file)):
        first = name.split("/")[0]
        if _SOURCE.search(name) or (ROOT / first).is_dir() or (ROOT / "pyspark_dledger" / first).is_dir():
            yield name


def verbs_and_flags() -> dict[str, set[str]]:
    """The verbs of the command line with their long flags, as docs/cli.md has them."""
    head, _, rest = (ROOT / "docs" / "cli.md").read_text().partition("\n## Arguments of several verbs\n")
    shared, _, own = rest.partition("\n## Arguments of one verb\n")
    flags = {verb: {"--help"} for verb in re.findall(r"^- \[?`([a-z]+)`", head, re.MULTILINE)}
    for is_rest, names, lines in re.findall(
        r"^(All but )?(`[a-z`, ]+`):\n\n((?:(?:- |  ).*\n)+)", shared, re.MULTILINE
    ):
        named = set(re.findall(r"[a-z]+", names))
        assert named <= set(flags)
        for verb in flags.keys() - named if is_rest else named:
            flags[verb].update(re.findall(r"`(--[a-z0-9-]+)", lines))
    for part in own.split("\n### ")[1:]:
        flags[part.split("\n")[0]].update(re.findall(r"`(--[a-z0-9-]+)", part))
    return flags


def commands(file: Path) -> Iterator[str]:
    """What follows `dledger` in code, inline or in lines of a block; alternatives such as `VERB` and `...` are none."""
    text = file.read_text()
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    shown = re.findall(r"`dledger ([^`]+)`", text_of(file))
    shown += [line for line in re.findall(r"^(?:\$ )?dledger (\S.*)", blocks, re.MULTILINE) if ": " not in line]
    yield from (command for command in shown if command.split()[0] not in {"VERB", "..."})


def layouts() -> dict[str, tuple[Field, ...]]:
    """Every layout of the package by where it stands."""
    found = {}
    for module in pkgutil.walk_packages(dl.__path__, "pyspark_dledger."):
        source = ROOT / (module.name.replace(".", "/") + ".py")
        if not source.exists() or not re.search(r"\bField\(", source.read_text()):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, tuple) and value and all(isinstance(field, Field) for field in value):
                found[f"{module.name}.{name}"] = value
    return found


def shown_layouts() -> list[list[tuple[str, int, int]]]:
    """The fields of each layout in docs/format.md."""
    rows = FORMAT.split("<!-- layouts -->")[1].split("<!-- /layouts -->")[0].splitlines()
    found = (re.findall(r"`(\w+)` (\d+)\+(\d+)", row) for row in rows)
    return [[(name, int(at), int(size)) for name, at, size in fields] for fields in found if fields]


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_named_paths_exist(file: Path) -> None:
    missing = [
        name
        for name in named_paths(file)
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "pyspark_dledger"))
    ]
    assert not missing


def test_the_architecture_names_modules() -> None:
    """Were nothing recognized as a path, the test above would be about nothing."""
    named = set(named_paths(ROOT / "docs" / "architecture.md"))
    assert {"log/plan.py", "native/scan.cpp", "raft/core/core.py", "tests/interop/"} <= named
    rooms = {path.name for path in (ROOT / "pyspark_dledger").iterdir() if (path / "__init__.py").exists()}
    assert {f"{room}/" for room in rooms} <= named


@pytest.mark.parametrize("file", DOCS, ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    broken = []
    for link in _LINK.findall(text_of(file)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_index_leads_to_every_page() -> None:
    links = set(_LINK.findall(text_of(ROOT / "docs" / "README.md")))
    assert {file.name for file in FILES} - {"README.md"} <= links
    assert "docs/README.md" in _LINK.findall(text_of(ROOT / "README.md"))


@pytest.mark.parametrize("file", [*DOCS, ROOT / "CHANGELOG.md"], ids=lambda file: file.name)
def test_commands_have_these_verbs_and_flags(file: Path) -> None:
    verbs = {**verbs_and_flags(), "--version": set()}
    unknown = []
    for command in commands(file):
        verb, *words = command.split()
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        if verb not in verbs or not flags <= verbs[verb]:
            unknown.append(command)
    assert not unknown


def test_the_page_of_the_command_line_has_every_verb_and_flag() -> None:
    """As the parser has them: the page groups arguments by the verbs that share them."""
    verbs = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)).choices
    taken = {
        name: {flag for action in verb._actions if action.help != argparse.SUPPRESS for flag in action.option_strings}
        for name, verb in verbs.items()
    }
    assert verbs_and_flags() == {name: {flag for flag in flags if flag[:2] == "--"} for name, flags in taken.items()}


def test_every_layout_is_in_the_format() -> None:
    found = layouts()
    assert "pyspark_dledger.format.layout.ENTRY_HEADER" in found
    shown = shown_layouts()
    missing = []
    for place, fields in found.items():
        rows = [(field.name, field.offset, field.length) for field in fields]
        # A reader of a part of a layout, such as of its first fields, needs no table of its own.
        if not any(rows == table[: len(rows)] for table in shown):
            missing.append(place)
    assert not missing


def test_every_generated_table_is_shown() -> None:
    text = "".join(file.read_text() for file in FILES)
    assert [name for name in TABLES if f"<!-- {name} -->\n" not in text] == []


def test_the_dump_of_an_entry_is_whole() -> None:
    """The bytes shown are as many as the header says, and each stands where the lines say."""
    dump = FORMAT.split("<!-- real-entry -->")[1].split("```")[1]
    data = bytearray()
    for line in dump.splitlines()[3:]:
        offset, shown = int(line[:4]), line[6:23].strip()
        assert offset == len(data)
        data += bytes.fromhex(shown)
    assert len(data) == int.from_bytes(data[4:8], "big") == 48 + int.from_bytes(data[44:48], "big")


def test_every_setting_of_a_broker_that_counts_is_in_the_docs() -> None:
    source = (ROOT / "pyspark_dledger" / "rocketmq" / "broker" / "broker_conf.py").read_text()
    names = set(re.findall(r'given\.(?:text|number|boolean)\(\s*"(\w+)"', source))
    assert "dLegerPeers" in names
    shown = set(re.findall(r"\w+", (ROOT / "docs" / "node.md").read_text()))
    assert names <= shown


def test_every_call_of_a_client_is_in_the_docs() -> None:
    shown = set(re.findall(r"\w+", (ROOT / "docs" / "client.md").read_text()))
    calls = {name for name in vars(dl.Client) if not name.startswith("_")}
    assert "append_batch" in calls
    assert calls | set(inspect.signature(dl.connect).parameters) <= shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "printed"),
    [
        ("## The store as a library", r"b'one' 1"),
    ],
    ids=["store"],
)
def test_programs_of_the_node_page_run(head: str, printed: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "node.md").read_text()
    code = page[page.index(head) :].split("```python\n")[1].split("```")[0]
    code = code.replace("/data", str(tmp_path)).replace("20911", str(free_ports(1)[0]))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(printed, run.stdout.strip()), run.stdout
