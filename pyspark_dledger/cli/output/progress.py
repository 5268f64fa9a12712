"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

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
