"""Standard output in whole lines, and notes on standard error."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from pyspark_dledger.common.durable import write_all
from pyspark_dledger.format.json_text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


# A pipe takes this much at once.
_BLOCK = 64 * 1024


class Output:
    """Standard output, and the progress bar. Ctrl-C never leaves half a line."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self.progress = ProgressBar()
        self._pending: list[str] = []
        self._size = 0

    def line(self, text: str) -> None:
        """Print a line; characters that control a terminal are escaped."""
        self.escaped_line(printable(text))

    def lines(self, texts: Iterable[str]) -> None:
        """Print lines as `line` does."""
        for text in texts:
            self.line(text)

    def escaped_line(self, text: str) -> None:
        """Print a line that has no such characters."""
        self._pending.append(text)
        self._size += len(text) + 1
        if self.is_terminal or self._size >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        if self._pending:
            text = "\n".join(self._pending) + "\n"
            self._pending.clear()
            self._size = 0
            self.progress.clear()
            with uninterrupted():
                _write(text)


def _write(text: str) -> None:
    """Writes all of `text` to standard output. Python's own unbuffered stream drops the rest when a signal comes."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # not a file, as in a test
        sys.stdout.write(text)
        return
    write_all(descriptor, text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block. A second Ctrl-C ends it at once: the reader of the output may be stuck."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_interrupted = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if is_interrupted:
        raise KeyboardInterrupt


def note(text: str) -> None:
    """Print a line to standard error."""
    print(f"dledger: {printable(text)}", file=sys.stderr, flush=True)


# Quick work shows nothing, and a bar that is drawn costs time.
_FIRST_SHOWN = 0.5
_REDRAWN = 0.1


class ProgressBar:
    """Called with what is done and the total, in any unit; `clear` takes the bar away before something is printed."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next = time.monotonic() + _FIRST_SHOWN
        self._bar: RichProgress | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._is_terminal or now < self._next:
            return
        self._next = now + _REDRAWN
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task("", total=total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, refresh=True)

    def clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False, redirect_stdout=False)
