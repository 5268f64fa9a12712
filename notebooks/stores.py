"""What the notebooks share: bundled stores, copies to damage, tables, and how figures are shown."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from IPython.display import display

import pyspark_dledger as dl
from pyspark_dledger.cli.report import drawing
from pyspark_dledger.rocketmq.tables import TABLES, read_table, table_dataset

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests" / "goldens"

MAX_COPY_BYTES = 1 << 30
"""`copy` refuses a store with more bytes on disk than this."""

# What a broker has in its storePathRootDir in addition to the log.
_ROOT_ENTRIES = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "checkpoint", "abort")
_BLOCK = 1 << 20
# How DuckDB quotes an error of a table.
_QUOTED_ERROR = re.compile(r"^pyspark_dledger\.errors\.\w+: (.*)$", re.MULTILINE)

pd.set_option("display.max_colwidth", None)
pd.set_option("display.max_columns", None)
pd.set_option("display.width", 160)


class MissingError(Exception):
    """The store has nothing for a cell to show; the text says what it lacks."""


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="dledger-")


def scratch() -> Path:
    """The folder of this notebook's copies. It is removed when the notebook's process ends."""
    return Path(_scratch().name).resolve()


# Stores


@cache
def _unpack(case: str) -> Path:
    with tarfile.open(GOLDENS / f"{case}.tar.gz") as archive:
        # The safe filter, which Python 3.10 and 3.11 have only in their later patch versions.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(scratch() / "bundled")  # noqa: S202 an archive of this repository
    return scratch() / "bundled" / case


def bundled(case: str, node: str = "") -> str:
    """Unpack a bundled store to the scratch folder; return its path, or that of one `node` of it."""
    return str(_unpack(case) / node)


def is_bundled(store: str) -> bool:
    """Whether a store is a bundled one."""
    return Path(store).is_relative_to(scratch() / "bundled")


def copy(store: str, name: str) -> str:
    """Copy a store to the scratch folder, as `name`; return the path of the copy. Holes in files stay holes.

    Raises MissingError for a remote store and for one above MAX_COPY_BYTES.
    """
    if "://" in store:
        raise MissingError(f"{store} is remote, and only a local store is copied.")
    store = str(Path(store).absolute())
    paths = dl.open_log(store).paths
    folders = {*paths.data_dirs, *paths.commitlog_dirs}
    root = paths.root or min(folders).parent
    parts = [root / entry for entry in _ROOT_ENTRIES if paths.root is not None]
    parts += [paths.node_dir] if paths.node_dir is not None else []
    parts += [folder for folder in folders if paths.node_dir is None or not folder.is_relative_to(paths.node_dir)]
    size = sum(_disk_bytes(part) for part in parts)
    if size > MAX_COPY_BYTES:
        limit = f"{MAX_COPY_BYTES / 2**30:g} GiB"
        text = f"the store has {size / 2**30:.1f} GiB and is not copied: the limit stores.MAX_COPY_BYTES is {limit}."
        raise MissingError(text)
    target = scratch() / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for part in parts:
        if part.is_dir():
            shutil.copytree(part, target / part.relative_to(root), copy_function=_copy_file)
        elif part.exists():
            _copy_file(part, target / part.relative_to(root))
    return str(target / Path(store).relative_to(root))


def _disk_bytes(part: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in (part, *part.rglob("*")) if path.is_file())


def _copy_file(source: str | Path, target: str | Path) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while block := reader.read(_BLOCK):
            if block.count(0) == len(block):
                writer.seek(len(block), os.SEEK_CUR)
            else:
                writer.write(block)
        writer.truncate()
    shutil.copystat(source, target)


def data_file(copy: str, segment: str) -> Path:
    """The path of a file of the log, by its name, in a copy."""
    paths = dl.open_log(copy).paths
    return next(folder / segment for folder in (*paths.data_dirs, *paths.commitlog_dirs) if (folder / segment).exists())


def zero(file: Path, first: int, count: int) -> None:
    """Overwrite `count` bytes of a copy's file with zeros, from byte `first` on."""
    _check_is_copy(file)
    with open(file, "r+b") as opened:
        opened.seek(first)
        opened.write(bytes(count))


def delete(file: Path) -> None:
    """Delete a file of a copy."""
    _check_is_copy(file)
    file.unlink()


def _check_is_copy(path: Path) -> None:
    if not path.resolve().is_relative_to(scratch()) or is_bundled(str(path.resolve())):
        raise ValueError(f"{path} is not in a copy below {scratch()}: only copies are damaged")


# What a store lacks


def need(is_there: Any, text: str) -> None:
    """Raise MissingError with `text` if nothing is there."""
    if isinstance(is_there, pd.DataFrame | pd.Series):
        is_there = len(is_there)
    if not is_there:
        raise MissingError(text)


@contextmanager
def in_one_line() -> Iterator[None]:
    """Print what the store lacks in one line, instead of a traceback, and skip the rest of the block."""
    try:
        yield
    except (MissingError, dl.StoreError, dl.OptionError) as error:
        sys.stdout.write(f"Skipped: {error}\n")
    except Exception as error:
        quoted = _QUOTED_ERROR.search(str(error)) if type(error).__module__ in ("duckdb", "_duckdb") else None
        if quoted is None:
            raise
        sys.stdout.write(f"Skipped: {quoted[1]}\n")


# Tables and figures


def tables(store: str) -> DuckDBPyConnection:
    """Connect DuckDB to the log and the other tables of a store, as views. Each query reads the store again."""
    import duckdb

    log = dl.open_log(store)
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("log", log.dataset())
    for name in TABLES:
        connection.register(name, table_dataset(log, name))
    return connection


def frame(log: dl.Log, table: str) -> pd.DataFrame:
    """A table of a store, in memory."""
    batches = list(read_table(log, table))
    return pa.Table.from_batches(batches, TABLES[table].schema).to_pandas(maps_as_pydicts="strict")


def entries(log: dl.Log, columns: list[str], **options: Any) -> pd.DataFrame:
    """Columns of the log, in memory; `options` as in `Log.scan`."""
    batches = list(log.scan(columns, **options))
    if not batches:
        return pd.DataFrame(columns=columns)
    return pa.Table.from_batches(batches).to_pandas(maps_as_pydicts="strict")


def rows(items: list[dict[str, Any]], index: str | list[str]) -> pd.DataFrame:
    """Rows as a table to look at; the columns of `index` come first."""
    return pd.DataFrame(items).set_index(index)


def facts(items: dict[str, Any]) -> pd.DataFrame:
    """Names and values, as a table to look at."""
    return pd.DataFrame({"": [str(value) for value in items.values()]}, index=list(items))


def show(figure: Figure) -> None:
    """Show a figure. Its text is its title."""
    title = " ".join(figure.get_suptitle().split())
    bundle = {"image/png": drawing.png(figure), "text/plain": title}
    display(bundle, raw=True, metadata={"image/png": {"alt": title}})
