"""``dledger report``: one page of what an operator asks of a store first."""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.cli.exits import CLEAN, FINDINGS
from pyspark_dledger.cli.output.open_stores import open_given
from pyspark_dledger.cli.output.output import Output, note
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.json_text import json_line

if TYPE_CHECKING:
    from pyspark_dledger.log import Log

_OF_REPLICAS = ("replicas", "groupsize")
_NEEDED = ("jinja2", "matplotlib")
_HEAD_BYTES = 4096
MARKER = "dledger report"
"""What the head of a page says that made it, so that a later report may take its place."""


def report(given: argparse.Namespace, out: Output) -> int:
    """Write the page, or print the facts as JSON; `FINDINGS` where the verdict has a warning or an error."""
    if not given.json:
        _check_extra()
    log, compared = _open(given)
    target = (
        None if given.json or given.output == "-" else _checked_target(Path(given.output), [log, *_replicas(compared)])
    )

    from pyspark_dledger.cli.report.facts import gather
    from pyspark_dledger.cli.report.verdict import TROUBLE, verdicts

    facts = gather(log, compared, out.progress)
    if given.redact:
        from pyspark_dledger.cli.report.redacted import redacted

        facts = redacted(facts)
    code = FINDINGS if any(verdict.level in TROUBLE for verdict in verdicts(facts)) else CLEAN
    if given.json:
        out.line(json_line(facts.as_json()))
        return code

    from pyspark_dledger.cli.report.page import render

    now = datetime.now(timezone.utc)
    page = render(facts, f" at {now:%Y-%m-%d %H:%M:%S} UTC")
    if target is None:
        out.line(page)
    else:
        _write(target, page)
        note(f"wrote {given.output}")
    return code


def _check_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"report: expected jinja2 and matplotlib, found no {' and no '.join(missing)}: "
            f"pip install {' '.join(missing)}, or --json for the facts without a page"
        )


def _open(given: argparse.Namespace) -> tuple[Log, Log | None]:
    """The store by itself, and with its replicas where some are given: they may contradict it, which a read refuses."""
    compared = open_given(given) if len(given.path) > 1 else None
    given = argparse.Namespace(**{**vars(given), "path": given.path[:1]})
    log = open_given(given)
    if log.options.replicas:
        compared = log
        given.option = [text for text in given.option if text.partition("=")[0].lower() not in _OF_REPLICAS]
        log = open_given(given)
    return log, compared


def _replicas(compared: Log | None) -> list[Log]:
    return compared.replicas if compared is not None else []


def _checked_target(target: Path, logs: Iterable[Log]) -> Path:
    """`target`, if a page may be written there: not into a store that is read, and over nothing but another page."""
    folder = target.parent.resolve()
    if not folder.is_dir():
        raise StoreError(f"{target}: expected a folder to write the page to, found no {target.parent}: make it first")
    for store in (store for log in logs for store in _folders(log)):
        if folder == store or store in folder.parents:
            raise StoreError(
                f"{target}: expected a place outside the store, found it in {store}: nothing is written to a store "
                "that is read, choose another -o"
            )
    if os.path.lexists(target) and not _is_page(target):
        raise StoreError(
            f"{target}: expected nothing there, or a page of an earlier report, found something else: choose another "
            "-o, or move it away"
        )
    return target


def _folders(log: Log) -> list[Path]:
    """All folders of a store on this machine: the one around a broker's log, else those of the log itself."""
    from pyspark_dledger.cli.report.facts import is_broker

    paths = log.paths
    found = [paths.root if is_broker(log) else None, paths.node_dir, *paths.data_dirs, *paths.commitlog_dirs]
    # What is remote is no Path, and no file is written there.
    return [folder.resolve() for folder in found if isinstance(folder, Path)]


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return f'<meta name="generator" content="{MARKER}">'.encode() in file.read(_HEAD_BYTES)


def _write(target: Path, page: str) -> None:
    """Write the page whole or not at all."""
    descriptor, name = tempfile.mkstemp(prefix=".dledger-report-", suffix=".html", dir=target.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
