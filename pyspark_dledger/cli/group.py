"""What the verbs of a running group share: a client, the event loop of a node, and the signals that end it."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_dledger.cli.exit_codes import CLEAN, INTERRUPTED
from pyspark_dledger.cli.output.stream import note
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.client import Client, connect
from pyspark_dledger.raft.loops import new_loop
from pyspark_dledger.raft.secret import read_secret
from pyspark_dledger.raft.tls import Tls


def connected(args: argparse.Namespace) -> Client:
    """A client of the group that the arguments name."""
    files = (args.tls_cert, args.tls_key, args.tls_ca)
    if any(files) and not all(files):
        raise OptionError("expected --tls-cert, --tls-key and --tls-ca together, found one or two of them")
    tls = Tls(*map(Path, files)) if all(files) else None
    secret = read_secret(Path(args.secret_file), "secretFile") if args.secret_file else None
    limits = {"timeout_ms": args.timeout_ms, "max_retries": args.max_retries}
    return connect(args.group, args.peers, tls=tls, secret=secret, **limits)


def note_outcome(text: str) -> None:
    """Print an outcome to standard error. An error in printing changes nothing."""
    with suppress(OSError):
        note(text)


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
