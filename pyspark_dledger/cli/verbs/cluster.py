"""``dledger cluster``: runs the members of a group as processes on this machine, for trying out."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_dledger.cli.arguments import add_json, add_member, check_member, natural
from pyspark_dledger.cli.exit_codes import SERVE_EXITS
from pyspark_dledger.cli.group import Signals, first_of, run_loop
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.peers import Address, format_peers

_HOST = "127.0.0.1"
_MAX_PORT = 65535
_STORE = re.compile(r"dledger-n\d+")
# A member flushes its store when it stops. It is killed after these seconds.
_STOP_SECONDS = 20.0


class _Member(NamedTuple):
    """One process of ``serve``."""

    id: str
    process: Process
    log: Path
    arguments: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = SERVE_EXITS
    add_json(parser)
    parser.add_argument("--nodes", type=_members, default=3, metavar="N", help="how many members; default 3")
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


def _members(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of members, 1 or more, found {text}")
    return int(text)


def run(args: argparse.Namespace, out: Output) -> int:
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
