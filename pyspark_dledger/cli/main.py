"""``dledger VERB PATH``: what a store is (``state``), and its rows (``dump``)."""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from pyspark_dledger import __version__
from pyspark_dledger.errors import DLedgerError, OptionError

CLEAN, FINDINGS, CANNOT = 0, 1, 2

_LINE_COLUMNS = (
    *("source", "index", "term", "pos", "size", "kind", "committed"),
    *("topic", "queueId", "queueOffset", "storeTimestamp", "tags", "keys", "problem"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 clean, 1 rows with a problem, 2 it cannot be done."""
    given = _parser().parse_args(arguments)
    try:
        code = int(given.run(given))
        sys.stdout.flush()
        return code
    except DLedgerError as error:
        print(f"dledger: {error}", file=sys.stderr)
        return CANNOT
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing may be written to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLEAN
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger", description="Look into DLedger logs and RocketMQ stores, read-only."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (("state", _state, "what a store is and where it stands"), ("dump", _dump, "the rows")):
        verb = verbs.add_parser(name, help=text, description=f"Print {text}.")
        verb.set_defaults(run=run)
        verb.add_argument("path", help="a store, a node's folder, a folder of segments, or one segment file")
        verb.add_argument("--json", action="store_true", help="one JSON object a line; bodies in base64")
        verb.add_argument(
            "--option", "-o", action="append", default=[], metavar="NAME=VALUE", help="an option of a read"
        )
        if run is _dump:
            verb.add_argument("--columns", help="a comma list; default: those that fit a line, with --json all")
    return parser


def _options(given: argparse.Namespace) -> dict[str, str]:
    options = {}
    for text in given.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--option {text}: expected NAME=VALUE, found no =")
        options[name] = value
    return options


def _state(given: argparse.Namespace) -> int:
    from pyspark_dledger.log import open_log

    state = dataclasses.asdict(open_log(given.path, **_options(given)).state)
    named = {_camel(name): value for name, value in state.items()}
    if given.json:
        print(json.dumps(named))
    else:
        width = max(map(len, named))
        for name, value in named.items():
            print(f"{name:{width}}  {'-' if value is None else value}")
    return CLEAN


def _dump(given: argparse.Namespace) -> int:
    from pyspark_dledger.log import open_log

    columns = given.columns.split(",") if given.columns else None if given.json else list(_LINE_COLUMNS)
    code = CLEAN
    for row in _rows(open_log(given.path, **_options(given)), columns):
        code = FINDINGS if row.get("problem") is not None else code
        print(json.dumps(row, default=_plain, ensure_ascii=False) if given.json else _line(row))
    return code


def _rows(log: Any, columns: list[str] | None) -> Iterator[dict[str, Any]]:
    for batch in log.scan(columns):
        yield from batch.to_pylist(maps_as_pydicts="strict")


def _line(row: dict[str, Any]) -> str:
    """A row's columns that are not null."""
    return " ".join(f"{name}={_shown(value)}" for name, value in row.items() if value is not None)


def _shown(value: object) -> str:
    plain = value if isinstance(value, str) else json.dumps(value, default=_plain, ensure_ascii=False)
    return plain if plain and plain.isprintable() and " " not in plain else json.dumps(value, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    raise TypeError(f"expected bytes or a time, found {type(value).__name__}")


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
