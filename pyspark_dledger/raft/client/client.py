"""A thread-safe client of one group."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import ssl
import threading
import weakref
from array import array
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from operator import index
from types import TracebackType
from typing import Any, SupportsIndex, TypeVar, final

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError
from pyspark_dledger.format.encode.encoded import Bodies, BodyParts, Buffer, ProducerState
from pyspark_dledger.raft.client.request_units import (
    AnyResult,
    BatchCall,
    BulkCall,
    PutCall,
    check_body,
    sizes_of,
    split_batch,
)
from pyspark_dledger.raft.client.results import (
    Appended,
    BatchResult,
    CommittedRange,
    GroupMembers,
    MemberStatus,
    Metadata,
    PutResult,
    Topics,
)
from pyspark_dledger.raft.client.session import Session
from pyspark_dledger.raft.loops import cancel, new_loop
from pyspark_dledger.raft.peers import Address, parse_peers
from pyspark_dledger.raft.secret import check_secret
from pyspark_dledger.raft.tls import Tls, TlsContext
from pyspark_dledger.store.dledger_store import Entry

T = TypeVar("T")

_THREAD_NAME = "dledger-client"
# Seconds that a process waits at its end for the thread of a client that was not closed.
_MAX_JOIN_SECONDS = 1.0
_MAX_INDEX, _MAX_NUMBER = 2**63 - 1, 2**31 - 1

# The threads of all clients, and their loops.
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
    """A client of a group with the members ``peers``, such as ``n0-127.0.0.1:20911;n1-...``.

    ``timeout_ms`` limits the search for the leader, and then its response. Requests that were certainly not executed
    are retried up to ``max_retries`` times, with growing pauses. So a call takes at most about
    ``(1 + max_retries) * 2 * timeout_ms``. While no member has ever responded it makes at most three attempts.
    Nothing is sent before the first call. ``secret`` is the secret of the nodes, if they have one.
    Raises OptionError for an invalid group, peers, certificate, number or secret.
    """
    for name, number, minimum in (("timeout_ms", timeout_ms, 1), ("max_retries", max_retries, 0)):
        if number < minimum:
            raise OptionError(f"{name}: expected at least {minimum}, found {number}")
    if not isinstance(group, str) or not group:
        raise OptionError(f"group: expected the name of a group, found {group!r}")
    if not isinstance(peers, str):
        raise OptionError(
            f"peers: expected a text such as n0-127.0.0.1:20911;n1-127.0.0.1:20912, found {type(peers).__name__}"
        )
    context = tls.client_contexts() if isinstance(tls, Tls) else None if tls is None else lambda: tls
    check_secret(secret)
    return Client(group, parse_peers(peers), context, timeout_ms / 1000, max_retries, secret)


@final
class Client:
    """Made by `connect`. Use it as a context manager, or `close` it.

    All methods raise GroupError if nothing was changed, and can be called from any thread. Only `submit` can be called
    in a callback of a future. After a fork the parent can use its client; the child needs its own.
    """

    def __init__(
        self,
        group: str,
        addresses: dict[str, Address],
        tls: TlsContext | None,
        timeout: float,
        max_retries: int,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self._pid = os.getpid()
        self._is_closed = False
        # One close at a time, and no call may start after it: it would never end.
        self._close_lock = threading.Lock()
        self._start_lock = threading.Lock()
        self._loop = new_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=_THREAD_NAME, daemon=True)
        self._thread.start()
        _threads[self._thread] = self._loop

        async def start() -> Session:
            return Session(group, addresses, tls, timeout, max_retries, secret)

        self._session = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        # Stops the thread of a client that was garbage-collected without `close`.
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._pid)

    def append(self, body: Buffer) -> Appended:
        """Append one entry, and wait until it is committed.

        Raises GroupError if it is not in the log, and UnknownOutcomeError if that is unknown.
        """
        self._check_not_in_callback()
        return self.submit(body).result()

    def submit(self, body: Buffer) -> Future[Appended]:
        """Append one entry without waiting. The future gets the result or the exception of `append`.

        Entries of several calls are sent together. They are in the log in the order of the calls, unless one fails or a
        Java node leads. Blocks only while too much is queued. A future can be cancelled until its entry is sent.
        Callbacks run in the client's own thread and block it.
        """
        body = check_body(body)
        self._check_usable()
        return self._session.appender.submit(body)

    def append_batch(self, bodies: Bodies | BodyParts | Sequence[Buffer]) -> BatchResult:
        """Append one entry for each body, in their order, and wait until all are committed.

        They are sent in requests of about 1 MiB, several at a time; each request is appended as a whole. Raises
        GroupError if nothing was appended. Raises PartialAppendError (an UnknownOutcomeError) if only some entries were
        appended, or if some outcomes are unknown. Raises TypeError and ValueError before anything is sent.
        """
        return self._send(bodies, BatchCall)

    def put_messages(
        self,
        bodies: Bodies | BodyParts | Sequence[Buffer],
        queue_nums: int = 4,
        *,
        is_idempotent: bool = True,
        term: int = -1,
    ) -> PutResult:
        """Append encoded RocketMQ messages, and wait until all are committed. Returns positions and queue offsets.

        The leader assigns the queue offsets, and creates new topics with ``queue_nums`` queues. A duplicate, whose
        identity (property ``__DLEDGER_ID``) is already in the log, is not appended again and gets its first position.
        So messages with an unknown outcome are sent again, to the leader of that time, until ``max_retries`` attempts
        in a row failed. Messages without identities could become duplicates: use ``is_idempotent=False`` for them; then
        an unknown outcome is an error as in `append_batch`. With a ``term`` of `producer`, only the leader of that term
        takes them; another one rejects them with code EXPIRED_TERM (403).

        They are sent in requests of about 1 MiB, several at a time; of each request all new messages are appended.
        Raises GroupError if nothing was appended, with code UNSUPPORTED (303) if the leader does not serve messages,
        like Java's. Raises PartialAppendError (an UnknownOutcomeError) if only some messages were appended, or if some
        outcomes are unknown. Raises OptionError, TypeError and ValueError before anything is sent.
        """
        _check_number("queue_nums", queue_nums, 1, _MAX_NUMBER)
        return self._send(bodies, lambda sizes: PutCall(len(sizes), index(queue_nums), is_idempotent, term))

    def _send(
        self, bodies: Bodies | BodyParts | Sequence[Buffer], call_of: Callable[[array[int]], BulkCall[AnyResult]]
    ) -> AnyResult:
        """Send all bodies in parts, until one fails, and wait for the result of the call with these sizes."""
        self._check_usable()
        self._check_not_in_callback()
        bodies = _parts_or_list(bodies)
        sizes = sizes_of(bodies)
        call = call_of(sizes)
        try:
            for first, part in split_batch(bodies, sizes):
                if not call.wait_for_room():
                    break
                unit = call.unit(first, part)
                try:
                    self._session.appender.add(unit)
                except GroupError as error:
                    call.failed(unit, error)
            return call.result()
        finally:
            call.abandon()

    def topics(self, names: Sequence[str], queue_nums: int = 4) -> Topics:
        """The number of queues of each topic, and the store host of messages.

        The leader creates new topics with ``queue_nums`` queues. Raises GroupError for an invalid topic, and with code
        UNSUPPORTED (303) if the leader does not serve messages.
        """
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"names: expected a sequence of texts, found {names!r}")
        _check_number("queue_nums", queue_nums, 1, _MAX_NUMBER)
        return self._wait(self._session.topics(tuple(names), index(queue_nums)))

    def producer(self, producer: bytes, run: int = 0, from_index: int = -1) -> ProducerState:
        """What the log has of a producer's messages, with identities of entries from ``from_index`` on, if given.

        ``producer`` is the first 8 bytes of their identities. Raises GroupError, with code UNSUPPORTED (303) if the
        leader does not serve messages.
        """
        return self._wait(self._session.producer(producer, run, from_index))

    def config(self) -> dict[str, bytes]:
        """The metadata files of a leader that serves messages, by file name."""
        return self._wait(self._session.config())

    def get(self, index: int) -> Entry:
        """The committed entry of that index. Raises IndexRangeError if there is none, OptionError for an invalid index.

        Java's leader also returns uncommitted entries, which can still be lost.
        """
        _check_number("index", index, 0, _MAX_INDEX)
        return self._wait(self._session.get(index))

    def metadata(self) -> Metadata:
        """The members, and the leader as far as they know."""
        return self._wait(self._session.metadata())

    def status(self, node_id: str) -> MemberStatus:
        """The state of one member, which must be a node of this package."""
        return self._wait(self._session.status(node_id))

    def read(
        self, first_index: int, node_id: str | None = None, *, max_bytes: int = 1 << 20, wait_ms: int = 0
    ) -> CommittedRange:
        """Committed entries from that index on, of that member, or of any node of this package.

        Waits up to ``wait_ms`` for the first one to be committed; the range is empty after that. Raises IndexRangeError
        for an index below the member's first, and OptionError for invalid numbers.
        """
        _check_number("first_index", first_index, 0, _MAX_INDEX)
        _check_number("max_bytes", max_bytes, 1, _MAX_NUMBER)
        _check_number("wait_ms", wait_ms, 0, _MAX_NUMBER)
        return self._wait(self._session.read(first_index, node_id, max_bytes, wait_ms))

    def java_status(self) -> MemberStatus:
        """The state of a Java group's leader, with the committed index that its members' responses prove.

        Raises OptionError for a group whose responses prove nothing, and GroupError if they prove nothing yet.
        """
        return self._wait(self._session.java_log.status())

    def read_java(self, first_index: int, *, max_bytes: int = 1 << 20) -> CommittedRange:
        """Entries of a Java group from that index on, if they are proven to be committed; none if the first is not.

        Raises IndexRangeError for an index that has expired at the leader, else as `java_status`.
        """
        _check_number("first_index", first_index, 0, _MAX_INDEX)
        _check_number("max_bytes", max_bytes, 1, _MAX_NUMBER)
        return self._wait(self._session.java_log.read(first_index, max_bytes))

    def members(self) -> GroupMembers:
        """The members, as the leader knows them."""
        return self._wait(self._session.members())

    def add_member(self, node_id: str, address: str) -> GroupMembers:
        """Add a member that was started with ``join``. Returns at once: it votes when it has all entries.

        As `remove_member` and `replace_member`, it needs a member's address or certificate, or the members' secret, and
        raises GroupError while another change is under way, or if a member may be Java's. Repeating it is harmless.
        """
        return self._wait(self._session.members("add", node_id, node_id, address))

    def remove_member(self, node_id: str) -> GroupMembers:
        """Remove a member; it can be stopped when the list is final. Removing a learner gives up its change.

        Repeating it is harmless. Raises GroupError with UNKNOWN_MEMBER for an id that no list of the log has.
        """
        return self._wait(self._session.members("remove", node_id))

    def replace_member(self, node_id: str, new_id: str, address: str) -> GroupMembers:
        """Add a member, then remove another one."""
        return self._wait(self._session.members("replace", node_id, new_id, address))

    def transfer(self, node_id: str) -> None:
        """Make that member the leader, and wait until it is.

        Raises GroupError if the transfer was rejected, and UnknownOutcomeError if it may have succeeded or still may.
        """
        return self._wait(self._session.transfer(node_id))

    def close(self) -> None:
        """Wait for submitted appends, for ``timeout_ms`` at most, and close all connections.

        Unsent appends then fail with GroupError, those without a response with UnknownOutcomeError. May be called
        twice. Does nothing in a forked child.
        """
        self._close(waits=True)

    def _close(self, waits: bool) -> None:
        if os.getpid() != self._pid:
            return
        self._check_not_in_callback()
        with self._close_lock:
            if self._is_closed:
                return
            with self._start_lock:
                self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._session.close(waits), self._loop).result()
            self._finalizer.detach()
            _stop(self._loop, self._pid)
            self._thread.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C do not wait for submitted appends.
        self._close(waits=not isinstance(error, KeyboardInterrupt))

    def __repr__(self) -> str:
        return f"<Client of group {self.group}{', closed' if self._is_closed else ''}>"

    def _check_usable(self) -> None:
        if self._is_closed:
            raise self._closed_error()
        if os.getpid() != self._pid:
            raise DLedgerError(
                f"group {self.group}: this client is of process {self._pid}, with its thread and connections: call "
                "connect after the fork"
            )

    def _closed_error(self) -> GroupError:
        return GroupError(f"group {self.group}: the client is closed: call connect again", ResponseCode.NETWORK_ERROR)

    def _check_not_in_callback(self) -> None:
        if threading.current_thread() is self._thread:
            raise DLedgerError(
                f"group {self.group}: a call that waits cannot be made in a callback of a future, because it would "
                "block the client: use submit there"
            )

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_usable()
            self._check_not_in_callback()
            with self._start_lock:
                self._check_usable()
                started = asyncio.run_coroutine_threadsafe(work, self._loop)
        except DLedgerError:
            work.close()
            raise
        try:
            return started.result()
        except concurrent.futures.CancelledError:
            raise self._closed_error() from None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The client's thread: runs the loop until `_stop`, then ends all calls."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(cancel(asyncio.all_tasks(loop)))
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if os.getpid() == pid:
        # The loop may be closed already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)


@atexit.register
def _stop_all() -> None:
    """Stop the threads of clients that were not closed, which would otherwise warn about pending tasks."""
    running = [(thread, loop) for thread, loop in _threads.items() if thread.is_alive()]
    for _, loop in running:
        _stop(loop, os.getpid())
    for thread, _ in running:
        thread.join(_MAX_JOIN_SECONDS)


def _parts_or_list(bodies: Bodies | BodyParts | Sequence[Buffer]) -> BodyParts | Sequence[Buffer]:
    if isinstance(bodies, (Bodies, BodyParts)):
        return bodies.parts
    return bodies if isinstance(bodies, (list, tuple)) else list(bodies)


def _check_number(name: str, value: object, minimum: int, maximum: int) -> None:
    if not isinstance(value, SupportsIndex) or not minimum <= index(value) <= maximum:
        raise OptionError(f"{name}: expected a number from {minimum} to {maximum}, found {value!r}")
