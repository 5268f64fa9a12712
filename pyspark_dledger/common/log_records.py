"""The log of a node: one line per record, an event name and fields, as ``key=value`` or as JSON."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

LOG = logging.getLogger("pyspark_dledger.node")

LogFormat = Literal["text", "json"]

_MAX_PER_SECOND = 20
# Of each value in characters: names in requests have up to 4096 bytes, and each character takes up to 6 when escaped.
_MAX_VALUE = 500
_FIRST_PAUSE, _MAX_PAUSE = 10.0, 600.0
_MAX_TEXTS = 256
# Terms, indexes and ports, but not the digits of an id such as n1 or of an address.
_NUMBERS = re.compile(r"(?<!\d\.)\b\d+\b(?!\.\d)")


def record(level: int, event: str, **fields: object) -> None:
    """Log `event` with its fields."""
    if LOG.isEnabledFor(level):
        LOG.log(level, event, extra={"fields": fields})


class RateLimitedLog:
    """Logs events that repeat, or that any client can cause, so that they cannot fill a disk.

    A record that repeats is logged again after 10 s, then each time after twice as long, at most after 10 minutes.
    Texts that differ only in numbers, such as terms and ports, are the same. At most 20 records a second are logged,
    with shortened values. The next record of the same text counts the omitted ones (``leftOut``).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = -1
        self._count = 0
        self._repeats: dict[str, _Repeat] = {}

    def __call__(self, level: int, event: str, **fields: object) -> None:
        fields = {name: _shortened(value) for name, value in fields.items()}
        repeat = self._repeat(_NUMBERS.sub("0", f"{event} {fields}"))
        now = self._clock()
        if now < repeat.due or not self._may_log(int(now)):
            repeat.omitted += 1
            return
        is_old = now - repeat.due > repeat.pause
        repeat.pause = _FIRST_PAUSE if is_old else min(2 * repeat.pause, _MAX_PAUSE)
        repeat.due = now + repeat.pause
        if repeat.omitted:
            fields["leftOut"], repeat.omitted = repeat.omitted, 0
        record(level, event, **fields)

    def _repeat(self, text: str) -> _Repeat:
        if text not in self._repeats and len(self._repeats) >= _MAX_TEXTS:
            self._repeats.clear()
        return self._repeats.setdefault(text, _Repeat())

    def _may_log(self, second: int) -> bool:
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= _MAX_PER_SECOND


@dataclass(slots=True)
class _Repeat:
    """When a text may be logged again, the last pause in seconds, and how often it was omitted since."""

    due: float = -math.inf
    pause: float = 0.0
    omitted: int = 0


def _shortened(value: object) -> object:
    text = str(value)
    return value if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}..."


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
