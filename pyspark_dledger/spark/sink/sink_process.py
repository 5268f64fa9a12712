"""The sink process: a group of one that writes a path for the tasks of a job.

``python -m pyspark_dledger.spark.sink.sink_process`` reads its settings, one line of JSON, from standard input, and
writes its port to standard output. Tasks renew a lease; while it lasts the store is open and locked. When the lease
expires the process closes the store, and opens it again for later tasks. It ends on request, and with the driver.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.common.log_records import LOG, RateLimitedLog, log_to_stderr, record
from pyspark_dledger.common.process_memory import prepare_memory_for_serving
from pyspark_dledger.errors import DLedgerError, StoreError, StoreInUseError
from pyspark_dledger.raft.loops import new_loop
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.node.listener import Listener, listen
from pyspark_dledger.raft.peers import Address, format_peers
from pyspark_dledger.raft.secret import is_same
from pyspark_dledger.spark.sink.control import MAX_LINE, SinkSettings, is_everywhere, parse_object, tls_of_files
from pyspark_dledger.spark.sink.driver import own_address
from pyspark_dledger.spark.sink.registry import remove_sink
from pyspark_dledger.store.mmap_file_store import MmapFileStore

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.service.message_service import MessageService

GROUP = "spark"
# Seconds between two looks at a store that another process has, and at the driver without a pidfd.
_RETRY_SECONDS, _DRIVER_SECONDS = 0.1, 1.0
# Most nodes are ready within milliseconds.
_READY_SECONDS = 0.005
# The lease is checked so many times before it expires.
_LEASE_TICKS = 20
# A free port may be taken before the node listens at it.
_MAX_PORTS = 5
_REQUEST_SECONDS = 30.0
# With more connections without a request, the oldest gives way: strangers must not take all file descriptors.
_MAX_SILENT = 64
# A write job deletes nothing: files do not expire, also on a full disk.
_KEEP_FILES = {
    "file_reserved_hours": 24 * 365 * 100,
    "enable_disk_force_clean": False,
    "disk_space_ratio_to_force_clean": 0.90,
}
# A group of one elects itself at once.
_ELECTION = {"min_vote_interval_ms": 1, "max_vote_interval_ms": 2}


class SinkProcess:
    """The store, its lease, and the control protocol (`control`), in the event loop that awaits `run`."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._tls = tls_of_files(settings.tls)
        self._log = RateLimitedLog()
        self._node: Node | None = None
        self._store_lock = asyncio.Lock()
        # Connections without a request, oldest first.
        self._silent: dict[asyncio.StreamWriter, None] = {}
        self._ended = asyncio.Event()
        self._job_has_ended = False
        self._remaining_ms = 0.0
        self._failure: str | None = None

    async def run(self) -> None:
        """Open the store, report the port, and serve until the end.

        Raises StoreError and OptionError if the store cannot be opened, and DLedgerError if the host is wrong.
        """
        loop = asyncio.get_running_loop()
        server = await self._listen()
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        watching = [asyncio.ensure_future(self._watch_driver()), asyncio.ensure_future(self._watch_lease())]
        try:
            await self._open()
            prepare_memory_for_serving()
            if _report({"port": server.sockets[0].getsockname()[1], "pid": os.getpid()}):
                await self._ended.wait()
        finally:
            for task in watching:
                task.cancel()
            server.close()
            await self._end()
            if self._settings.registry_file:
                remove_sink(Path(self._settings.registry_file), os.getpid())
            # Let the response to the last request out.
            await asyncio.sleep(0)
        await loop.shutdown_asyncgens()

    async def _listen(self) -> Listener:
        host, port, tls = self._settings.host, self._settings.port, self._tls

        def new_protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=MAX_LINE), self._serve)

        try:
            contexts = None if tls is None else tls.server_contexts()
            return await listen(new_protocol, Address(host, port), self._log, contexts)
        except OSError as error:
            raise DLedgerError(
                f"cannot listen at {host} ({error}): set the option listen to an address of this machine that tasks "
                f"can reach{', and listenPort to a free port' if port else ''}"
            ) from None

    # The store.

    async def _open(self) -> Node:
        """Start the node if there is none, and its lease again. Waits for another job as long as a lease."""
        async with self._store_lock:
            if self._job_has_ended:
                # The request is a late renewal, or of an attempt that Spark has given up.
                raise StoreError(f"{self._settings.root}: the write job has already ended")
            if self._node is not None and self._node.failed.done():
                failed = self._node.failed.result()
                await self._close()
                raise StoreError(f"{self._settings.root}: the store failed: {failed!r}")
            if self._node is None:
                self._node = await self._start_when_free()
            self._remaining_ms = self._settings.lease_ms
            return self._node

    async def _start_when_free(self) -> Node:
        root, waited_ms, ports = self._settings.root, 0.0, 0
        while True:
            try:
                return await self._start_node()
            except StoreInUseError as error:
                if waited_ms >= self._settings.lease_ms:
                    raise StoreInUseError(
                        f"{error} (waited {waited_ms / 1000:.1f} s for it{self._last_owner()}; a write job releases "
                        "the store when it ends, or when its lease expires)"
                    ) from None
            except DLedgerError as error:
                ports += 1
                # Of a node's errors only the one about its port is a plain DLedgerError.
                if type(error) is not DLedgerError or ports >= _MAX_PORTS or self._settings.port:
                    raise
            except OSError as error:
                raise StoreError(f"{root}: cannot write a log in this folder ({error}): check permissions") from None
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _RETRY_SECONDS)
                raise StoreError(f"{root}: the job ended while it waited for the store")
            waited_ms += 1000 * _RETRY_SECONDS

    async def _start_node(self) -> Node:
        settings = self._settings
        port = settings.port + 1 if settings.port else _free_port(settings.host)
        address = Address(own_address() if is_everywhere(settings.host) else settings.host, port)
        service = self._new_service(address)
        try:
            node = Node(self._node_config(address, service), application=service)
            await node.start()
        except BaseException:
            if service is not None:
                service.close()
            raise
        if service is not None and service.needs_summary:
            await node.stop()
            raise StoreError(
                f"{settings.root}: the queue offsets and identities of expired messages are missing: restore the whole "
                "store, or accept the loss once with 'dledger serve --messages --accept-lost-state'"
            )
        # Dispatching a large old CommitLog takes longer than a task waits.
        while service is not None and not (service.is_ready or node.failed.done() or self._ended.is_set()):
            await asyncio.sleep(_READY_SECONDS)
        return node

    def _new_service(self, address: Address) -> MessageService | None:
        """Return what makes messages of puts; it owns the root, as a broker does. None for raw entries."""
        settings = self._settings
        if not settings.is_message:
            return None
        # This import takes half as long as all others.
        from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings, host_bytes

        serving = MessageSettings(producer_id_expiry_ms=settings.producer_id_expiry_ms)
        host = host_bytes(address.host, address.port)
        return MessageService.open(Path(settings.root), settings.self_id, store_host=host, settings=serving)

    def _node_config(self, address: Address, service: MessageService | None) -> NodeConfig:
        settings = self._settings
        return NodeConfig(
            group=GROUP,
            self_id=settings.self_id,
            peers=format_peers({settings.self_id: address}),
            store=Path(settings.root),
            flush="sync" if settings.flush == "sync" else "async",
            listen=str(Address(settings.host, address.port)),
            tls=self._tls,
            secret=settings.secret,
            store_options={
                "data_file_size": settings.data_file_size,
                "index_file_size": settings.index_file_size,
                **_KEEP_FILES,
                **(service.store_options if service is not None else {}),
            },
            core_options=_ELECTION,
        )

    def _last_owner(self) -> str:
        """Name the process that opened the node's store last, from its lock file."""
        file = Path(self._settings.root) / f"dledger-{self._settings.self_id}" / "lock"
        with suppress(OSError):
            return f"; process {file.read_text().strip()} opened it last"
        return ""

    async def _close(self) -> None:
        """Flush, write the checkpoint, release the lock. A failure is reported by the next flush or end."""
        node, self._node = self._node, None
        if node is None:
            return
        failure = node.store.failure
        try:
            await node.stop()
        except Exception as error:  # noqa: BLE001  # the store is closed, and may be opened again
            failure = failure or str(error)
        if failure is not None:
            record(logging.ERROR, "failed", reason=failure)
            self._failure = (
                f"{self._settings.root}: acknowledged entries may not be on disk ({failure}): read the log back"
            )

    def _check_durable(self) -> None:
        """Raises StoreError if acknowledged entries may be lost; with ``flush=sync`` they are on disk."""
        if self._failure is not None and self._settings.flush != "sync":
            raise StoreError(self._failure)

    # The control protocol.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. A client that closes early gets no response, but its request is done."""
        operation: object = None
        self._silent[writer] = None
        if len(self._silent) > _MAX_SILENT:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.transport.abort()
        try:
            request = parse_object(await asyncio.wait_for(reader.readline(), _REQUEST_SECONDS))
            self._silent.pop(writer, None)
            if is_same(str(request.get("secret")), self._settings.secret):
                operation = request.get("operation")
                response = await self._respond(operation)
            else:
                self._log(logging.WARNING, "refused", found="a request without the job's secret")
                response = {"error": "wrong secret: only tasks of the job may connect"}
            # By the pid the client knows that no other process has the port.
            writer.write(json.dumps({**response, "pid": os.getpid()}).encode() + b"\n")
            await writer.drain()
        except (asyncio.TimeoutError, OSError, ValueError):
            pass
        finally:
            self._silent.pop(writer, None)
            writer.close()
        if operation == "end":
            with suppress(OSError):
                await writer.wait_closed()
            self._ended.set()

    async def _respond(self, operation: object) -> dict[str, Any]:
        try:
            match operation:
                case "open":
                    return {"group": GROUP, "peers": (await self._open()).config.peers}
                case "flush":
                    await self._flush()
                case "end":
                    await self._end()
                    self._check_durable()
                case _:
                    return {"error": f"expected operation open, flush or end, found {operation!r}"}
        except DLedgerError as error:
            return {"error": str(error)}
        return {}

    async def _flush(self) -> None:
        """Make acknowledged entries durable, and their committed index visible to readers of the files.

        A closed store has done both.
        """
        async with self._store_lock:
            if self._node is not None:
                self._remaining_ms = self._settings.lease_ms
                await asyncio.get_running_loop().run_in_executor(None, _make_durable, self._node)
            self._check_durable()

    async def _end(self) -> None:
        async with self._store_lock:
            self._job_has_ended = True
            await self._close()

    # What ends the lease, and the process.

    async def _watch_lease(self) -> None:
        """Close the store when the lease expires.

        Time counts while this process runs: it keeps its lease while it is stopped, or the machine sleeps.
        """
        tick_ms = self._settings.lease_ms / _LEASE_TICKS
        while True:
            await asyncio.sleep(tick_ms / 1000)
            self._remaining_ms -= tick_ms
            if self._remaining_ms <= 0 and self._node is not None and not self._store_lock.locked():
                async with self._store_lock:
                    # The lease may have been renewed meanwhile.
                    if self._remaining_ms <= 0:
                        await self._close()

    async def _watch_driver(self) -> None:
        await _wait_for_end(self._settings.driver)
        record(logging.WARNING, "ends", reason=f"the driver, process {self._settings.driver}, is gone")
        self._ended.set()


def _make_durable(node: Node) -> None:
    store = node.store
    store.flush()
    assert isinstance(store, MmapFileStore)
    store.write_checkpoint()


async def _wait_for_end(pid: int) -> None:
    """Wait until a process that is no child has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        await _poll_until_end(pid)
        return
    has_ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, has_ended.set)
    try:
        await has_ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _poll_until_end(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            # It runs as another user.
            pass
        await asyncio.sleep(_DRIVER_SECONDS)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _report(outcome: dict[str, Any]) -> bool:
    """Write a line to standard output, and close it. Return False if nobody reads it."""
    is_read = True
    try:
        os.write(sys.stdout.fileno(), json.dumps(outcome).encode() + b"\n")
    except OSError:
        is_read = False
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout):
        os.dup2(nothing, stream.fileno())
    os.close(nothing)
    return is_read


def main() -> int:
    """Run the process. The exit code is 0 after a request to end, 2 if it could not start."""
    settings = SinkSettings(**json.loads(sys.stdin.readline()))
    settings = settings._replace(tls=tuple(settings.tls))
    log_to_stderr("text", sink=settings.root)
    logging.getLogger("pyspark_dledger").setLevel(logging.WARNING)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(SinkProcess(settings).run())
    except (DLedgerError, OSError) as error:
        _report({"error": str(error), "kind": type(error).__name__})
        return 2
    except Exception as error:  # noqa: BLE001  # the starting process reports it
        LOG.critical("failed", exc_info=error)
        _report({"error": f"the sink process could not open the store: {error!r}"})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
