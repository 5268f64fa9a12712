"""Opening the stores that the command line names, with its options."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pyspark_dledger.cli.arguments import ROW_POSITION
from pyspark_dledger.errors import OptionError
from pyspark_dledger.log import Log
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.store_paths import node_folders
from pyspark_dledger.log.options import USES, ReadOptions, check_use, find_option, parse_options
from pyspark_dledger.log.store_view import answer, with_end

MIN_EPOCH_MS = 10**12
"""A number from here on is milliseconds since 1970 (2001 and later), a smaller one an index."""
_POSITION = re.compile(r"(index|pos)=(\d+)")


def read_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of a read: those of ``--option``, and those that have a flag of their own."""
    options: dict[str, str] = {}
    for text in args.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--option {text}: expected NAME=VALUE, found no =")
        set_option(options, name, value)
    for name in ("table", "topic", "tags", "queueId"):
        if (value := getattr(args, name, None)) is not None:
            set_option(options, name, value, args.flags[name][0])
    for which in ("starting", "ending"):
        if (position := getattr(args, which, None)) is not None:
            name, value = position_option(which, position)
            set_option(options, name, value, args.flags[name][0])
    return options


def options_with_replicas(args: argparse.Namespace) -> dict[str, str]:
    """The options of a read of the store at the first path; further paths are its replicas."""
    options, others = read_options(args), args.path[1:]
    if others:
        set_option(options, "replicas", json.dumps(others), "further paths")
    return options


def set_option(options: dict[str, str], name: str, value: str, flag: str | None = None) -> None:
    """Set an option that is not set yet. `flag` sets it, by default ``--option``. Raises OptionError."""
    if name.lower() in map(str.lower, options):
        if flag is None:
            raise OptionError(f"option {name} is given twice: give it once")
        raise OptionError(f"option {name} and {flag} are both given: give one of them")
    options[name] = value


def position_option(which: str, text: str) -> tuple[str, str]:
    """The option for a position: an index, ``pos=N``, ``earliest``, ``latest``, or a time (ISO 8601, epoch ms).

    Raises OptionError for anything else.
    """
    if match := _POSITION.fullmatch(text):
        return f"{which}Offsets", f'{{"{match[1]}": {match[2]}}}'
    if text.lower() in ("earliest", "latest") or (text.isdecimal() and int(text) < MIN_EPOCH_MS):
        return f"{which}Offsets", text
    name = f"{which}Timestamp"
    try:
        find_option(name).parser.parse(text)
    except ValueError:
        raise OptionError(f"option {name}: expected {ROW_POSITION}, found {text!r}") from None
    return name, text


def replica_paths(paths: list[str]) -> list[str]:
    """The paths of replicas. A single folder with several nodes, or brokers' roots, stands for these."""
    folder = path_of(paths[0])
    if len(paths) > 1 or not folder.is_dir():
        return paths
    nodes = list(node_folders(folder, _names(folder)).values())
    if not nodes and not (folder / "commitlog").is_dir():
        nodes = [folder / name for name in _names(folder) if _is_root(folder / name)]
    return [str(node) for node in nodes] if len(nodes) > 1 else paths


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _is_root(folder: Path) -> bool:
    return folder.is_dir() and bool((folder / "commitlog").is_dir() or node_folders(folder, _names(folder)))


def open_store(args: argparse.Namespace, use: str | None = None, leave_out: bool = False) -> Log:
    """The store at the first path; further paths are its replicas.

    With `leave_out`, logs are without the files that cannot be read; the caller names these. Raises OptionError for an
    option without an effect on `use`, by default the table that the options name.
    """
    parsed = parse_options(options_with_replicas(args))
    check_use(parsed, use or f"table {parsed.table}")
    log = _opened(args.path[0], parsed, leave_out)
    if not parsed.heal:
        return log
    from pyspark_dledger.log.healed_log import HealedLog  # loads pyarrow

    return HealedLog(log)


def open_stores(args: argparse.Namespace, use: str, leave_out: bool = False) -> Iterator[Log]:
    """The store at each path, with heal one store of all paths; see `open_store`."""
    options = parse_options(read_options(args))
    if options.heal and "heal" in USES[use]:
        return iter([open_store(args, use, leave_out)])
    check_use(options, use)
    return (_opened(path, options, leave_out) for path in args.path)


def _opened(path: str, options: ReadOptions, leave_out: bool) -> Log:
    return answer(Log(path, replace(options, unread=())), with_end) if leave_out else Log(path, options)
