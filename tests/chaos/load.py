"""Clients that append and read continuously, and record the results."""

from __future__ import annotations

import random
import threading
import time

import pyspark_dledger as dl
from pyspark_dledger.errors import GroupError, IndexRangeError, UnknownOutcomeError
from pyspark_dledger.raft.client import Client, PartialAppendError
from tests.chaos.history import Append, Get, History

BATCH = 20


class Load:
    """Threads with one client each: every fourth writer appends batches; one more thread reads."""

    def __init__(self, group: str, peers: str, writers: int, seed: int) -> None:
        self.history = History()
        self.highest = -1  # the highest acknowledged index
        self.acknowledged = 0
        self.failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._group, self._peers = group, peers
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

    def wait_for_progress(self, seconds: float) -> bool:
        """Whether an append that is called from now on is acknowledged in time."""
        target = self.acknowledged + 2 * len(self._threads) * BATCH
        deadline = time.monotonic() + seconds
        while self.acknowledged < target and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.acknowledged >= target

    def _run(self, work, number: int) -> None:  # type: ignore[no-untyped-def]
        try:
            with dl.connect(group=self._group, peers=self._peers, timeout_ms=2_000, max_retries=3) as client:
                work(client, number)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _acknowledge(self, append: Append, index: int) -> None:
        append.outcome, append.index = "acknowledged", index
        with self.history.lock:
            self.acknowledged += 1
            self.highest = max(self.highest, index)

    def _append_singles(self, client: Client, number: int) -> None:
        sequence = 0
        while not self._stopping.is_set():
            append = Append(b"w%d-%d" % (number, sequence), time.monotonic())
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

    def _append_batches(self, client: Client, number: int) -> None:
        sequence = 0
        while not self._stopping.is_set():
            called = time.monotonic()
            batch = [Append(b"b%d-%d" % (number, sequence + i), called) for i in range(BATCH)]
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
            index = max(0, self.highest + rng.choice((-500, -20, -1, 0, 1, 5, 50)))
            called = time.monotonic()
            try:
                body: bytes | None = client.get(index).body
            except IndexRangeError:
                body = None
            except GroupError:
                continue
            self.history.add(Get(index, called, time.monotonic(), body))
            time.sleep(0.002)
