"""``dledger report``: writes an HTML page about a store."""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from pyspark_dledger.cli.arguments import add_option
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, read_exits
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.report import MARKER
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.common.uris import local_target
from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import REPORT
from pyspark_dledger.log.store_view import answer

_NEEDED = ("jinja2", "matplotlib")
_HEAD_BYTES = 4096


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.epilog = read_exits("a warning or an error in the verdict")
    parser.add_argument("path", nargs="+", metavar="STORE", help="the store, or all members of a group")
    result = parser.add_mutually_exclusive_group(required=True)
    text = "the file to write, outside the store; it may replace an earlier report only; - is standard output"
    result.add_argument("--output", "-o", metavar="FILE", help=text)
    text = "print what the page says as one JSON object instead"
    result.add_argument("--json", action="store_true", help=text)
    text = "for sharing: paths, topics, groups and what findings quote become redacted:DIGEST:LENGTH"
    parser.add_argument("--redact", action="store_true", help=text)
    add_option(parser, names=("--option",))


def run_report(args: argparse.Namespace, out: Output) -> int:
    """Write the page, or print the facts as JSON; `FINDINGS` where the verdict has a warning or an error."""
    if not args.json:
        _check_extra()
    log, compared = _open(args)
    target = (
        None
        if args.json or args.output == "-"
        else _checked_target(Path(local_target(args.output, "-o")), [log, *_replicas(compared)])
    )

    from pyspark_dledger.cli.report.facts import Facts, gather

    def gathered(asked: Log) -> Facts:
        return gather(_alone(asked), asked if compared is not None else None, out.progress)

    facts = answer(compared or log, gathered)
    if args.redact:
        from pyspark_dledger.cli.report.facts import redacted

        facts = redacted(facts)
    code = FINDINGS if facts.is_trouble else CLEAN
    if args.json:
        out.line(json_line(facts.as_json()))
        return code

    from pyspark_dledger.cli.report.page import render

    now = datetime.now(timezone.utc)
    page = render(facts, f" at {now:%Y-%m-%d %H:%M:%S} UTC")
    if target is None:
        out.escaped_line(page)
    else:
        _write(target, page)
        note(f"wrote {args.output}")
    return code


def _check_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(
            f"report: expected jinja2 and matplotlib, found no {' and no '.join(missing)}: "
            f"pip install {' '.join(missing)}, or --json for the facts without a page"
        )


def _open(args: argparse.Namespace) -> tuple[Log, Log | None]:
    """The store alone, and with its replicas where some are given: a read refuses replicas that contradict it."""
    log = open_store(args, REPORT, leave_out=True)
    if not log.options.replicas:
        return log, None
    return _alone(log), log


def _alone(log: Log) -> Log:
    return Log(log.path, replace(log.options, replicas=None, group_size=None))


def _replicas(compared: Log | None) -> list[Log]:
    return compared.replicas if compared is not None else []


def _checked_target(target: Path, logs: Iterable[Log]) -> Path:
    """`target`. Raises StoreError if it is in a store that is read, or exists and is no page."""
    folder = target.parent.resolve()
    if not folder.is_dir():
        raise StoreError(f"{target}: the folder {target.parent} does not exist: make it first")
    for store in (store for log in logs for store in _folders(log)):
        if folder == store or store in folder.parents:
            raise StoreError(f"{target}: is in the store {store}, which is only read: choose another -o")
    if os.path.lexists(target) and not _is_page(target):
        raise StoreError(f"{target}: exists and is not an earlier report: choose another -o, or move it away")
    return target


def _folders(log: Log) -> list[Path]:
    """The local folders of a store: a broker's root, or the folders of the log."""
    from pyspark_dledger.rocketmq.check.restart import is_broker

    paths = log.paths
    found = [paths.root if is_broker(log) else None, paths.node_dir, *paths.data_dirs, *paths.commitlog_dirs]
    # Remote folders are no Path.
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
