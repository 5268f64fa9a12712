"""Clients that append and read continuously, and record the results."""

from __future__ import annotations

import random
import threading
import time

import pyarrow as pa

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError, GroupError, IndexRangeError, UnknownOutcomeError
from pyspark_dledger.format.message import parse_message
from pyspark_dledger.raft.client import Client, PartialAppendError
from pyspark_dledger.raft.peers import parse_peers
from pyspark_dledger.store.dledger_store import Entry
from tests.chaos.history import Append, Get, History
from tests.support.message_nodes import puts

BATCH = 20
TOPIC = "Orders"
LAST = b"last"
# Pauses of writers, so that a log of a hundred rounds can be read again and again.
_PAUSE_SECONDS = 0.01


class Load:
    """Threads with one client each: every fourth writer appends batches; one more thread reads from all members."""

    def __init__(self, group: str, peers: str, writers: int, seed: int) -> None:
        self.history = History()
        self.highest = -1  # the highest acknowledged index
        self.acknowledged = 0
        self.queue_offsets: dict[bytes, int] = {}
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._group, self._peers = group, peers
        self._members = list(parse_peers(peers))
        self._threads = [
            threading.Thread(
                target=self._run, args=(self._append_batches if number % 4 == 3 else self._append_singles, number)
            )
            for number in range(writers)
        ]
        self._threads.append(threading.Thread(target=self._run, args=(self._read, seed)))
        for thread in self._threads:
            thread.start()

    def stop(self) -> History:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return self.history

    def next_target(self) -> int:
        """So many appends are acknowledged once one was that is called from now on."""
        return self.acknowledged + 2 * len(self._threads) * BATCH

    def append_last(self, client: Client) -> None:
        """Append one more entry after `stop`."""
        append = Append(LAST, time.monotonic())
        self.history.add(append)
        self._acknowledge(append, client.append(append.body).index)

    def _run(self, work, number: int) -> None:  # type: ignore[no-untyped-def]
        try:
            with dl.connect(group=self._group, peers=self._peers, timeout_ms=2_000, max_retries=3) as client:
                work(client, number)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _acknowledge(self, append: Append, index: int) -> None:
        append.returned, append.outcome, append.index = time.monotonic(), "acknowledged", index
        with self.history.lock:
            self.acknowledged += 1
            self.highest = max(self.highest, index)

    def _append_singles(self, client: Client, number: int) -> None:
        sequence = 0
        while not self._stopping.is_set():
            append = Append(_body(number, sequence), time.monotonic())
            sequence += 1
            self.history.add(append)
            try:
                index = client.append(append.body).index
            except UnknownOutcomeError:
                continue
            except GroupError:
                append.outcome = "rejected"
                continue
            finally:
                append.returned = time.monotonic()
            self._acknowledge(append, index)
            time.sleep(_PAUSE_SECONDS)

    def _append_batches(self, client: Client, number: int) -> None:
        sequence = 0
        while not self._stopping.is_set():
            called = time.monotonic()
            batch = [Append(_body(number, sequence + i), called) for i in range(BATCH)]
            sequence += BATCH
            for append in batch:
                self.history.add(append)
            done, rejected = self._append_batch(client, [append.body for append in batch])
            returned = time.monotonic()
            for position, append in enumerate(batch):
                append.returned = returned
                if position in done:
                    self._acknowledge(append, done[position])
                elif position in rejected:
                    append.outcome = "rejected"
            time.sleep(_PAUSE_SECONDS)

    @staticmethod
    def _append_batch(client: Client, bodies: list[bytes]) -> tuple[dict[int, int], set[int]]:
        """The acknowledged indexes by position in the batch, and the positions certainly not appended."""
        rejected: set[int] = set()
        try:
            result = client.append_batch(bodies)
        except PartialAppendError as error:
            result = error.acknowledged
            rejected = {position for positions in error.not_appended for position in positions}
        except UnknownOutcomeError:
            return {}, rejected
        except GroupError:
            return {}, set(range(len(bodies)))
        return {p.first + i: p.index + i for p in result.ranges for i in range(p.count)}, rejected

    def _read(self, client: Client, seed: int) -> None:
        rng = random.Random(seed)
        while not self._stopping.is_set():
            first = max(0, self.highest + rng.choice((-500, -20, -1, 0, 1, 5, 50, -rng.randrange(self.highest + 2))))
            called = time.monotonic()
            try:
                found: list[Entry] = self._entries(client, first, rng.choice((None, *self._members)))
            except DLedgerError:
                continue
            returned = time.monotonic()
            for entry in found:
                self.history.add(Get(entry.index, called, returned, self.body_of(entry)))
            time.sleep(_PAUSE_SECONDS)

    def _entries(self, client: Client, index: int, member: str | None) -> list[Entry]:
        """An entry as the leader has it, or some that a member calls committed."""
        if member is not None:
            return list(client.read(index, member, max_bytes=1000).entries())
        called = time.monotonic()
        try:
            return [client.get(index)]
        except IndexRangeError:
            self.history.add(Get(index, called, time.monotonic(), None))
            return []

    def body_of(self, entry: Entry) -> bytes:
        """What a client appended as that entry; b"" for one of the group itself."""
        return b"" if entry.channel else entry.body


class MessageLoad(Load):
    """The same with messages that have identities: puts are repeated until they are acknowledged."""

    def append_last(self, client: Client) -> None:
        self._put(client, "last", [Append(LAST, time.monotonic())])

    def body_of(self, entry: Entry) -> bytes:
        if entry.channel:
            return b""
        message = parse_message(entry.body, 0, len(entry.body), 0)
        assert not isinstance(message, str), message
        return entry.body[message.body_start : message.body_start + message.body_length]

    def _append_singles(self, client: Client, number: int) -> None:
        self._put_batches(client, number, 1)

    def _append_batches(self, client: Client, number: int) -> None:
        self._put_batches(client, number, BATCH)

    def _put_batches(self, client: Client, number: int, count: int) -> None:
        sequence = 0
        while not self._stopping.is_set():
            called = time.monotonic()
            self._put(client, f"job {number}", [Append(_body(number, sequence + i), called) for i in range(count)])
            sequence += count
            time.sleep(_PAUSE_SECONDS)

    def _put(self, client: Client, job: str, batch: list[Append]) -> None:
        """Put messages until they are acknowledged."""
        for append in batch:
            self.history.add(append)
        bodies = pa.array([append.body for append in batch], pa.binary())
        messages = puts(pa.record_batch({"topic": pa.array([TOPIC] * len(batch)), "body": bodies}), job=job)
        while True:
            try:
                result = client.put_messages(messages)
            except DLedgerError:
                if self._stopping.is_set() and batch[0].body != LAST:
                    return
                time.sleep(_PAUSE_SECONDS)
                continue
            for append, put in zip(batch, result, strict=True):
                self.queue_offsets[append.body] = put.queue_offset
                self._acknowledge(append, put.index)
            return


def _body(writer: int, sequence: int) -> bytes:
    return b"%d-%d " % (writer, sequence) + b"." * 60
