"""A node: starts and stops its store, core and connections."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark_dledger import __version__
from pyspark_dledger.common.log_records import LOG, RateLimitedLog, record
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError
from pyspark_dledger.format.codec import CONTROL_KINDS
from pyspark_dledger.raft.core import Core, CoreConfig
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.messages import MetadataRequest, Request, Response
from pyspark_dledger.raft.node.access import literal_hosts, own_source
from pyspark_dledger.raft.node.callers import LocalCaller
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.raft.node.connections import Connections
from pyspark_dledger.raft.node.core_driver import CoreDriver
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.raft.node.inbound import Inbound
from pyspark_dledger.raft.node.listener import Listener, listen, listening_sockets
from pyspark_dledger.raft.node.node_config import NodeConfig
from pyspark_dledger.raft.node.peer_link import PeerLink
from pyspark_dledger.raft.peers import Address, parse_address
from pyspark_dledger.raft.tls import TlsContext
from pyspark_dledger.store.dledger_store import DLedgerStore

if TYPE_CHECKING:
    from pyspark_dledger.raft.node.metrics.endpoint import Endpoint

# The time for the last responses when it stops.
_CLOSE_SECONDS = 1.0


class Node:
    """Runs in the event loop of `start`. If the node fails, the future `failed` gets the error.

    With an `application` the leader serves messages. An exception of the application fails the node.
    """

    def __init__(self, config: NodeConfig, application: Application | None = None) -> None:
        self.config = config
        self._application = application
        self._is_application_started = False
        self._members = config.members()
        self._listen = config.listen_address()
        self._log = RateLimitedLog()
        self._connections = Connections(config, self._hosts_of)
        self._local_requests: set[asyncio.Future[Response]] = set()
        self._links: dict[str, PeerLink] = {}
        self._server: Listener | None = None
        self._metrics: Endpoint | None = None
        self._store: DLedgerStore | None = None
        self._core: Core | None = None
        self._compared_peers = ""
        self._driver: CoreDriver | None = None
        self._threads: DiskThreads | None = None
        self._tls: TlsContext | None = None
        # Connections to removed members that are being closed.
        self._stopping: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Open the store, listen, and join the group.

        Raises OptionError, StoreError if the store is in use or damaged, and DLedgerError if it cannot listen.
        """
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[Exception] = loop.create_future()
        contexts = self._contexts()
        core_config = self.config.core_config()
        metrics = self.config.metrics_address()
        _check_metrics(metrics)
        try:
            if metrics is not None:
                self._metrics = await self._start_metrics(metrics)
            await _in_thread(lambda: self._open(core_config))
            await self._start_parts(contexts)
            self._watch()
        except BaseException:
            await self.stop()
            raise

    def _open(self, core_config: CoreConfig) -> None:
        """Open the store, and start application and core, which may save a term."""
        self._store = store = self._open_store()
        if self._application is not None:
            self._application.started(store)
            self._is_application_started = True
        addresses = {peer_id: str(address) for peer_id, address in self._members.items()}
        now = int(time.monotonic() * 1000)
        self._core = Core(core_config, store, random.SystemRandom(), now, addresses, self._application)
        # Lists of the log decide, and this member may have an old one.
        self._compared_peers = self.config.compared_peers() if self._core.members.is_static else ""

    async def _start_parts(self, contexts: tuple[TlsContext | None, TlsContext | None]) -> None:
        store, config = self.store, self.config
        self._threads = DiskThreads(store)
        store.is_undo_deferred = True
        call_later = asyncio.get_running_loop().call_later
        self._reads = CommittedReads(store, self._threads, config.group, config.self_id, call_later)
        self._driver = driver = CoreDriver(self.core, self._reads, self._threads, lambda: store.failure, self._fail)
        await self._listen_at(self._listen, contexts[0])
        self._tls = contexts[1]
        self.core.connection_problems = self._connection_problems
        driver.start(self._links, self._take_members)
        store.start_scrubbing(driver.damaged_in_thread)
        self._connections.start()
        self._take_members()
        record(logging.INFO, "started", group=config.group, id=config.self_id, listen=self.address, **self.status())
        if config.tls is None and not self.address.is_loopback:
            risk = "reaches it can write" if config.secret is None else "reads the network can read the secret"
            record(logging.WARNING, "open", listen=self.address, found=f"everyone who {risk}: use TLS")

    async def stop(self) -> None:
        """Stop, close all connections, then flush and close the store. May be called twice."""
        if self._metrics is not None:
            self._metrics.stop()
            self._metrics = None
        if self._driver is not None:
            self._driver.stop()
        if self._threads is not None:
            await self._threads.stop()
        self._fail_local_requests()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            await link.stop()
        self._links.clear()
        await self._close_connections()
        self._connections.stop()
        self._server = None
        await _in_thread(self._close)

    def _close(self) -> None:
        try:
            if self._application is not None and self._is_application_started:
                self._is_application_started = False
                self._application.stopped()
        finally:
            self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            store, self._store = self._store, None
            store.shutdown()
            record(logging.INFO, "stopped", group=self.config.group, id=self.config.self_id)

    async def _close_connections(self) -> None:
        """Send pending responses for a short time, then abort."""
        for inbound in self._connections.all():
            inbound.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._connections.all() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for inbound in self._connections.all():
            inbound.abort()
        await asyncio.sleep(0)

    @property
    def address(self) -> Address:
        """The address that it listens at."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return Address(host, port)

    @property
    def store(self) -> DLedgerStore:
        assert self._store is not None
        return self._store

    @property
    def core(self) -> Core:
        assert self._core is not None
        return self._core

    async def request(self, request: Request) -> Response:
        """The response to a request of this process, as on a connection. Await it in the loop of `start`.

        Group and member are filled in. Raises GroupError if the node stops or fails before the response.
        """
        if self._driver is None or self._driver.is_stopped:
            raise self._not_running()
        request.group, request.remote_id = self.config.group, self.config.self_id
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._local_requests.add(future)
        future.add_done_callback(self._local_requests.discard)
        self._driver.handle(request, LocalCaller(future))
        return await future

    def _not_running(self) -> GroupError:
        return GroupError(
            f"group {self.config.group}: node {self.config.self_id} is not running", ResponseCode.NETWORK_ERROR
        )

    def _fail_local_requests(self) -> None:
        """Requests of this process get an error instead of a response."""
        for future in list(self._local_requests):
            if not future.done():
                future.set_exception(self._not_running())

    def status(self) -> dict[str, Any]:
        """Role, term, leaderId, the indexes of its log, and the number of its damaged entries."""
        core, store = self.core, self.store
        return {
            "role": core.role.value,
            "term": core.term,
            "leaderId": core.leader_id,
            "beginIndex": store.ledger_begin_index,
            "endIndex": store.ledger_end_index,
            "committedIndex": store.committed_index,
            "flushedIndex": store.flushed_index,
            "damagedEntries": core.damaged_entries,
            **({"removed": True} if core.is_removed else {}),
        }

    # Constructing the parts

    def _contexts(self) -> tuple[TlsContext | None, TlsContext | None]:
        tls = self.config.tls
        return (None, None) if tls is None else (tls.server_contexts(), tls.client_contexts())

    def _open_store(self) -> DLedgerStore:
        """The started store. Until the driver exists, flushes are not reported: old entries are durable anyway."""
        if self.config.store is None:
            from pyspark_dledger.store.memory_store import MemoryStore

            return MemoryStore()
        from pyspark_dledger.store.mmap_file_store import MmapFileStore

        store = MmapFileStore(self.config.store_config(self.config.store))
        store.on_flushed(self._flushed_in_thread)
        store.startup(services=True)
        return store

    def _flushed_in_thread(self, index: int) -> None:
        if self._driver is not None:
            self._driver.flushed_in_thread(index)

    async def _start_metrics(self, address: Address) -> Endpoint:
        # It loads prometheus_client, which only nodes with metrics need.
        from pyspark_dledger.raft.node.metrics.endpoint import Endpoint

        try:
            sockets = await listening_sockets(address)
        except OSError as error:
            raise DLedgerError(f"metrics: cannot listen at {address} ({error}): use another address") from None
        endpoint = Endpoint(self.config, sockets)
        endpoint.start()
        record(logging.INFO, "metrics", listen=address)
        if not address.is_loopback:
            record(logging.WARNING, "open", listen=address, found="everyone who reaches it can read the metrics")
        return endpoint

    def _watch(self) -> None:
        """The metrics are those of the running node."""
        if self._metrics is None:
            return
        from pyspark_dledger.raft.node.metrics.watched_node import WatchedNode

        assert self._driver is not None
        self._metrics.node = WatchedNode(
            *(self.config, self.store, self.core, self._driver, self._connections, self._links, self._application)
        )

    async def _listen_at(self, address: Address, tls: TlsContext | None) -> None:
        try:
            self._server = await listen(
                *(self._new_inbound, address, self._log, tls, self.config.handshake_timeout_ms / 1000),
                may_use_reserve=self._connections.is_member_host,
                rejected=self._connections.rejected,
            )
        except OSError as error:
            raise DLedgerError(f"cannot listen at {address} ({error}): use another address") from None

    def _new_inbound(self) -> Inbound:
        assert self._driver is not None
        config = self.config
        return Inbound(
            *(self._driver, config.max_frame_bytes, self._connections, self._log, config.secrets()),
            is_tls=config.tls is not None,
            on_lost=self._reads.drop,
            hello=self._hello,
            on_hello=self._driver.heard,
        )

    def _new_link(self, peer_id: str, address: Address, tls: TlsContext | None) -> PeerLink:
        assert self._driver is not None
        config, driver = self.config, self._driver
        hello = MetadataRequest(group=config.group, remote_id=peer_id, local_id=config.self_id)
        return PeerLink(
            *(peer_id, address, hello, tls, config.max_frame_bytes),
            *(driver.handle_response, driver.peer_connected, config.secrets().of_links, self._hello),
            own_host=own_source(self._members[config.self_id]),
            on_rejected=driver.rejected,
        )

    def _take_members(self) -> None:
        """Connect to the members, and to no others."""
        addresses = self.core.members.known_addresses
        found = {peer_id: parse_address(text, f"member {peer_id}") for peer_id, text in addresses.items()}
        self._connections.set_members(found, is_present=self.core.knows_members)
        for problem in self._address_problems():
            self._log(logging.WARNING, "problem", found=problem)
        for peer_id, link in list(self._links.items()):
            if peer_id not in found or found[peer_id] != link.address:
                del self._links[peer_id]
                stopping = asyncio.get_running_loop().create_task(link.stop())
                self._stopping.add(stopping)
                stopping.add_done_callback(self._stopping.discard)
        for peer_id, address in found.items():
            if peer_id != self.config.self_id and peer_id not in self._links:
                self._links[peer_id] = self._new_link(peer_id, address, self._tls)
                self._links[peer_id].start()

    def _connection_problems(self) -> list[str]:
        """Why members do not accept this one, or this one them, or do not find it. A removed member has one reason."""
        if self.core.is_removed:
            return []
        found = [f"{peer_id}: {link.mismatch}" for peer_id, link in self._links.items() if link.mismatch is not None]
        return [*self._address_problems(), *found]

    def _address_problems(self) -> list[str]:
        """That the group has another address of this member than it was started with."""
        config, members = self.config, self.core.members
        listed = members.current.addresses.get(config.self_id, "")
        if config.common_peers or not (listed and members.is_by_log):
            return []
        own, known = self._members[config.self_id], parse_address(listed, "member")
        # A name and a network address can be the same host.
        is_other_host = all(map(literal_hosts, (own, known))) and literal_hosts(own).isdisjoint(literal_hosts(known))
        if own.port == known.port and not is_other_host:
            return []
        remedy = "correct peers, or remove the member and add it with its new address"
        return [f"the group has this member at {known}, and it was started with {own}: {remedy}"]

    def _hello(self) -> MemberHello:
        """What this member tells others at the begin of a connection."""
        config, store = self.config, self.store
        data_size, index_size = store.file_sizes
        return MemberHello(
            id=config.self_id,
            version=__version__,
            group=config.group,
            peers=self._compared_peers if self.core.members.is_static else "",
            cluster=store.cluster_id,
            dataFileSize=data_size,
            indexFileSize=index_size,
            controls=max(CONTROL_KINDS),
            members=self.core.members.told_by_log,
        )

    def _hosts_of(self, member_id: str) -> Collection[str]:
        """The network addresses of a member whose host is a name."""
        link = self._links.get(member_id)
        return () if link is None else link.hosts

    def _fail(self, error: Exception) -> None:
        fields = {"group": self.config.group, "id": self.config.self_id, "reason": repr(error)}
        LOG.critical("failed", exc_info=error, extra={"fields": fields})
        self._fail_local_requests()
        if not self.failed.done():
            self.failed.set_result(error)


async def _in_thread(work: Callable[[], None]) -> None:
    """Call `work` in another thread, to its end also if this task is cancelled."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _check_metrics(address: Address | None) -> None:
    """Raises OptionError if metrics are wanted without their library."""
    if address is not None and find_spec("prometheus_client") is None:
        raise OptionError("metrics: expected prometheus_client, found none: pip install 'pyspark_dledger[metrics]'")
