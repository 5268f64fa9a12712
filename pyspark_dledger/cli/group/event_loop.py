"""The event loop of ``serve`` and ``cluster``, and the signals that end them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark_dledger.cli.exit_codes import CLEAN, INTERRUPTED
from pyspark_dledger.raft.loops import new_loop


def run_loop(work: Callable[[], Any]) -> int:
    """Run a coroutine that returns an exit code, on uvloop where that is installed."""
    loop = new_loop()
    try:
        asyncio.set_event_loop(loop)
        code: int = loop.run_until_complete(work())
        return code
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def first_of(event: asyncio.Event, work: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Wait for an event or for some work, for at most `seconds`."""
    waiting = asyncio.ensure_future(event.wait())
    either: set[asyncio.Future[Any]] = {waiting, work}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class Signals:
    """SIGTERM, SIGHUP (the terminal was closed) and SIGINT (Ctrl-C): each one sets `received`."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self.exit_code = CLEAN
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, CLEAN)
        loop.add_signal_handler(signal.SIGINT, self._stop, INTERRUPTED)
        # nohup ignores SIGHUP.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._stop, CLEAN)

    def stop_at_end_of_input(self) -> None:
        """Take the end of standard input, a pipe, as SIGTERM: the process at its other end has ended."""
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._read_input)

    def _read_input(self) -> None:
        try:
            is_end = not os.read(sys.stdin.fileno(), 1)
        except OSError:
            is_end = True
        if is_end:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop(CLEAN)

    def _stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.received.set()
