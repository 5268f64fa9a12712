"""``dledger serve``: runs one member of a group."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.arguments import (
    add_flag,
    add_json,
    add_member,
    add_secret,
    add_tls,
    check_member,
    natural,
)
from pyspark_dledger.cli.exit_codes import SERVE_EXITS
from pyspark_dledger.cli.group import Signals, first_of, run_loop
from pyspark_dledger.cli.output.rows import row_line
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.common.log_records import LOG, log_to_stderr, record
from pyspark_dledger.common.process_memory import prepare_memory_for_serving
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.node.settings import SETTINGS, NodeSettings, node_config, read_settings

if TYPE_CHECKING:
    # These load pyarrow, which only a node that serves messages needs.
    from pyspark_dledger.rocketmq.broker.broker_conf import BrokerConf
    from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings
    from pyspark_dledger.store.store_config import StoreConfig

# Seconds between two status records, and between two checks of the status.
_STATUS_SECONDS = 10.0
_CHECK_SECONDS = 0.25
_MAX_OPEN_FILES = 16384
# Between two threads that run Python, for a node that serves messages.
_SWITCH_SECONDS = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SERVE_EXITS
    add_json(parser)
    add_flag(parser, "--group", "group", metavar="NAME", help="the group's name")
    add_flag(parser, "--id", "selfId", metavar="ID", help="this member's id, such as n0")
    text = "all members, as n0-127.0.0.1:20911;n1-127.0.0.1:20912"
    add_flag(parser, "--peers", "peers", metavar="ID-HOST:PORT;...", help=text)
    text = "the folder of dledger-ID/; created if missing"
    add_flag(parser, "--store", "storeBaseDir", metavar="DIR", help=text)
    text = "key=value lines with names of Java's DLedgerConfig; flags override them"
    parser.add_argument("--config", metavar="FILE", help=text)
    text = "HOST or HOST:PORT to listen at; default: its address in --peers, if loopback"
    add_flag(parser, "--listen", "listen", metavar="HOST", help=text)
    text = "Prometheus metrics, /healthz and /readyz; PORT alone: on 127.0.0.1"
    add_flag(parser, "--metrics", "metrics", metavar="HOST:PORT", help=text)
    add_tls(parser)
    add_secret(parser, "the secret of clients")
    text = "file with the secret of members"
    add_flag(parser, "--member-secret-file", "memberSecretFile", metavar="FILE", help=text)
    text = "serve messages, as a broker's leader does; DIR is then a storePathRootDir"
    parser.add_argument("--messages", action="store_true", help=text)
    text = "a broker.conf with enableDLegerCommitLog=true; implies --messages"
    parser.add_argument("--broker-conf", metavar="FILE", help=text)
    text = "repair: puts aside that entry and all after it"
    add_flag(parser, "--truncate-at", "truncateAt", type=natural, metavar="INDEX", help=text)
    text = "repair: leads although all members lost the state of expired messages"
    parser.add_argument("--accept-lost-state", action="store_true", help=text)
    text = "once: takes other members, with all stopped"
    add_flag(parser, "--change-members", "changeMembers", action="store_const", const="true", help=text)
    text = "once, with an empty disk: joins a running group"
    add_flag(parser, "--join", "join", action="store_const", const="true", help=text)
    # For members that `cluster` starts: they end with it.
    parser.add_argument("--until-input-ends", action="store_true", help=argparse.SUPPRESS)
    add_member(parser)


def run(args: argparse.Namespace, out: Output) -> int:
    check_member(args, args.messages or args.broker_conf)
    if args.accept_lost_state and not (args.messages or args.broker_conf):
        raise OptionError("--accept-lost-state has no effect without messages: leave it out, or add --messages")
    conf = _broker_conf(args)
    config = node_config(_settings(args, conf))
    log_to_stderr(args.log_format, id=config.self_id)
    if conf is not None:
        passed_over = ",".join(conf.ignored) or None
        record(logging.INFO, "broker-conf", file=args.broker_conf, brokerId=conf.broker_id, passedOver=passed_over)
    if not (args.messages or args.broker_conf):
        return run_loop(lambda: _serve(config, None, args, out))
    service = _open_messages(config, args, conf)
    try:
        config = replace(config, store_options={**config.store_options, **service.store_options})
        return run_loop(lambda: _serve(config, service, args, out))
    finally:
        service.close()


def _open_messages(config: NodeConfig, args: argparse.Namespace, conf: BrokerConf | None) -> MessageService:
    """Open the message service of a node; it owns the store's root until it is closed."""
    from pyspark_dledger.rocketmq.service.message_service import MessageService, host_bytes

    if config.store is None:
        raise OptionError("--messages needs a store on disk, found storeType=MEMORY: leave out one of them")
    own = config.members()[config.self_id]
    host = conf.store_host if conf is not None else None
    store = config.store_config(config.store)
    # The thread that builds queues can wait: threads that serve get the interpreter back after 0.5 ms, not 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    return MessageService.open(
        config.store,
        config.self_id,
        host or host_bytes(own.host, own.port),
        store.all_data_dirs,
        replace(_message_settings(store, args, conf), max_topics=config.max_topics, max_queues=config.max_queues),
        store.read_only_data_dirs,
    )


def _message_settings(store: StoreConfig, args: argparse.Namespace, conf: BrokerConf | None) -> MessageSettings:
    """Settings of the broker.conf; without one an old CommitLog expires like the store's own files."""
    from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchSettings
    from pyspark_dledger.rocketmq.service.message_service import MessageSettings

    settings = MessageSettings(dispatch=DispatchSettings(clean=store, engine=store.engine), engine=store.engine)
    if conf is not None:
        dispatch = replace(conf.dispatch, engine=store.engine)
        settings = replace(settings, dispatch=dispatch, max_message_size=conf.max_message_size)
    if args.producer_id_expiry_ms is not None:
        settings = replace(settings, producer_id_expiry_ms=args.producer_id_expiry_ms)
    if args.accept_lost_state:
        settings = replace(settings, accept_lost_state=True)
    return settings


def _settings(args: argparse.Namespace, conf: BrokerConf | None) -> NodeSettings:
    """Settings of the broker.conf, overridden by those of the file, and these by the flags."""
    settings = NodeSettings()
    for name, setting in conf.settings.items() if conf is not None else ():
        settings.set(name, setting.text, setting.source)
    if args.config:
        read = read_settings(Path(args.config))
        for name, text in read.items():
            settings.set(name, text, read.sources[name])
    for name, (flag, dest) in args.flags.items():
        if name in SETTINGS and (value := getattr(args, dest)) is not None:
            settings.set(name, str(value), flag)
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise DLedgerError(f"--set {text}: expected NAME=VALUE, found no =")
        settings.set(name, value, "--set")
    return settings


def _broker_conf(args: argparse.Namespace) -> BrokerConf | None:
    if not args.broker_conf:
        return None
    from pyspark_dledger.rocketmq.broker.broker_conf import read_broker_conf

    return read_broker_conf(Path(args.broker_conf))


async def _serve(config: NodeConfig, service: MessageService | None, args: argparse.Namespace, out: Output) -> int:
    asyncio.get_running_loop().set_exception_handler(_unexpected)
    _allow_files()
    signals = Signals()
    if args.until_input_ends:
        signals.stop_at_end_of_input()
    node = Node(config, application=service)
    await node.start()
    prepare_memory_for_serving()
    try:
        ready = {"event": "ready", "group": config.group, "id": config.self_id, "address": str(node.address)}
        row = {**ready, "pid": os.getpid()}
        out.line(row_line(row, args.json))
        out.flush()
        status = _Status(node)
        while not (signals.received.is_set() or node.failed.done()):
            status.show()
            await first_of(signals.received, node.failed, _CHECK_SECONDS)
        status.clear()
    finally:
        await node.stop()
    if node.failed.done():
        raise DLedgerError(f"{config.self_id}: failed with {node.failed.result()!r}: see its log")
    return signals.exit_code


def _unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs an unexpected error in the handling of a connection, which ends that connection."""
    error = context.get("exception")
    LOG.error("unexpected", exc_info=error, extra={"fields": {"found": context.get("message")}})


def _allow_files() -> None:
    """Raises the limit of open files: every connection and every file of the log is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Status:
    """The node's status: a line that is redrawn on a terminal, else a log record on change, at most every 10 s."""

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
            self._live.update(row_line(row, as_json=False), refresh=True)
        elif time.monotonic() >= self._next:
            record(logging.INFO, "status", **row)
            self._next = time.monotonic() + _STATUS_SECONDS
        else:
            return
        self._shown = row

    def clear(self) -> None:
        if self._live is not None:
            # The terminal may be closed.
            with suppress(OSError):
                self._live.stop()


def _live() -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True, highlight=False), auto_refresh=False, redirect_stdout=False)
    live.start()
    return live
