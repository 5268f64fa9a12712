"""The log of a node: one line per record, an event name and fields, as ``key=value`` or as JSON."""

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

_MAX_PER_SECOND = 20
# Of each value in characters: names in requests have up to 4096 bytes, and each character takes up to 6 when escaped.
_MAX_VALUE = 500
_REPEAT_SECONDS = 10.0
_MAX_PROBLEMS = 256
# Terms and indexes, but not the digits of an id such as n1.
_NUMBERS = re.compile(r"\b\d+\b")


def record(level: int, event: str, **fields: object) -> None:
    """Log `event` with its fields."""
    if LOG.isEnabledFor(level):
        LOG.log(level, event, extra={"fields": fields})


class RateLimitedLog:
    """Logs events that any client can cause, at most 20 a second and shortened, so that they cannot fill a disk.

    The next record counts the omitted ones (``leftOut``).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = -1
        self._count = 0
        self._omitted = 0

    def __call__(self, level: int, event: str, **fields: object) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > _MAX_PER_SECOND:
            self._omitted += 1
            return
        if self._omitted:
            fields["leftOut"], self._omitted = self._omitted, 0
        record(level, event, **{name: _shortened(value) for name, value in fields.items()})


def _shortened(value: object) -> object:
    text = str(value)
    return value if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."


class ProblemLog:
    """Logs each lasting problem at most every 10 s. Texts that differ only in numbers, such as terms, are one problem.

    The next record of a problem counts the omitted ones (``leftOut``).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each problem was logged, and how often it occurred since.
        self._logged: dict[str, tuple[float, int]] = {}

    def __call__(self, level: int, event: str, found: str) -> None:
        key, now = _NUMBERS.sub("0", found), self._clock()
        logged, omitted = self._logged.get(key, (now - _REPEAT_SECONDS, 0))
        if now - logged < _REPEAT_SECONDS:
            self._logged[key] = logged, omitted + 1
            return
        if len(self._logged) >= _MAX_PROBLEMS:
            self._logged.clear()
        self._logged[key] = now, 0
        record(level, event, found=found, **({"leftOut": omitted} if omitted else {}))


def log_to_stderr(form: LogFormat, **common: object) -> None:
    """Send this package's records, and warnings, to standard error, each with the fields of `common`."""
    handler = _StderrHandler()
    handler.setFormatter(_Formatter(form, common))
    package = logging.getLogger("pyspark_dledger")
    package.handlers[:] = [handler]
    package.setLevel(logging.INFO)
    package.propagate = False
    warnings.showwarning = _record_warning


class _StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, which a status line replaces while it is shown."""

    def emit(self, found: logging.LogRecord) -> None:
        try:
            print(self.format(found), file=sys.stderr, flush=True)  # noqa: T201  # this handler prints
        except OSError:
            self.handleError(found)


def _record_warning(message: Warning | str, *_: object, **_named: object) -> None:
    record(logging.WARNING, "warning", found=str(message))


class _Formatter(logging.Formatter):
    """Writes time, level, event, the fields of `common` and those of the record, in one line.

    As JSON, or as ``TIME LEVEL EVENT key=value ...``, where a value that is not one word is quoted as in JSON.
    """

    def __init__(self, form: LogFormat, common: Mapping[str, object]) -> None:
        super().__init__()
        self._form = form
        self._common = common

    def format(self, found: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.created))
        head = {"time": f"{seconds}.{int(found.msecs):03d}Z", "level": found.levelname, "event": found.getMessage()}
        fields: dict[str, object] = {**self._common, **getattr(found, "fields", {})}
        if found.exc_info:
            fields["trace"] = self.formatException(found.exc_info)
        if self._form == "json":
            return json.dumps({**head, **fields}, default=str)
        texts = (f"{name}={_quoted(value)}" for name, value in fields.items() if value is not None)
        return " ".join((*head.values(), *texts))


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and text and not set(' "=') & set(text) else json.dumps(text)
