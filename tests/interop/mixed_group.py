"""Runs groups of our nodes and Java's, records acknowledged appends and compares logs."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError, UnknownOutcomeError
from tests.interop.java_group import QUICK, SMALL_FILES, JavaNode
from tests.support.groups import BUSY, free_ports, peers_text

OURS = "ours"
GROUP = "mixed"
_HEADER = struct.Struct(">iiqqqiii")  # magic, size, index, term, pos, channel, chain CRC, body CRC
_BLANK = -1


class StoredEntry(NamedTuple):
    """One entry as stored on disk."""

    index: int  # type: ignore[assignment]  # shadows tuple.index, which nobody calls
    term: int
    pos: int
    body: bytes
    body_crc: int
    """As in the header; 0 means none."""

    @property
    def has_right_crc(self) -> bool:
        return self.body_crc & 0xFFFFFFFF == zlib.crc32(self.body)


def stored_entries(folder: Path) -> Iterator[StoredEntry]:
    """Yields the entries of ``dledger-ID``, read without the package."""
    for file in sorted((folder / "data").iterdir()):
        base, data, at = int(file.name), file.read_bytes(), 0
        while at + 48 <= len(data):
            magic, size, index, term, pos, _, _, body_crc = _HEADER.unpack_from(data, at)
            if magic == _BLANK:
                break
            if magic != 1 or pos != base + at or struct.unpack_from(">i", data, at + 44)[0] + 48 != size:
                return
            yield StoredEntry(index, term, pos, data[at + 48 : at + size], body_crc)
            at += size


def differing_files(folders: list[Path]) -> list[str]:
    """Returns the data files whose bytes differ between the folders ``dledger-ID``."""
    names = sorted({file.name for folder in folders for file in (folder / "data").iterdir()})
    return [name for name in names if len({_content(folder / "data" / name) for folder in folders}) > 1]


def _content(file: Path) -> bytes | None:
    """Returns the bytes of the file; None if it does not exist or is preallocated and empty."""
    data = file.read_bytes() if file.exists() else b""
    return data if data.strip(b"\0") else None


class OurNode:
    """One of our nodes: a process of ``dledger serve``."""

    def __init__(self, node: str, peers: str, folder: Path, settings: dict[str, object]) -> None:
        config = folder / f"{node}.properties"
        config.write_text("".join(f"{name}={str(value).lower()}\n" for name, value in settings.items()))
        command = ("serve", "--group", GROUP, "--id", node, "--peers", peers, "--store", str(folder))
        self._log = (folder / f"{node}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pyspark_dledger", *command, "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )

    def wait_started(self) -> None:
        """Does nothing: callers retry until the node answers."""

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def stop(self) -> None:
        """Stops the node with a clean shutdown."""
        self._process.terminate()
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGABRT)
            code = self._process.wait()
        self._log.close()
        assert code == 0, f"the node ended with {code}{self.log_end()}"

    @property
    def is_ended(self) -> bool:
        return self._process.poll() is not None

    def log_end(self) -> str:
        return f"\n{self._log.name}:\n" + Path(self._log.name).read_text()[-3000:]

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()


@final
class Group:
    """A group on loopback. `kinds` gives ``ours`` or the version of the Java DLedger for each member."""

    def __init__(
        self, folder: Path, kinds: dict[str, str], settings: dict[str, object] | None = None, flush: str = "async"
    ) -> None:
        self.folder = folder
        self.kinds = kinds
        self.flush = flush
        self.settings: dict[str, object] = {**QUICK, **SMALL_FILES, **(settings or {})}
        self.peers = peers_text(dict(zip(kinds, free_ports(len(kinds)), strict=True)))
        self.members: dict[str, OurNode | JavaNode] = {}
        self._client: dl.Client | None = None

    def __enter__(self) -> Group:
        self.start(*self.kinds)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all running members, by a kill if needed."""
        if self._client is not None:
            self._client.close()
            self._client = None
        for member in self.members.values():
            member.close()

    @property
    def client(self) -> dl.Client:
        """Our client, for state and commands."""
        self._client = self._client or dl.connect(GROUP, self.peers)
        return self._client

    def start(self, *nodes: str) -> None:
        for node in nodes:
            self.members[node] = self._started(node)
        for node in nodes:
            self.members[node].wait_started()

    def _started(self, node: str) -> OurNode | JavaNode:
        kind = self.kinds[node]
        if kind == OURS:
            return OurNode(node, self.peers, self.folder, {**self.settings, "flush": self.flush})
        return JavaNode(kind, GROUP, node, self.peers, self.folder, self.settings)

    def kill(self, node: str) -> None:
        self.members.pop(node).kill()

    @contextmanager
    def paused(self, node: str) -> Iterator[None]:
        """Suspends a member for the duration of the block."""
        member = self.members[node]
        member.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            member.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stops all members with a clean shutdown."""
        if self._client is not None:
            self._client.close()
            self._client = None
        while self.members:
            self.members.popitem()[1].stop()

    def state(self, node: str) -> dict[str, Any]:
        """Returns role, term, leader, begin, end and committed index of a member. Role None: no answer."""
        member = self.members.get(node)
        try:
            if isinstance(member, JavaNode):
                return member.state()
            answer = self.client.status(node)
        except (GroupError, OSError):
            return {"role": None, "term": -1, "leader": None, "begin": -1, "end": -1, "committed": -1}
        return {
            "role": answer.role.value,
            "term": answer.term,
            "leader": answer.leader_id,
            "begin": answer.begin_index,
            "end": answer.end_index,
            "committed": answer.committed_index,
        }

    def states(self) -> dict[str, dict[str, Any]]:
        return {node: self.state(node) for node in self.members}

    def leader(self, patience: float = 20) -> str:
        """Waits for a leader that all running members agree on."""
        try:
            return self.wait(self._agreed_leader, patience / 2, "a leader that all follow")
        except AssertionError:
            self._restart_deaf_leader()
            return self.wait(self._agreed_leader, patience / 2, "a leader that all follow")

    def _restart_deaf_leader(self) -> None:
        """Restarts Java leaders that ignore a member with a larger term (DLedger issue 247)."""
        states = self.states()
        newest = max(state["term"] for state in states.values())
        for node, state in states.items():
            if state["role"] == "LEADER" and state["term"] < newest and self.kinds[node] != OURS:
                self.kill(node)
                self.start(node)

    def _agreed_leader(self) -> str | None:
        states = self.states()
        leaders = {state["leader"] for state in states.values()}
        terms = {state["term"] for state in states.values()}
        if len(leaders) == 1 and len(terms) == 1:
            (leader,) = leaders
            if leader in states and states[leader]["role"] == "LEADER":
                return str(leader)
        return None

    def transfer(self, node: str) -> None:
        """Transfers leadership. Retries: a Java transfer fails while the member lags, or leaves a deaf leader."""

        def done() -> bool:
            if self.leader() == node:
                return True
            try:
                self.client.transfer(node)
            except (GroupError, UnknownOutcomeError):
                return False
            return self.leader() == node

        self.wait(done, 90, f"leadership of {node}")

    def settle(self, patience: float = 30) -> int:
        """Waits until all running members have the same end, committed. Returns that index."""

        def end() -> int | None:
            states = self.states().values()
            ends = {state["end"] for state in states} | {state["committed"] for state in states}
            return ends.pop() if len(ends) == 1 else None

        return self.wait(end, patience, "the same end everywhere")

    def wait(self, question: Callable[[], Any], patience: float, what: str) -> Any:
        """Asks until the answer is neither None nor False, for `patience` seconds. Returns that answer."""
        until = time.monotonic() + BUSY * patience
        while time.monotonic() < until:
            answer = question()
            if answer is not None and answer is not False:
                return answer
            time.sleep(0.02)
        ended = [
            member.log_end() for member in self.members.values() if isinstance(member, OurNode) and member.is_ended
        ]
        raise AssertionError(f"no {what} within {BUSY * patience} s: {json.dumps(self.states())}" + "".join(ended))

    def folders(self) -> list[Path]:
        return [self.folder / f"dledger-{node}" for node in self.kinds]


@final
class Load:
    """Appends from several threads with one client until the block ends. `acknowledged` has the bodies by index."""

    def __init__(self, group: Group, tag: str, threads: int = 4, size: int = 300) -> None:
        self._client = dl.connect(GROUP, group.peers)
        self._tag, self._size = tag, size
        self._is_ended = threading.Event()
        self._may_append = threading.Event()
        self._may_append.set()
        self._threads = [threading.Thread(target=self._append, args=(number,)) for number in range(threads)]
        self.acknowledged: dict[int, bytes] = {}
        self.unknown = 0
        self.rejected = 0
        self.failures: list[BaseException] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Appends nothing until the block ends."""
        self._may_append.clear()
        try:
            yield
        finally:
            self._may_append.set()

    def wait_for(self, count: int, patience: float = 30) -> None:
        """Waits until `count` further appends are acknowledged."""
        wanted = len(self.acknowledged) + count
        until = time.monotonic() + BUSY * patience
        while len(self.acknowledged) < wanted:
            assert not self.failures, self.failures
            if time.monotonic() > until:
                raise AssertionError(
                    f"{len(self.acknowledged)} of {wanted} acknowledged within {BUSY * patience} s, "
                    f"{self.unknown} unknown, {self.rejected} rejected"
                )
            time.sleep(0.01)

    def _append(self, thread: int) -> None:
        number = 0
        try:
            while not self._is_ended.is_set():
                self._may_append.wait()
                number += 1
                self._append_one(f"{self._tag}-{thread}-{number} ".encode().ljust(self._size, b"."))
        except BaseException as failure:  # noqa: BLE001  # raised in the waiting thread
            self.failures.append(failure)

    def _append_one(self, body: bytes) -> None:
        try:
            appended = self._client.append(body)
        except UnknownOutcomeError:
            self.unknown += 1
        except GroupError:
            self.rejected += 1
        else:
            assert appended.index not in self.acknowledged, f"index {appended.index} acknowledged twice"
            self.acknowledged[appended.index] = body


def lost_indexes(acknowledged: dict[int, bytes], folder: Path) -> list[int]:
    """Returns the acknowledged indexes that the log in ``dledger-ID`` lacks or has with another body."""
    bodies = {entry.index: entry.body for entry in stored_entries(folder)}
    return [index for index, body in acknowledged.items() if bodies.get(index) != body]
