"""``serve``: one member of a group, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exits import CLEAN, INTERRUPTED
from pyspark_dledger.cli.output.output import Output, text_line
from pyspark_dledger.common.log_records import LOG, log_to_stderr, record
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.loops import new_loop
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.node.memory import settle_memory
from pyspark_dledger.raft.node.settings import NodeSettings, node_config, read_settings

if TYPE_CHECKING:
    # Arrow, which they need, is loaded where messages are served only.
    from pyspark_dledger.rocketmq.broker.broker_conf import BrokerConf
    from pyspark_dledger.rocketmq.service.message_service import MessageService

# Seconds between two lines of how a node stands, and between two looks at it.
_STATUS_SECONDS = 10.0
_LOOK_SECONDS = 0.25
_OPEN_FILES = 16384

# The setting that each flag gives, by the flag's name.
_FLAGS = {
    "group": "group",
    "id": "selfId",
    "peers": "peers",
    "store": "storeBaseDir",
    "flush": "flush",
    "listen": "listen",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
    "tls_ca": "tlsCa",
    "data_file_size": "mappedFileSizeForEntryData",
    "index_file_size": "mappedFileSizeForEntryIndex",
    "truncate_at": "truncateAt",
}


def serve(given: argparse.Namespace, out: Output) -> int:
    """Run a node; the exit code tells what ended it."""
    conf = _broker_conf(given)
    config = node_config(_settings(given, conf))
    log_to_stderr(given.log_format, id=config.self_id)
    if conf is not None:
        passed_over = ",".join(conf.passed_over) or None
        record(logging.INFO, "broker-conf", file=given.broker_conf, brokerId=conf.broker_id, passedOver=passed_over)
    if conf is None and not given.messages:
        return run_loop(lambda: _serve(config, None, given, out))
    from pyspark_dledger.cli.messages import open_messages

    service = open_messages(config, given, conf)
    try:
        config = replace(config, store_options={**config.store_options, **service.store_options})
        return run_loop(lambda: _serve(config, service, given, out))
    finally:
        service.close()


def run_loop(work: Callable[[], Any]) -> int:
    """Runs a coroutine that ends with an exit code, on uvloop where that is installed."""
    loop = new_loop()
    try:
        asyncio.set_event_loop(loop)
        code: int = loop.run_until_complete(work())
        return code
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _settings(given: argparse.Namespace, conf: BrokerConf | None) -> NodeSettings:
    """Those of the broker.conf, over them those of the file, and over these those of the flags."""
    settings = NodeSettings()
    for name, said in conf.settings.items() if conf is not None else ():
        settings.say(name, said.text, said.place)
    if given.config:
        read = read_settings(Path(given.config))
        for name, text in read.items():
            settings.say(name, text, read.places[name])
    for flag, name in _FLAGS.items():
        if (value := getattr(given, flag)) is not None:
            settings.say(name, str(value), f"--{flag.replace('_', '-')}")
    for text in given.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise DLedgerError(f"--set {text}: expected NAME=VALUE, found no =")
        settings.say(name, value, "--set")
    return settings


def _broker_conf(given: argparse.Namespace) -> BrokerConf | None:
    if not given.broker_conf:
        return None
    from pyspark_dledger.rocketmq.broker.broker_conf import read_broker_conf

    return read_broker_conf(Path(given.broker_conf))


async def _serve(config: NodeConfig, service: MessageService | None, given: argparse.Namespace, out: Output) -> int:
    asyncio.get_running_loop().set_exception_handler(_unexpected)
    _allow_files()
    signals = Signals()
    if given.until_input_ends:
        signals.stop_at_end_of_input()
    node = Node(config, application=service)
    await node.start()
    settle_memory()
    try:
        ready = {"event": "ready", "group": config.group, "id": config.self_id, "address": str(node.address)}
        row = {**ready, "pid": os.getpid()}
        out.line(json_line(row) if given.json else text_line(row))
        out.flush()
        status = _Status(node)
        while not (signals.came.is_set() or node.failed.done()):
            status.show()
            await first_of(signals.came, node.failed, _LOOK_SECONDS)
        status.clear()
    finally:
        await node.stop()
    if node.failed.done():
        raise DLedgerError(f"{config.self_id}: expected to go on, found {node.failed.result()!r}: its log says more")
    return signals.exit_code


def _unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would print: a fault of a connection's handling, which ends that connection."""
    error = context.get("exception")
    LOG.error("unexpected", exc_info=error, extra={"fields": {"found": context.get("message")}})


def _allow_files() -> None:
    """Every connection is an open file, and so is every file of the log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def first_of(came: asyncio.Event, work: asyncio.Future[Any], seconds: float | None = None) -> None:
    """Wait for an event or for some work, whichever is first, for so many seconds at most."""
    waiting = asyncio.ensure_future(came.wait())
    either: set[asyncio.Future[Any]] = {waiting, work}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class Signals:
    """SIGTERM, SIGHUP (its terminal was closed) and SIGINT (Ctrl-C), each of which ends the work in hand."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.exit_code = CLEAN
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop, CLEAN)
        loop.add_signal_handler(signal.SIGINT, self._stop, INTERRUPTED)
        # Under nohup it is ignored, and stays so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._stop, CLEAN)

    def stop_at_end_of_input(self) -> None:
        """Take the end of standard input, a pipe, as SIGTERM: who holds its other end is gone, however it ended."""
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
        self.came.set()


class _Status:
    """How the node stands: a line that is redrawn on a terminal, else a log record on change, every 10 s at most."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._shown: dict[str, Any] = {}
        self._next = 0.0
        self._live = _live() if sys.stderr.isatty() else None

    def show(self) -> None:
        row = self._node.status()
        if row == self._shown:
            return
        if self._live is not None:
            self._live.update(text_line(row), refresh=True)
        elif time.monotonic() >= self._next:
            record(logging.INFO, "status", **row)
            self._next = time.monotonic() + _STATUS_SECONDS
        else:
            return
        self._shown = row

    def clear(self) -> None:
        if self._live is not None:
            # Of a terminal that was closed nothing can be taken away.
            with suppress(OSError):
                self._live.stop()


def _live() -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, redirect_stdout=False)
    live.start()
    return live
