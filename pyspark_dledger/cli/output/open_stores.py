"""What all verbs have in common: opening the stores that were named, with the options that were given."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.errors import OptionError

if TYPE_CHECKING:
    from pyspark_dledger.log import Log

# From here on a number is milliseconds since 1970 (2001 and later), below it an index.
FIRST_EPOCH_MS = 10**12
_PLACE = re.compile(r"(index|pos)=(\d+)")


def options_of(given: argparse.Namespace) -> dict[str, str]:
    """The options of a read: those of ``-o`` and those that have an argument of their own."""
    options: dict[str, str] = {}
    for text in given.option:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"-o {text}: expected NAME=VALUE, found no =")
        _add(options, name, value)
    for name in ("table", "topic", "tags", "queueId"):
        if (value := getattr(given, name, None)) is not None:
            _add(options, name, value)
    for which in ("starting", "ending"):
        if (place := getattr(given, which, None)) is not None:
            _add(options, *place_option(which, place))
    return options


def _add(options: dict[str, str], name: str, value: str) -> None:
    if name.lower() in map(str.lower, options):
        raise OptionError(f"option {name} is given twice: give it once")
    options[name] = value


def place_option(which: str, text: str) -> tuple[str, str]:
    """The option that a place means: an index, ``pos=N``, ``earliest``, ``latest``, or a time (ISO 8601, epoch ms)."""
    if match := _PLACE.fullmatch(text):
        return f"{which}Offsets", f'{{"{match[1]}": {match[2]}}}'
    if text.lower() in ("earliest", "latest") or (text.isdecimal() and int(text) < FIRST_EPOCH_MS):
        return f"{which}Offsets", text
    return f"{which}Timestamp", text


def open_given(given: argparse.Namespace) -> Log:
    """The store at the first path; further paths are its replicas."""
    from pyspark_dledger.log import open_log

    options = options_of(given)
    first, *others = given.path
    if others:
        import json

        _add(options, "replicas", json.dumps(others))
    return _checked(given, open_log(first, **options))


def open_each(given: argparse.Namespace) -> Iterator[Log]:
    """The store at each path."""
    from pyspark_dledger.log import open_log

    options = options_of(given)
    return (_checked(given, open_log(path, **options)) for path in given.path)


def _checked(given: argparse.Namespace, log: Log) -> Log:
    if log.options.table != "log" and not hasattr(given, "table"):
        raise OptionError("-o table: only dump prints any table: use dump --table NAME")
    return log
