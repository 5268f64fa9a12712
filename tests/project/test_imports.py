"""The order of imports between the rooms, and how little `import pyspark_dledger` loads."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import syntax_tree

PACKAGE = "pyspark_dledger"
ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted((ROOT / PACKAGE).rglob("*.py"))

# Which rooms each room may import. The module api is a room; errors and __main__ are the room "".
MAY_IMPORT = {
    "": set(),
    "common": {""},
    "format": {"", "common"},
    "log": {"", "common", "format"},
    "store": {"", "common", "format", "log"},
    "raft": {"", "common", "format", "log", "store"},
    "rocketmq": {"", "common", "format", "log"},
    "cluster": {"", "common", "format", "log", "raft", "rocketmq"},
    "spark": {"", "common", "format", "log", "store", "raft", "rocketmq", "cluster"},
    "api": {"", "common", "format", "log", "store", "raft", "rocketmq", "cluster", "spark"},
    "cli": {"", "common", "format", "log", "store", "raft", "rocketmq", "cluster", "spark"},
}
# What only wires the rooms together: imports in functions only, so that loading it loads nothing.
ENTRY_POINTS = {f"{PACKAGE}/__init__.py", f"{PACKAGE}/__main__.py"}
SPARK_ONLY = {"pyspark", "py4j"}
# Rooms that may import Spark; api does so for types only.
WITH_SPARK = {"spark", "api"}


def module_of(path: Path) -> tuple[str, ...]:
    """``('pyspark_dledger', 'format', 'layout')`` for that file; a package's ``__init__`` names the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every absolute module name that `path` imports, wherever in the file the import stands."""
    here = module_of(path)
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node, name.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).rstrip(".")
            # `from . import x` imports a module x where there is one, else a name of the package.
            for name in node.names:
                child = ROOT.joinpath(*module.split("."), name.name)
                is_module = child.with_suffix(".py").exists() or child.is_dir() or name.name == "_native"
                yield node, f"{module}.{name.name}" if is_module else module


def room_of(module: str) -> str | None:
    """The room that `module` is in, ``""`` for modules right under the package; None for other packages' modules."""
    package, *rest = module.split(".")
    if package != PACKAGE:
        return None
    # The extension is format's other half.
    if rest[:1] == ["_native"]:
        return "format"
    return rest[0] if rest and rest[0] in MAY_IMPORT else ""


def test_every_folder_is_a_room() -> None:
    folders = {path.relative_to(ROOT / PACKAGE).parts[0] for path in FILES if path.parent != ROOT / PACKAGE}
    assert folders <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    room = room_of(".".join(module_of(path)))
    assert room is not None
    top_level = set(syntax_tree(path).body)
    wrong = []
    for node, module in imported(path):
        target = room_of(module)
        if str(path.relative_to(ROOT)) in ENTRY_POINTS:
            if target and node in top_level:
                wrong.append(f"line {node.lineno}: {module} is loaded by loading the package")
        elif target is not None and target != room and target not in MAY_IMPORT[room]:
            wrong.append(f"line {node.lineno}: {room or PACKAGE} imports {module}")
        if module.split(".")[0] in SPARK_ONLY and room not in WITH_SPARK:
            wrong.append(f"line {node.lineno}: {module} outside spark")
    assert not wrong


def import_circles() -> list[list[str]]:
    """The groups of modules that import each other, directly or through others; imports for types count.

    An import of the extension is none of the package that it is in.
    """
    modules = {".".join(module_of(path)): path for path in FILES}
    graph = {
        name: {found for _, found in imported(path) if found in modules} - {name} for name, path in modules.items()
    }
    reached = {name: reachable(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in groups if group)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """The modules that `start` imports, and those that they import."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        fresh = graph[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


def test_no_module_imports_itself_through_others() -> None:
    assert import_circles() == []


def run_python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_api_needs_no_spark() -> None:
    run = run_python(f"import sys, {PACKAGE}.api; print({{'pyspark', 'py4j', 'pyarrow'}} & set(sys.modules))")
    assert (run.returncode, run.stdout.strip()) == (0, "set()"), run.stderr


@pytest.mark.smoke
def test_import_is_cheap() -> None:
    run = run_python(f"import sys; before = set(sys.modules); import {PACKAGE}; print(*set(sys.modules) - before)")
    assert run.returncode == 0, run.stderr
    loaded = run.stdout.split()
    heavy = {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "crcmod", f"{PACKAGE}._native"}
    assert not heavy.intersection(loaded)
    assert len(loaded) < 20, loaded


def test_import_never_raises() -> None:
    """Spark imports every ``pyspark_*`` package of a machine: one that raises breaks the lookup of all data sources."""
    # Without site-packages none of the requirements is there.
    run = run_python(f"import {PACKAGE}; print({PACKAGE}.__name__)", "-S", "-E")
    assert (run.returncode, run.stdout.strip()) == (0, PACKAGE), run.stderr


@pytest.mark.smoke
def test_spark_lists_the_package() -> None:
    """Spark's discovery goes by `pkgutil.iter_modules`, which does not see every kind of editable install."""
    code = f"import pkgutil; print([m.name for m in pkgutil.iter_modules() if m.name == {PACKAGE!r}])"
    # Not in the repository: the current folder alone would make it visible there.
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    assert run.stdout.strip() == f"[{PACKAGE!r}]"


def test_extension_is_built() -> None:
    """Without it every test of the native engine would be about nothing."""
    assert importlib.util.find_spec(f"{PACKAGE}._native") is not None
