"""A node's log records: one line each, a name and fields, as ``key=value`` or as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Literal

LOG = logging.getLogger("pyspark_dledger.node")

LogFormat = Literal["text", "json"]

# Of one kind a second; what strangers can cause must not fill a disk.
_MOST_A_SECOND = 20
# Seconds between two records of the same problem, and how many problems are told apart.
_SAME_SECONDS = 10.0
_MOST_PROBLEMS = 256
# Terms and indexes; the digits of an id such as n1 are none.
_NUMBERS = re.compile(r"\b\d+\b")


def record(level: int, event: str, **fields: object) -> None:
    """Log `event` with its fields."""
    if LOG.isEnabledFor(level):
        LOG.log(level, event, extra={"fields": fields})


class Limited:
    """Logs events that strangers cause, so many a second at most; what was left out is counted in the next one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = -1
        self._count = 0
        self._left_out = 0

    def __call__(self, level: int, event: str, **fields: object) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > _MOST_A_SECOND:
            self._left_out += 1
            return
        if self._left_out:
            fields["leftOut"], self._left_out = self._left_out, 0
        record(level, event, **fields)


class Seldom:
    """Logs problems that last, each every 10 s at most. Those that differ in numbers only, such as terms, are the same.

    What was left out of a problem is counted in the next record of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each was logged, and how often it came since.
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, level: int, event: str, found: str) -> None:
        key, now = _NUMBERS.sub("0", found), self._clock()
        logged, left_out = self._logged.get(key, (now - _SAME_SECONDS, 0))
        if now - logged < _SAME_SECONDS:
            self._logged[key] = logged, left_out + 1
            return
        if len(self._logged) >= _MOST_PROBLEMS:
            self._logged.clear()
        self._logged[key] = now, 0
        record(level, event, found=found, **({"leftOut": left_out} if left_out else {}))


def log_to_stderr(form: LogFormat, **always: object) -> None:
    """Send this package's records to standard error, each with the fields of `always`, and warnings as records, too."""
    handler = _ToStderr()
    handler.setFormatter(_JsonLines(always) if form == "json" else _TextLines(always))
    package = logging.getLogger("pyspark_dledger")
    package.handlers[:] = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False
    warnings.showwarning = _record_warning


class _ToStderr(logging.Handler):
    """To what standard error is at that moment: a status line that is redrawn there puts itself in between."""

    def emit(self, found: logging.LogRecord) -> None:
        try:
            print(self.format(found), file=sys.stderr, flush=True)  # noqa: T201  # it is what it is for
        except OSError:
            self.handleError(found)


def _record_warning(message: Warning | str, *_: object, **_named: object) -> None:
    record(logging.WARNING, "warning", found=str(message))


def _time_of(found: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.created))
    return f"{whole}.{int(found.msecs):03d}Z"


class _Lines(logging.Formatter):
    """Every record with the same fields first."""

    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self._always = always

    def fields_of(self, found: logging.LogRecord) -> dict[str, object]:
        fields: dict[str, object] = {**self._always, **getattr(found, "fields", {})}
        if found.exc_info:
            fields["trace"] = self.formatException(found.exc_info)
        return fields


class _TextLines(_Lines):
    """``TIME LEVEL EVENT key=value ...``; a value that is not one word is quoted as JSON does."""

    def format(self, found: logging.LogRecord) -> str:
        fields = "".join(
            f" {name}={_word(value)}" for name, value in self.fields_of(found).items() if value is not None
        )
        return f"{_time_of(found)} {found.levelname} {found.getMessage()}{fields}"


class _JsonLines(_Lines):
    """One object a line: ``time``, ``level``, ``event`` and the fields."""

    def format(self, found: logging.LogRecord) -> str:
        row = {"time": _time_of(found), "level": found.levelname, "event": found.getMessage(), **self.fields_of(found)}
        return json.dumps(row, default=str)


def _word(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and text and not set(' "=') & set(text) else json.dumps(text)
