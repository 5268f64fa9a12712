"""A client of one group, to be used from as many threads as wanted."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import ssl
import threading
import weakref
from array import array
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from operator import index
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar, final

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies, Buffer
from pyspark_dledger.raft.client.request_units import (
    BatchCall,
    PutCall,
    WholeCall,
    check_body,
    cut,
    sizes_of,
)
from pyspark_dledger.raft.client.results import (
    Appended,
    BatchResult,
    CommittedRange,
    MemberStatus,
    Metadata,
    PutResult,
    Topics,
)
from pyspark_dledger.raft.client.session import Session
from pyspark_dledger.raft.loops import cancel, new_loop
from pyspark_dledger.raft.peers import Address, parse_peers
from pyspark_dledger.raft.secret import check_secret
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.store.dledger_store import Entry

T = TypeVar("T")

_THREAD_NAME = "dledger-client"
# Seconds. The process does not wait longer for the thread of a client that nobody closed.
_MAX_JOIN_SECONDS = 1.0
_MAX_INDEX, _MAX_NUMBER = 2**63 - 1, 2**31 - 1

# Those that may still run, and their loops.
_threads: weakref.WeakKeyDictionary[threading.Thread, asyncio.AbstractEventLoop] = weakref.WeakKeyDictionary()


def connect(
    group: str,
    peers: str,
    *,
    tls: Tls | ssl.SSLContext | None = None,
    timeout_ms: int = 3000,
    max_retries: int = 10,
    secret: str | None = None,
) -> Client:
    """A client of a group whose members are ``n0-127.0.0.1:20911;n1-...``; it finds the leader and follows it.

    ``timeout_ms`` bounds one attempt: finding the leader, and then its answer. What is certainly not done is tried
    again, up to ``max_retries`` times with growing pauses, so a call takes at most about
    ``(1 + max_retries) * 2 * timeout_ms``. Nothing is sent before the first call. ``secret`` is what nodes want that
    were started with one.
    Raises OptionError for a group, peers, certificates, numbers or a secret that cannot be meant.
    """
    if timeout_ms <= 0 or max_retries < 0:
        raise OptionError(
            f"expected a positive timeout_ms and no negative max_retries, found {timeout_ms} and {max_retries}"
        )
    if not isinstance(group, str) or not group:
        raise OptionError(f"group: expected the name of a group, found {group!r}")
    if not isinstance(peers, str):
        raise OptionError(
            f"peers: expected a text such as n0-127.0.0.1:20911;n1-127.0.0.1:20912, found {type(peers).__name__}"
        )
    context = tls.client_context() if isinstance(tls, Tls) else tls
    check_secret(secret)
    return Client(group, parse_peers(peers), context, timeout_ms / 1000, max_retries, secret)


@final
class Client:
    """Use it as a context manager, or `close` it. Made by `connect`.

    All methods raise GroupError where nothing was changed, and may be used from any thread but, of those that wait, not
    from a callback of a future. A process that forks goes on with its client; the child needs one of its own.
    """

    def __init__(
        self,
        group: str,
        addresses: dict[str, Address],
        tls: ssl.SSLContext | None,
        timeout: float,
        max_retries: int,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self._pid = os.getpid()
        self._is_closed = False
        # Of closing only one, and no call that begins behind it: nobody would answer it any more.
        self._closing = threading.Lock()
        self._beginning = threading.Lock()
        self._loop = new_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=_THREAD_NAME, daemon=True)
        self._thread.start()
        _threads[self._thread] = self._loop

        async def start() -> Session:
            return Session(group, addresses, tls, timeout, max_retries, secret)

        self._session = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        # A client that nobody closed, and nobody has any longer, does not run on.
        self._forgotten = weakref.finalize(self, _stop, self._loop, self._pid)

    def append(self, body: Buffer) -> Appended:
        """Append one entry, and wait until it is committed.

        Raises GroupError if it is not in the log, and UnknownOutcomeError if nobody knows.
        """
        self._may_wait()
        return self.submit(body).result()

    def submit(self, body: Buffer) -> Future[Appended]:
        """Append one entry without waiting: its future has what `append` gives or raises.

        Entries of several calls travel together and stand in the log in the order of the calls, unless one fails or
        Java leads. Waits only while very much is under way. A future can be cancelled as long as it is not sent.
        Its callbacks run in the client's own thread: they hold up everything else as long as they last.
        """
        body = check_body(body)
        self._check()
        future: Future[Appended] = Future()
        self._session.appender.submit(body, future)
        return future

    def append_batch(self, bodies: Bodies | Sequence[Buffer]) -> BatchResult:
        """Append one entry for each body, in their order, and wait until all are committed.

        They go in requests of about 1 MiB, several at a time, each of which is appended as a whole. Raises GroupError
        if nothing was appended, PartialAppendError (an UnknownOutcomeError) if it is known of some entries only, or
        only some were appended; TypeError and ValueError for what is no batch, before anything is sent.
        """
        self._check()
        self._may_wait()
        if not isinstance(bodies, (Bodies, list, tuple)):
            bodies = list(bodies)
        sizes = sizes_of(bodies)
        batch = BatchCall(sizes)
        try:
            self._add(batch, bodies, sizes)
            return batch.result()
        finally:
            batch.abandon()

    def put_messages(
        self, bodies: Bodies | Sequence[Buffer], queue_nums: int = 4, *, is_idempotent: bool = True
    ) -> PutResult:
        """Append whole messages of RocketMQ, and wait until all are committed: where each stands, and in its queue.

        The leader numbers them per topic and queue, and makes topics that are new with ``queue_nums`` queues. A message
        whose identity (property ``__DLEDGER_ID``) is in the log already is not appended again, and gets the place that
        it has. So what has an unknown outcome is sent again, to whoever leads then, until ``max_retries`` attempts in a
        row brought nothing. Messages without identities may come to stand twice by that: for these say
        ``is_idempotent=False``, and it is as with `append_batch`.

        They go in requests of about 1 MiB, several at a time, in each of which all are appended that are not there yet.
        Raises GroupError if nothing was appended: with code UNSUPPORTED (303) if the leader serves no messages, as
        Java's. Raises PartialAppendError (an UnknownOutcomeError) if it is known of some messages only, or only some
        were appended; OptionError, TypeError and ValueError for what cannot be sent, before anything is.
        """
        self._check()
        self._may_wait()
        _check_number("queue_nums", queue_nums, 1, _MAX_NUMBER)
        if not isinstance(bodies, (Bodies, list, tuple)):
            bodies = list(bodies)
        sizes = sizes_of(bodies)
        puts = PutCall(len(sizes), index(queue_nums), is_idempotent)
        try:
            self._add(puts, bodies, sizes)
            return puts.result()
        finally:
            puts.abandon()

    def _add(self, together: WholeCall, bodies: Bodies | Sequence[Buffer], sizes: array[int]) -> None:
        """Have all bodies sent, in parts, unless one of them fails before."""
        for first, part in cut(bodies, sizes):
            if not together.wait_for_room():
                return
            unit = together.unit(first, part)
            try:
                self._session.appender.add(unit)
            except GroupError as error:
                together.failed(unit, error)

    def topics(self, names: Sequence[str], queue_nums: int = 4) -> Topics:
        """How many queues each topic has, and with which host messages are stored; the leader tells.

        It makes topics that are new, with ``queue_nums`` queues. Raises GroupError with code UNSUPPORTED (303) where
        the leader serves no messages, and GroupError for a topic that cannot be.
        """
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"names: expected a sequence of texts, found {names!r}")
        _check_number("queue_nums", queue_nums, 1, _MAX_NUMBER)
        return self._wait(self._session.topics(tuple(names), index(queue_nums)))

    def config(self) -> dict[str, bytes]:
        """The metadata that a leader that serves messages keeps beside its log, by file name."""
        return self._wait(self._session.config())

    def get(self, index: int) -> Entry:
        """The entry of that index. Raises IndexRangeError where there is none, as far as is committed.

        Java's leader also gives entries that are not committed yet, which it may lose again. Raises OptionError for
        what is no index.
        """
        _check_number("index", index, 0, _MAX_INDEX)
        return self._wait(self._session.get(index))

    def metadata(self) -> Metadata:
        """The members, and who leads as far as they know."""
        return self._wait(self._session.metadata())

    def status(self, node_id: str) -> MemberStatus:
        """How one member stands, which must be one of ours."""
        return self._wait(self._session.status(node_id))

    def read(
        self, first_index: int, node_id: str | None = None, *, max_bytes: int = 1 << 20, wait_ms: int = 0
    ) -> CommittedRange:
        """Committed entries from that index on, of that member, or of any, which must be one of ours.

        Waits up to ``wait_ms`` for the first to be committed; then the range is empty. Raises IndexRangeError for an
        index that is below the member's first, and OptionError for numbers that cannot be meant.
        """
        _check_number("first_index", first_index, 0, _MAX_INDEX)
        _check_number("max_bytes", max_bytes, 1, _MAX_NUMBER)
        _check_number("wait_ms", wait_ms, 0, _MAX_NUMBER)
        return self._wait(self._session.read(first_index, node_id, max_bytes, wait_ms))

    def transfer(self, node_id: str) -> None:
        """Make that member the leader, and wait until it is.

        Raises GroupError if it was refused, and UnknownOutcomeError if it may have happened, or may yet.
        """
        return self._wait(self._session.transfer(node_id))

    def close(self) -> None:
        """Wait for what was submitted, for ``timeout_ms`` at most, and let go of everything.

        What was not sent by then fails with GroupError, what has no answer with UnknownOutcomeError. May be called
        twice; in a child of the process that made the client it does nothing.
        """
        self._close(waits=True)

    def _close(self, waits: bool) -> None:
        if os.getpid() != self._pid:
            return
        self._may_wait()
        with self._closing:
            if self._is_closed:
                return
            with self._beginning:
                self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._session.close(waits), self._loop).result()
            self._forgotten.detach()
            _stop(self._loop, self._pid)
            self._thread.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Who interrupts does not want to wait for what was submitted.
        self._close(waits=not isinstance(error, KeyboardInterrupt))

    def __repr__(self) -> str:
        return f"<Client of group {self.group}{', closed' if self._is_closed else ''}>"

    def _check(self) -> None:
        if self._is_closed:
            raise self._closed()
        if os.getpid() != self._pid:
            raise DLedgerError(
                f"group {self.group}: expected a client made in this process, found one of process {self._pid}, whose "
                "thread and connections stay there: call connect after the fork"
            )

    def _closed(self) -> GroupError:
        return GroupError(f"group {self.group}: the client is closed: call connect anew", ResponseCode.NETWORK_ERROR)

    def _may_wait(self) -> None:
        if threading.current_thread() is self._thread:
            raise DLedgerError(
                f"group {self.group}: expected a call that waits in a thread of its own, found it in a callback of a "
                "future, which the client itself waits for: use submit there"
            )

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check()
            self._may_wait()
            with self._beginning:
                self._check()
                begun = asyncio.run_coroutine_threadsafe(work, self._loop)
        except DLedgerError:
            work.close()
            raise
        try:
            return begun.result()
        except concurrent.futures.CancelledError:
            raise self._closed() from None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """What the client's thread does until `_stop`; then nobody is left waiting."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(cancel(asyncio.all_tasks(loop)))
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if os.getpid() == pid:
        # A loop that is closed has nothing left to stop.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)


@atexit.register
def _end_all() -> None:
    """Ends the threads of clients that were not closed: cut off in the middle, they would complain of their tasks."""
    running = [(thread, loop) for thread, loop in _threads.items() if thread.is_alive()]
    for _, loop in running:
        _stop(loop, os.getpid())
    for thread, _ in running:
        thread.join(_MAX_JOIN_SECONDS)


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, SupportsIndex) or not least <= index(value) <= most:
        raise OptionError(f"{name}: expected a number from {least} to {most}, found {value!r}")
