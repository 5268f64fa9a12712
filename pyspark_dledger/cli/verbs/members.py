"""``dledger serve`` and ``cluster``: runs one member of a group, or all of them on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import resource
import shlex
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_dledger.cli.arguments import add_flag, add_json, add_member, add_secret, add_tls, check_member, natural
from pyspark_dledger.cli.exit_codes import CLEAN, INTERRUPTED, SERVE_EXITS
from pyspark_dledger.cli.output.rows import row_line
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.common.log_records import LOG, log_to_stderr, record
from pyspark_dledger.common.process_memory import prepare_memory_for_serving
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.loops import new_loop
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.node.settings import SETTINGS, NodeSettings, node_config, read_settings
from pyspark_dledger.raft.peers import Address, format_peers

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.broker.broker_conf import BrokerConf
    from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings
    from pyspark_dledger.store.store_config import StoreConfig


# Seconds between two status records, and between two checks of the status.
_STATUS_SECONDS = 10.0
_CHECK_SECONDS = 0.25
_MAX_OPEN_FILES = 16384
# Between two threads that run Python, for a node that serves messages.
_SWITCH_SECONDS = 0.0005
# What `cluster` starts.
_HOST = "127.0.0.1"
_MAX_PORT = 65535
_STORE = re.compile(r"dledger-n\d+")
# A member flushes its store when it stops. It is killed after these seconds.
_STOP_SECONDS = 20.0


def add_serve(parser: argparse.ArgumentParser) -> None:
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


def run_serve(args: argparse.Namespace, out: Output) -> int:
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
        _check_raw(config)
        return run_loop(lambda: _serve(config, None, args, out))
    service = _open_messages(config, args, conf)
    try:
        config = replace(config, store_options={**config.store_options, **service.store_options})
        return run_loop(lambda: _serve(config, service, args, out))
    finally:
        service.close()


def _check_raw(config: NodeConfig) -> None:
    """Raises OptionError if the member serves messages: without them, the state of messages that expire is lost."""
    from pyspark_dledger.rocketmq.service.committed_identities import FOLDER

    found = None if config.store is None else config.store / f"dledger-{config.self_id}" / FOLDER
    if found is not None and found.exists():
        raise OptionError(
            f"--messages is missing: {found} shows that {config.self_id} serves messages: add it, or use another store"
        )


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


class _Member(NamedTuple):
    """One process of ``serve``."""

    id: str
    process: Process
    log: Path
    arguments: list[str]


def add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SERVE_EXITS
    add_json(parser)
    parser.add_argument("--nodes", type=_count_of_members, default=3, metavar="N", help="how many members; default 3")
    text = "the folder of their stores dledger-n0/, dledger-n1/, ... and logs n0.log, n1.log, ..."
    parser.add_argument("--store", required=True, metavar="DIR", help=text)
    text = "the first member's port on 127.0.0.1, the others use the following ones; default 20911"
    parser.add_argument("--base-port", type=natural, default=20911, metavar="PORT", help=text)
    text = "port of the first member's metrics, then the following ones"
    parser.add_argument("--metrics-port", type=natural, metavar="PORT", help=text)
    parser.add_argument("--group", default="g", metavar="NAME", help="the group's name; default g")
    text = "serve messages; each member has a storePathRootDir of its own: n0/, n1/, ..."
    parser.add_argument("--messages", action="store_true", help=text)
    add_member(parser)


def _count_of_members(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of members, 1 or more, found {text}")
    return int(text)


def run_cluster(args: argparse.Namespace, out: Output) -> int:
    """Run the members until a signal comes or all have ended."""
    for flag, port in (("--base-port", args.base_port), ("--metrics-port", args.metrics_port)):
        if port is not None and (port < 1 or port + args.nodes - 1 > _MAX_PORT):
            raise OptionError(
                f"--nodes {args.nodes} {flag} {port}: expected at least one member and ports from 1 to {_MAX_PORT}"
            )
    check_member(args, args.messages)
    return run_loop(lambda: _cluster(args, out))


async def _cluster(args: argparse.Namespace, out: Output) -> int:
    signals = Signals()
    peers = {f"n{number}": Address(_HOST, args.base_port + number) for number in range(args.nodes)}
    store = Path(args.store)
    store.mkdir(parents=True, exist_ok=True)
    _check_stores(store, args)
    if not any(text.startswith("store") for text in args.set):
        # All folders first, so that an interrupted start does not leave a smaller group.
        for peer_id in peers:
            (_root(store, peer_id, args) / f"dledger-{peer_id}").mkdir(parents=True, exist_ok=True)
    members: list[_Member] = []
    try:
        for peer_id in peers:
            member = await _start(peer_id, format_peers(peers), store, args)
            members.append(member)
        await _unless_stopped(signals, asyncio.gather(*map(_ready, members)))
        if not signals.received.is_set():
            _print_members(args, out, peers, members)
            await _unless_stopped(signals, asyncio.gather(*(_watch(member, signals) for member in members)))
    finally:
        await asyncio.gather(*map(_stop, members))
    if not signals.received.is_set():
        raise DLedgerError("all members have ended: see their logs")
    return signals.exit_code


def _root(store: Path, peer_id: str, args: argparse.Namespace) -> Path:
    """The folder of a member's store. With messages it is the member's own."""
    return store / peer_id if args.messages else store


def _check_stores(store: Path, args: argparse.Namespace) -> None:
    """A group must keep its members: new ones would lack acknowledged entries and votes. Raises OptionError."""
    plain = sorted(each.name for each in store.glob("dledger-n*") if _STORE.fullmatch(each.name))
    serving = sorted(each.name for each in store.glob("n*/dledger-n*") if _STORE.fullmatch(each.name))
    found, others = (serving, plain) if args.messages else (plain, serving)
    if others:
        advice = "without --messages" if args.messages else "with --messages"
        raise OptionError(
            f"--store {store}: expected stores {'with' if args.messages else 'without'} messages, or none, found "
            f"{', '.join(others)} of a group that was started {advice}: do the same, or use another --store"
        )
    if found and set(found) != {f"dledger-n{number}" for number in range(args.nodes)}:
        raise OptionError(
            f"--nodes {args.nodes}: expected the stores of {args.nodes} members in {store}, or none, found "
            f"{', '.join(found)}: use --nodes {len(found)}, or another --store"
        )


async def _unless_stopped(signals: Signals, work: asyncio.Future[Any]) -> None:
    """Wait for some work or a signal. Raises what the work raises."""
    await first_of(signals.received, work)
    if work.done():
        work.result()
    else:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _start(peer_id: str, peers: str, store: Path, args: argparse.Namespace) -> _Member:
    log = store / f"{peer_id}.log"
    arguments = ["serve", "--log-format", args.log_format, "--group", args.group, "--id", peer_id, "--peers", peers]
    arguments += ["--store", str(_root(store, peer_id, args))]
    arguments += ["--messages"] if args.messages else []
    if args.metrics_port is not None:
        arguments += ["--metrics", str(args.metrics_port + int(peer_id[1:]))]
    for name in ("flush", "data_file_size", "index_file_size", "producer_id_expiry_ms"):
        if (value := getattr(args, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    for text in args.set:
        arguments += ["--set", text]
    line = [sys.executable, "-m", "pyspark_dledger", *arguments, "--json", "--until-input-ends"]
    with log.open("ab") as file:
        # In its own session: Ctrl-C reaches this process only, which stops the members in order. A member's input ends
        # with this process, even if that is killed.
        process = await asyncio.create_subprocess_exec(
            *line, stdin=PIPE, stdout=PIPE, stderr=file, start_new_session=True
        )
    return _Member(peer_id, process, log, arguments)


async def _ready(member: _Member) -> None:
    assert member.process.stdout is not None
    line = await member.process.stdout.readline()
    if not line or json.loads(line)["event"] != "ready":
        last = member.log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise DLedgerError(f"{member.id}: did not start; its log {member.log} ends with: {last[0]}")


async def _watch(member: _Member, signals: Signals) -> None:
    code = await member.process.wait()
    if not signals.received.is_set():
        again = shlex.join(["dledger", *member.arguments])
        note(
            f"{member.id} ended with exit code {code} and is not restarted: its log is {member.log}; "
            f"to start it: {again}"
        )


async def _stop(member: _Member) -> None:
    if member.process.returncode is not None:
        return
    # Not process.terminate(), which may reap a process that has ended: asyncio would then log that it is missing.
    with suppress(ProcessLookupError):
        os.kill(member.process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(member.process.wait(), _STOP_SECONDS)
    except asyncio.TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(member.process.pid, signal.SIGKILL)
        await member.process.wait()


def _print_members(args: argparse.Namespace, out: Output, peers: dict[str, Address], members: list[_Member]) -> None:
    text = format_peers(peers)
    if args.json:
        out.line(json_line({"event": "ready", "group": args.group, "peers": text}))
        for member in members:
            address = str(peers[member.id])
            row = {"event": "member", "id": member.id, "address": address, "pid": member.process.pid}
            out.line(json_line({**row, "log": str(member.log)}))
    else:
        where = f"--group {shlex.quote(args.group)} --peers {shlex.quote(text)}"
        out.line(f"{len(members)} members of group {args.group} run; Ctrl-C stops them. In another terminal:")
        out.line(f"  dledger append {where} hello")
        out.line(f"  dledger get {where} --index 0")
        out.line(f"  dledger metadata {where}")
        for member in members:
            out.line(f"{member.id}: {peers[member.id]}, process {member.process.pid}, log {member.log}")
    out.flush()


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
