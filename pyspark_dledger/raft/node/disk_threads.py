"""Threads for work that may wait for a disk, so that the event loop of a node never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark_dledger.raft.node.limits import Waiters
from pyspark_dledger.store.dledger_store import DLedgerStore, EntryRange

_READERS = 4


class DiskThreads:
    """Runs one change of the log at a time, and several reads. Everything else runs in the thread of the event loop.

    While ``is_busy``, the log changes: only `read` may use the store.
    """

    def __init__(self, store: DLedgerStore) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._changes = ThreadPoolExecutor(1, "log")
        self._readers = ThreadPoolExecutor(_READERS, "reads")
        self.is_busy = False
        self._busy_since = 0.0
        self._is_stopped = False
        # Called when no change runs, by the received bytes of the connection.
        self._waiting = Waiters()

    def change(self, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
        """Call `work` in a thread, and `done` with its exception in the event loop."""
        assert not self.is_busy
        self.is_busy = True
        self._busy_since = self._loop.time()

        def finished(future: asyncio.Future[object]) -> None:
            self.is_busy = False
            if not future.cancelled():
                done(future.exception())

        self._loop.run_in_executor(self._changes, work).add_done_callback(finished)

    @property
    def busy_seconds(self) -> float:
        """How long the present change has taken."""
        return self._loop.time() - self._busy_since if self.is_busy else 0.0

    def read(self, first: int, max_bytes: int, done: Callable[[EntryRange | Exception], None]) -> None:
        """Call `DLedgerStore.read` in a thread, and `done` in the event loop. Repeated if the log was truncated."""
        if self._is_stopped:
            return
        removals = self._store.removals

        def finished(future: asyncio.Future[EntryRange]) -> None:
            if future.cancelled():
                return
            if removals != self._store.removals:
                self.read(first, max_bytes, done)
                return
            error = future.exception()
            if error is None:
                done(future.result())
            else:
                done(error if isinstance(error, Exception) else RuntimeError(repr(error)))

        self._loop.run_in_executor(self._readers, self._store.read, first, max_bytes).add_done_callback(finished)

    def when_idle(self, work: Callable[[], None], size: int = 0) -> None:
        """Call `work` when the log does not change any more, those of smaller `size` first.

        It is called once, also if it was given several times.
        """
        self._waiting.add(work, size)

    def wake(self) -> None:
        """Call what waits."""
        self._waiting.call()

    async def stop(self) -> None:
        """Wait for all threads. What they have not begun is dropped."""
        self._is_stopped = True
        self._waiting.clear()
        for pool in (self._changes, self._readers):
            await self._loop.run_in_executor(None, partial(pool.shutdown, cancel_futures=True))
