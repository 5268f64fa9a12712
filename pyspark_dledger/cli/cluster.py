"""``cluster``: the members of a group as processes on this machine, for trying out."""

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

from pyspark_dledger.cli.output.output import Output, note
from pyspark_dledger.cli.serve import Signals, first_of, run_loop
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.format.json_text import json_line
from pyspark_dledger.raft.peers import Address, format_peers

_HOST = "127.0.0.1"
_LAST_PORT = 65535
_STORE = re.compile(r"dledger-n\d+")
# Seconds for a member to stop, which flushes its store, until it is ended.
_STOP_SECONDS = 20.0


class _Member(NamedTuple):
    """One process of ``serve``."""

    id: str
    process: Process
    log: Path
    arguments: list[str]


def cluster(given: argparse.Namespace, out: Output) -> int:
    """Run the members until a signal comes, or none is left."""
    if given.base_port < 1 or given.base_port + given.nodes - 1 > _LAST_PORT:
        raise OptionError(
            f"--nodes {given.nodes} --base-port {given.base_port}: expected at least one member and ports from 1 to "
            f"{_LAST_PORT}"
        )
    return run_loop(lambda: _cluster(given, out))


async def _cluster(given: argparse.Namespace, out: Output) -> int:
    signals = Signals()
    peers = {f"n{number}": Address(_HOST, given.base_port + number) for number in range(given.nodes)}
    store = Path(given.store)
    store.mkdir(parents=True, exist_ok=True)
    _check_stores(store, given)
    if not any(text.startswith("store") for text in given.set):
        # All at once: a start that is broken off leaves no smaller group.
        for peer_id in peers:
            (_root(store, peer_id, given) / f"dledger-{peer_id}").mkdir(parents=True, exist_ok=True)
    members: list[_Member] = []
    try:
        for peer_id in peers:
            member = await _start(peer_id, format_peers(peers), store, given)
            members.append(member)
        await _unless_stopped(signals, asyncio.gather(*map(_ready, members)))
        if not signals.came.is_set():
            _tell(given, out, peers, members)
            await _unless_stopped(signals, asyncio.gather(*(_watch(member, signals) for member in members)))
    finally:
        await asyncio.gather(*map(_stop, members))
    if not signals.came.is_set():
        raise DLedgerError("expected the members to run until Ctrl-C, found that all of them ended: see their logs")
    return signals.exit_code


def _root(store: Path, peer_id: str, given: argparse.Namespace) -> Path:
    """In which folder a member's store stands. Who serves messages keeps more there than its log."""
    return store / peer_id if given.messages else store


def _check_stores(store: Path, given: argparse.Namespace) -> None:
    """A group goes on with the members that it had: others would lack entries, and votes, that they once gave."""
    plain = sorted(each.name for each in store.glob("dledger-n*") if _STORE.fullmatch(each.name))
    serving = sorted(each.name for each in store.glob("n*/dledger-n*") if _STORE.fullmatch(each.name))
    found, others = (serving, plain) if given.messages else (plain, serving)
    if others:
        advice = "without --messages" if given.messages else "with --messages"
        raise OptionError(
            f"--store {store}: expected stores {'with' if given.messages else 'without'} messages, or none, found "
            f"{', '.join(others)} of a group that was started {advice}: start it so, or say another --store"
        )
    if found and set(found) != {f"dledger-n{number}" for number in range(given.nodes)}:
        raise OptionError(
            f"--nodes {given.nodes}: expected the stores of {given.nodes} members in {store}, or none, found "
            f"{', '.join(found)}: say --nodes {len(found)}, or another --store"
        )


async def _unless_stopped(signals: Signals, work: asyncio.Future[Any]) -> None:
    """Wait for some work, and no longer when a signal comes. Raises what the work raises."""
    await first_of(signals.came, work)
    if work.done():
        work.result()
    else:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def _start(peer_id: str, peers: str, store: Path, given: argparse.Namespace) -> _Member:
    log = store / f"{peer_id}.log"
    arguments = ["serve", "--log-format", given.log_format]
    arguments += [
        "--group",
        given.group,
        "--id",
        peer_id,
        "--peers",
        peers,
        "--store",
        str(_root(store, peer_id, given)),
    ]
    arguments += ["--messages"] if given.messages else []
    for name in ("flush", "data_file_size", "index_file_size", "producer_id_expiry_ms"):
        if (value := getattr(given, name)) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    for text in given.set:
        arguments += ["--set", text]
    line = [sys.executable, "-m", "pyspark_dledger", *arguments, "--json", "--until-input-ends"]
    with log.open("ab") as file:
        # In a session of its own, so that Ctrl-C comes to this process only, which then stops all in order. Nothing is
        # written to its input, which ends with this process, even where that is killed.
        process = await asyncio.create_subprocess_exec(
            *line, stdin=PIPE, stdout=PIPE, stderr=file, start_new_session=True
        )
    return _Member(peer_id, process, log, arguments)


async def _ready(member: _Member) -> None:
    assert member.process.stdout is not None
    line = await member.process.stdout.readline()
    if not line or json.loads(line)["event"] != "ready":
        last = member.log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise DLedgerError(f"{member.id}: expected it to start, found in its log {member.log}: {last[0]}")


async def _watch(member: _Member, signals: Signals) -> None:
    code = await member.process.wait()
    if not signals.came.is_set():
        again = shlex.join(["dledger", *member.arguments])
        note(
            f"{member.id} ended with exit code {code}, and is not started again: its log is {member.log}; "
            f"to start it: {again}"
        )


async def _stop(member: _Member) -> None:
    if member.process.returncode is not None:
        return
    # Not process.terminate(), which may itself wait for a process that has ended: asyncio then finds none, and says so.
    with suppress(ProcessLookupError):
        os.kill(member.process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(member.process.wait(), _STOP_SECONDS)
    except asyncio.TimeoutError:
        with suppress(ProcessLookupError):
            os.kill(member.process.pid, signal.SIGKILL)
        await member.process.wait()


def _tell(given: argparse.Namespace, out: Output, peers: dict[str, Address], members: list[_Member]) -> None:
    text = format_peers(peers)
    if given.json:
        out.line(json_line({"event": "ready", "group": given.group, "peers": text}))
        for member in members:
            address = str(peers[member.id])
            row = {"event": "member", "id": member.id, "address": address, "pid": member.process.pid}
            out.line(json_line({**row, "log": str(member.log)}))
    else:
        where = f"--group {shlex.quote(given.group)} --peers {shlex.quote(text)}"
        out.line(f"{len(members)} members of group {given.group} run; Ctrl-C stops them. In another terminal:")
        out.line(f"  dledger append {where} hello")
        out.line(f"  dledger get {where} --index 0")
        out.line(f"  dledger metadata {where}")
        for member in members:
            out.line(f"{member.id}: {peers[member.id]}, process {member.process.pid}, log {member.log}")
    out.flush()
