"""The process of an embedded sink: a group of one over a path, for the tasks of a job.

``python -m pyspark_dledger.spark.sink.embedded`` reads its configuration, one line of JSON, from standard input.
It says on standard output where it listens. Its store is open and locked while the lease lasts; running tasks renew it.
When the lease runs out it closes the store and waits, without it, for tasks that come later. It ends when it is told
to, and when the driver is gone. Whoever asks has to know the job's secret.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_dledger.common.log_records import LOG, log_to_stderr, record
from pyspark_dledger.common.process_memory import prepare_memory_for_serving
from pyspark_dledger.errors import DLedgerError, StoreError, StoreInUseError
from pyspark_dledger.raft.loops import new_loop
from pyspark_dledger.raft.node import Node, NodeConfig
from pyspark_dledger.raft.peers import Address, format_peers
from pyspark_dledger.spark.sink.lease import MOST_LINE
from pyspark_dledger.spark.sink.sink_files import forget_sink
from pyspark_dledger.store.mmap_file_store import MmapFileStore

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.service.message_service import MessageService

GROUP = "spark"
# Seconds between two looks: at a store that another process writes, at the driver where the system does not tell.
_RETRY_SECONDS, _DRIVER_SECONDS = 0.1, 1.0
# And at a node that is not ready yet, as most are within milliseconds.
_READY_SECONDS = 0.005
# Into so many parts a lease is divided, to notice when it has run out.
_TICKS = 20
# Ports that were free when asked for, and taken when listened at.
_MOST_PORTS = 5
_REQUEST_SECONDS = 30.0
# Nothing is deleted by a job that writes: no file expires, however old, and none for want of room.
_KEEPS = {
    "file_reserved_hours": 24 * 365 * 100,
    "enable_disk_force_clean": False,
    "disk_space_ratio_to_force_clean": 0.90,
}
# A group of one has nobody to wait for.
_AT_ONCE = {"min_vote_interval_ms": 1, "max_vote_interval_ms": 2}


class SinkSettings(NamedTuple):
    """What the process is told. Times are milliseconds, sizes bytes; ``driver`` is the process that it ends with.

    ``file`` is that by which a stream finds it (`sink_files`), removed at its end.
    """

    root: str
    self_id: str
    host: str
    secret: str
    driver: int
    lease_ms: int
    flush: str
    data_file_size: int
    index_file_size: int
    is_message: bool
    producer_id_expiry_ms: int
    file: str = ""


class EmbeddedSink:
    """Runs in the loop that `run` is awaited in."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._node: Node | None = None
        self._opening = asyncio.Lock()
        self._ended = asyncio.Event()
        self._is_over = False
        self._left_ms = 0.0
        self._failure: str | None = None

    async def run(self) -> None:
        """Say where it listens, when the store is open, and serve until it has ended.

        Raises StoreError and OptionError where the store cannot be opened, and DLedgerError where it cannot listen.
        """
        loop = asyncio.get_running_loop()
        server = await self._listening()
        loop.add_signal_handler(signal.SIGTERM, self._ended.set)
        watching = [asyncio.ensure_future(self._watch_driver()), asyncio.ensure_future(self._watch_lease())]
        try:
            await self._open()
            prepare_memory_for_serving()
            if _say({"port": server.sockets[0].getsockname()[1], "pid": os.getpid()}):
                await self._ended.wait()
        finally:
            for task in watching:
                task.cancel()
            server.close()
            async with self._opening:
                self._is_over = True
                await self._close()
            if self._settings.file:
                forget_sink(Path(self._settings.file), os.getpid())
            # The answer to who ended it is on its way.
            await asyncio.sleep(0)
        await loop.shutdown_asyncgens()

    async def _listening(self) -> asyncio.Server:
        host = self._settings.host
        try:
            return await asyncio.start_server(self._connected, host, 0, limit=MOST_LINE)
        except OSError as error:
            raise DLedgerError(
                f"expected to listen at {host}, found {error}: say with the option listen at which address of this "
                "machine tasks reach it"
            ) from None

    # The store.

    async def _open(self) -> Node:
        """The node, started where it is not; the lease begins anew. Waits for another job as long as a lease."""
        async with self._opening:
            if self._is_over:
                # A renewal that was under way when its task ended, or an attempt that Spark has given up.
                raise StoreError(f"{self._settings.root}: expected a job that writes, found that it has ended")
            if self._node is not None and self._node.failed.done():
                failed = self._node.failed.result()
                await self._close()
                raise StoreError(f"{self._settings.root}: expected a store that works, found {failed!r}")
            if self._node is None:
                self._node = await self._started()
            self._left_ms = self._settings.lease_ms
            return self._node

    async def _started(self) -> Node:
        waited_ms, ports = 0.0, 0
        while True:
            try:
                return await self._start_node()
            except StoreInUseError as error:
                if waited_ms >= self._settings.lease_ms:
                    raise StoreInUseError(
                        f"{error} (waited {waited_ms / 1000:.1f} s for it{self._holder()}; a job that writes there "
                        "lets go when it is done, or when its lease has run out)"
                    ) from None
            except DLedgerError as error:
                ports += 1
                # Of the errors of a node only the one that it cannot listen has no kind of its own.
                if type(error) is not DLedgerError or ports >= _MOST_PORTS:
                    raise
            except OSError as error:
                raise StoreError(
                    f"{self._settings.root}: expected a folder to write a log in, found {error}: check permissions"
                ) from None
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _RETRY_SECONDS)
                # Nobody is left to open it for, however long the lease.
                raise StoreError(f"{self._settings.root}: expected to wait for the store, found that the job has ended")
            waited_ms += 1000 * _RETRY_SECONDS

    async def _start_node(self) -> Node:
        settings = self._settings
        address = Address(settings.host, _free_port(settings.host))
        service = self._new_service(address)
        try:
            node = Node(self._node_config(address, service), application=service)
            await node.start()
        except BaseException:
            if service is not None:
                service.close()
            raise
        if service is not None:
            await self._until_ready(node, service)
        return node

    async def _until_ready(self, node: Node, service: MessageService) -> None:
        """No task has to wait out how long a broker's old CommitLog, which may be large, takes to be dispatched."""
        while not (service.is_ready or node.failed.done() or self._ended.is_set()):
            await asyncio.sleep(_READY_SECONDS)

    def _new_service(self, address: Address) -> MessageService | None:
        """What makes messages of puts, where messages are written; it takes the root, as a broker does."""
        settings = self._settings
        if not settings.is_message:
            return None
        # Loading it takes half as long as everything else together: raw entries need not wait for that.
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
            listen=str(address),
            secret=settings.secret,
            store_options={
                "data_file_size": settings.data_file_size,
                "index_file_size": settings.index_file_size,
                **_KEEPS,
                **(service.store_options if service is not None else {}),
            },
            core_options=_AT_ONCE,
        )

    def _holder(self) -> str:
        """Which process opened the node's store last, as its lock says."""
        file = Path(self._settings.root) / f"dledger-{self._settings.self_id}" / "lock"
        with suppress(OSError):
            return f"; process {file.read_text().strip()} opened it last"
        return ""

    async def _close(self) -> None:
        """Everything flushed, the checkpoint written, the lock let go. What failed is told by the next flush or end."""
        node, self._node = self._node, None
        if node is None:
            return
        failure = node.store.failure
        try:
            await node.stop()
        except Exception as error:  # noqa: BLE001  # whatever it is, the store is closed, and may be opened again
            failure = failure or str(error)
        if failure is not None:
            record(logging.ERROR, "failed", reason=failure)
            self._failure = f"{self._settings.root}: expected everything on disk, found {failure}: read the log back"

    def _check_durable(self) -> None:
        """Raises StoreError where acknowledged entries may be lost; with ``flush=sync`` those are on disk."""
        if self._failure is not None and self._settings.flush != "sync":
            raise StoreError(self._failure)

    # Who asks.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_end = False
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_SECONDS)
            answer, is_end = await self._answered(line)
            # By its process who asks tells it from whoever else may have its port by now.
            writer.write(json.dumps({**answer, "pid": os.getpid()}).encode() + b"\n")
            await writer.drain()
        except (asyncio.TimeoutError, OSError, ValueError):
            # Whoever sends no line, or does not wait for the answer, gets none; an end is one all the same.
            pass
        finally:
            writer.close()
        if is_end:
            with suppress(OSError):
                await writer.wait_closed()
            self._ended.set()

    async def _answered(self, line: bytes) -> tuple[dict[str, Any], bool]:
        """The answer to a request, and whether that was the last one."""
        request = _parsed(line)
        if not hmac.compare_digest(str(request.get("secret")).encode(), self._settings.secret.encode()):
            record(logging.WARNING, "refused", found="a request without the job's secret")
            return {"error": "expected the job's secret, found another: only tasks of the job may ask"}, False
        try:
            match request.get("operation"):
                case "open":
                    return self._places(await self._open()), False
                case "flush":
                    return await self._flushed(), False
                case "end":
                    return await self._closed(), True
            return {"error": f"expected open, flush or end, found {request.get('operation')!r}"}, False
        except DLedgerError as error:
            return {"error": str(error)}, request.get("operation") == "end"

    def _places(self, node: Node) -> dict[str, Any]:
        return {"group": GROUP, "peers": node.config.peers}

    async def _flushed(self) -> dict[str, Any]:
        """Everything acknowledged is durable, and readers of the files see that it is committed.

        A store that was closed meanwhile is so already.
        """
        async with self._opening:
            if self._node is not None:
                self._left_ms = self._settings.lease_ms
                await asyncio.get_running_loop().run_in_executor(None, _make_durable, self._node)
            self._check_durable()
        return {}

    async def _closed(self) -> dict[str, Any]:
        async with self._opening:
            self._is_over = True
            await self._close()
            self._check_durable()
        return {}

    # What ends it.

    async def _watch_lease(self) -> None:
        """Counts time that this process ran: one that was stopped, or slept with its machine, loses nothing by it."""
        part_ms = self._settings.lease_ms / _TICKS
        while True:
            await asyncio.sleep(part_ms / 1000)
            self._left_ms -= part_ms
            if self._left_ms <= 0 and self._node is not None and not self._opening.locked():
                async with self._opening:
                    # Whoever came before may have renewed it.
                    if self._left_ms <= 0:
                        await self._close()

    async def _watch_driver(self) -> None:
        await _ended(self._settings.driver)
        record(logging.WARNING, "ends", reason=f"the driver, process {self._settings.driver}, is gone")
        self._ended.set()


def _make_durable(node: Node) -> None:
    store = node.store
    store.flush()
    assert isinstance(store, MmapFileStore)
    store.write_checkpoint()


async def _ended(pid: int) -> None:
    """Waits until a process, which is no child, has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        await _ended_as_polled(pid)
        return
    came = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _ended_as_polled(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            # It is somebody else's, and there.
            pass
        await asyncio.sleep(_DRIVER_SECONDS)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def _say(answer: dict[str, Any]) -> bool:
    """One line to who started this process; nobody reads standard output any more behind it. Whether it was there."""
    is_heard = True
    try:
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")
    except OSError:
        is_heard = False
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdin, sys.stdout):
        os.dup2(nothing, stream.fileno())
    os.close(nothing)
    return is_heard


def main() -> int:
    """The process: exit code 0 where it was told to end, 2 where it could not begin."""
    settings = SinkSettings(**json.loads(sys.stdin.readline()))
    log_to_stderr("text", sink=settings.root)
    logging.getLogger("pyspark_dledger").setLevel(logging.WARNING)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(EmbeddedSink(settings).run())
    except (DLedgerError, OSError) as error:
        _say({"error": str(error), "kind": type(error).__name__})
        return 2
    except Exception as error:  # noqa: BLE001  # told to who waits for this process, and logged
        LOG.critical("failed", exc_info=error)
        _say({"error": f"expected to open the store, found {error!r}"})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
