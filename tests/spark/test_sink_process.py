"""The sink process: its lease, its lock, its secret, and what ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_dledger.common.log_records import RateLimitedLog
from pyspark_dledger.errors import DLedgerError, GroupError, StoreError
from pyspark_dledger.format.encode.encoded import PutSettings
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import connect
from pyspark_dledger.rocketmq.service.message_service import MessageService
from pyspark_dledger.spark.sink.control import SinkAddress, SinkGoneError, open_store, renewed_lease, send_request
from pyspark_dledger.spark.sink.driver import TaskSession
from pyspark_dledger.spark.sink.launch import start
from pyspark_dledger.spark.sink.sink_process import SinkProcess
from pyspark_dledger.spark.sink.targets import PathTarget
from tests.support import golden
from tests.support.certificates import make_tls
from tests.support.groups import eventually, free_ports
from tests.support.sinks import (
    SECRET,
    Sinks,
    bodies,
    client_of,
    end,
    is_free,
    is_gone,
    is_running,
    kill,
    settings_of,
    sinks,
)

__all__ = ["sinks"]

LEASE = 300


def test_job_ends_with_all_on_disk_and_the_next_job_continues_the_log(sinks: Sinks) -> None:
    written: list[bytes] = []
    for part in ([b"one", b"two"], [b"three"]):
        sink = sinks.start()
        with client_of(sink) as client:
            client.append_batch(part)
        end(sink)
        written += part
        assert bodies(sinks.root) == written
        assert is_free(sinks.root)


def test_messages_continue_the_old_commitlog_of_a_broker(tmp_path: Path) -> None:
    root = golden.unpack("mq-plain", tmp_path)
    sinks = Sinks(root)
    try:
        sink = sinks.start(is_message=True)
        with client_of(sink) as client:
            counts = client.topics(["OrderTopic"])
            rows = pa.RecordBatch.from_arrays([pa.array(["OrderTopic"]), pa.array([b"new"])], names=["topic", "body"])
            settings = PutSettings(bytes(8), 0, bytes(8), counts.store_host, counts.queue_counts)
            engine = get_engine()
            put = client.put_messages(engine.encode_messages(rows, settings, engine.new_ordinals()))
        end(sink)
    finally:
        sinks.close()
    columns = ["source", "queueId", "queueOffset", "problem", "committed", "body"]
    found = [row for batch in open_log(root).scan(columns, topic="OrderTopic") for row in batch.to_pylist()]
    *old, new = found
    before = [row["queueOffset"] for row in old if row["queueId"] == new["queueId"]]
    assert {row["source"] for row in old} == {"commitlog"}
    assert (new["source"], new["problem"], new["committed"], new["body"]) == ("dledger", None, True, b"new")
    assert new["queueOffset"] == next(iter(put)).queue_offset == max(before) + 1


def test_store_opens_when_the_old_commitlog_is_dispatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large old CommitLog takes longer than a task waits."""
    dispatched = threading.Event()
    monkeypatch.setattr(MessageService, "is_ready", property(lambda _: dispatched.is_set()))
    sink = SinkProcess(settings_of(tmp_path, is_message=True))

    async def opened() -> None:
        opening = asyncio.ensure_future(sink._open())
        await asyncio.sleep(0.3)
        assert not opening.done()
        dispatched.set()
        await opening
        await sink._close()

    asyncio.run(opened())


def test_store_without_the_state_of_expired_messages_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageService, "needs_summary", property(lambda _: True))
    with pytest.raises(StoreError, match="accept the loss once"):
        asyncio.run(SinkProcess(settings_of(tmp_path, is_message=True))._open())
    assert is_free(tmp_path)


def test_waiting_for_a_large_commitlog_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageService, "is_ready", property(lambda _: False))
    sink = SinkProcess(settings_of(tmp_path, is_message=True))

    async def ended() -> None:
        opening = asyncio.ensure_future(sink._open())
        await asyncio.sleep(0.1)
        sink._ended.set()
        await asyncio.wait_for(opening, 10)
        await sink._close()

    asyncio.run(ended())


# The lease


def test_store_is_released_without_a_task_and_opened_for_the_next(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=LEASE)
    with client_of(sink) as client:
        client.append(b"before")
    assert eventually(lambda: is_free(sinks.root))
    assert is_running(sink.pid)
    with client_of(sink) as client:
        client.append(b"after")
    end(sink)
    assert bodies(sinks.root) == [b"before", b"after"]


@pytest.mark.slow
def test_waiting_task_keeps_the_store_open(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=1000)
    opened = open_store(sink)
    with renewed_lease(sink), connect(opened.group, opened.peers, secret=sink.secret, max_retries=0) as client:
        client.append(b"before")
        time.sleep(2)
        assert not is_free(sinks.root)
        client.append(b"after")
    end(sink)
    assert bodies(sinks.root) == [b"before", b"after"]


@pytest.mark.slow
def test_stopped_process_keeps_its_lease(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=1000)
    opened = open_store(sink)
    os.kill(sink.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(sink.pid, signal.SIGCONT)
    assert open_store(sink) == opened


def test_lease_renewed_while_it_expires_continues(tmp_path: Path) -> None:
    sink = SinkProcess(settings_of(tmp_path, lease_ms=LEASE))

    async def renewed() -> bool:
        node = sink._node = FakeNode()
        sink._store_lock.locked = lambda: False  # type: ignore[method-assign]  # as between two owners
        watching = asyncio.ensure_future(sink._watch_lease())
        async with sink._store_lock:
            while sink._remaining_ms > 0:
                await asyncio.sleep(LEASE / 10_000)
            sink._remaining_ms = 1000 * LEASE
        await asyncio.sleep(LEASE / 1000)
        watching.cancel()
        return not node.is_stopped

    assert asyncio.run(renewed())


class FakeNode:
    """A node; `failure` is that of its store."""

    def __init__(self, failure: str | None = None) -> None:
        self.store: Any = SimpleNamespace(failure=failure)
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


# Requests


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkAddress]:
    """A process without writes."""
    found = Sinks(tmp_path_factory.mktemp("idle") / "log")
    yield found.start()
    found.close()
    assert bodies(found.root) == []


def test_request_with_a_wrong_secret_is_rejected(idle: SinkAddress) -> None:
    with pytest.raises(StoreError, match="wrong secret: only tasks of the job may connect"):
        send_request(idle._replace(secret="wrong"), "end")
    opened = open_store(idle)
    for secret in (None, "wrong"):
        with connect(opened.group, opened.peers, secret=secret, max_retries=0) as client, pytest.raises(GroupError):
            client.append(b"intruder")


def test_wrong_requests_fill_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = SinkProcess(settings_of(tmp_path))
    sink._log = RateLimitedLog(lambda: 0)

    async def ask() -> None:
        server = await asyncio.start_server(sink._serve, "127.0.0.1", 0)
        for _ in range(100):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b'{"secret": "wrong"}\n')
            assert b"wrong secret" in await reader.read()
            writer.close()
        server.close()

    asyncio.run(ask())
    assert [record.getMessage() for record in caplog.records] == ["refused"]


def test_invalid_requests_do_no_harm(idle: SinkAddress) -> None:
    for line in (b"\n", b"[]\n", b'{"secret": 5}\n', b"\xff\n", b"x" * 100_000 + b"\n", b""):
        with socket.create_connection((idle.host, idle.port), 10) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            response = b"".join(iter(lambda: connection.recv(4096), b""))
        assert not response or "secret" in json.loads(response)["error"]
    assert open_store(idle)


def test_secret_is_in_no_command_line_and_no_environment(idle: SinkAddress) -> None:
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{idle.pid}/{name}").read_bytes()
    assert SECRET not in repr(idle)


# What ends it


def test_process_ends_with_the_driver(sinks: Sinks) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    sink = sinks.start(driver=process.pid)
    with client_of(sink) as client:
        client.append(b"kept")
    process.kill()
    process.wait()
    assert eventually(lambda: not is_running(sink.pid))
    assert bodies(sinks.root) == [b"kept"]


@pytest.mark.slow
def test_process_does_not_wait_for_a_store_without_the_driver(sinks: Sinks) -> None:
    first = sinks.start()
    process = subprocess.Popen(["sleep", "1"])
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    began = time.monotonic()
    with pytest.raises(StoreError, match="the job ended while it waited for the store"):
        sinks.start(driver=process.pid, lease_ms=600_000)
    assert time.monotonic() - began < 60
    reaper.join()
    end(first)


def test_process_ends_when_nobody_reads_its_port(sinks: Sinks) -> None:
    """The process that started it was killed, and cannot end it."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark_dledger.spark.sink.sink_process"], stdin=subprocess.PIPE, stdout=write
    )
    os.close(write)
    process.communicate(json.dumps(settings_of(sinks.root)._asdict()).encode() + b"\n", 60)
    assert process.returncode == 0
    assert is_free(sinks.root)


def test_late_renewal_does_not_open_the_store(tmp_path: Path) -> None:
    sink = SinkProcess(settings_of(tmp_path / "log"))

    async def opened_after_the_end() -> None:
        await sink._end()
        await sink._open()

    with pytest.raises(StoreError, match="the write job has already ended"):
        asyncio.run(opened_after_the_end())
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_disk_that_failed_after_the_last_append_is_reported_at_the_end(tmp_path: Path, flush: str) -> None:
    """Also if the store was closed meanwhile. With ``sync`` acknowledged entries were on disk before."""
    sink = SinkProcess(settings_of(tmp_path, flush=flush))

    async def responses() -> list[dict[str, Any]]:
        sink._node = FakeNode("flushing failed (on purpose)")  # type: ignore[assignment]
        await sink._close()
        return [await sink._respond(operation) for operation in ("flush", "end", "end")]

    failure = "acknowledged entries may not be on disk (flushing failed (on purpose)): read the log back"
    error = {"error": f"{tmp_path}: {failure}"}
    assert asyncio.run(responses()) == [{} if flush == "sync" else error] * 3


def test_folder_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"/proc/no: cannot write a log in this folder \(.*\): check permissions"):
        Sinks(Path("/proc/no")).start()


def test_address_of_another_machine_is_an_error(sinks: Sinks) -> None:
    with pytest.raises(StoreError, match=r"cannot listen at 192\.0\.2\.1 \(.*\): set the option listen"):
        sinks.start(host="192.0.2.1")


def test_process_does_not_stay_without_the_driver(sinks: Sinks) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    sink = sinks.start(driver=process.pid)
    assert eventually(lambda: not is_running(sink.pid))


def test_killed_process_leaves_no_lock_and_all_acknowledged_entries(sinks: Sinks) -> None:
    sink = sinks.start()
    with client_of(sink) as client:
        client.append_batch([b"%d" % number for number in range(1000)])
        kill(sink.pid)
    assert is_gone(sink)
    with pytest.raises(SinkGoneError, match="acknowledged entries are in the log"):
        send_request(sink, "end")
    following = sinks.start()
    with client_of(following) as client:
        client.append(b"more")
    end(following)
    assert bodies(sinks.root) == [*(b"%d" % number for number in range(1000)), b"more"]


def test_sigterm_closes_the_store(sinks: Sinks) -> None:
    sink = sinks.start()
    with client_of(sink) as client:
        client.append(b"kept")
    os.kill(sink.pid, signal.SIGTERM)
    assert eventually(lambda: not is_running(sink.pid))
    assert bodies(sinks.root) == [b"kept"]


def test_commit_without_the_process_needs_flush_sync(sinks: Sinks) -> None:
    sink = sinks.start()
    kill(sink.pid)
    in_sync, later = (PathTarget("/log", sink, is_sync, 3000, 1) for is_sync in (True, False))
    in_sync.end()
    in_sync.flush({sink.pid})
    for commit in (later.end, lambda: later.flush({sink.pid})):
        with pytest.raises(DLedgerError, match="with flush=async acknowledged entries may not be on disk"):
            commit()


def test_micro_batch_that_another_process_acknowledged_may_not_be_on_disk(sinks: Sinks) -> None:
    sink = sinks.start(flush="async")
    target = PathTarget("/log", sink, False, 3000, 1)
    target.flush({sink.pid})
    with pytest.raises(DLedgerError, match=r"sink processes \[1\] acknowledged entries and have ended; with"):
        target.flush({sink.pid, 1})


# Where it listens

LOCAL, CLUSTER = TaskSession("local[2]", "driver-1"), TaskSession("spark://h:7077", "127.0.0.1")


def test_task_of_another_machine_needs_the_option_listen() -> None:
    sink = SinkAddress("127.0.0.1", 1, 2, SECRET, 1000, machine="driver-1")
    target = PathTarget("/log", sink, True, 3000, 1)
    told = f"/log is a folder of the driver's machine driver-1, .* runs on {socket.gethostname()}: set option listen "
    with pytest.raises(
        DLedgerError, match=f"{told}to an address of the driver, such as 127.0.0.1, or write to a group"
    ):
        target.connect(CLUSTER).__enter__()
    for other, session in ((sink, LOCAL), (sink._replace(machine=socket.gethostname()), CLUSTER)):
        with pytest.raises(SinkGoneError):
            PathTarget("/log", other, True, 3000, 1).connect(session).__enter__()


@pytest.mark.slow
def test_tasks_reach_a_process_that_listens_everywhere(sinks: Sinks) -> None:
    sink = sinks.start(host="0.0.0.0", is_message=True)
    target = PathTarget("/log", sink, True, 3000, 1)
    for session in (LOCAL, CLUSTER):
        with target.connect(session) as client:
            assert client.topics(["T"]).queue_counts == {"T": 4}
    target.end()


@pytest.mark.slow
def test_process_listens_at_the_given_port_and_the_next(sinks: Sinks) -> None:
    port = free_ports(2)[0]
    sink = sinks.start(port=port)
    assert sink.port == port and open_store(sink).peers == f"n0-127.0.0.1:{port + 1}"
    with pytest.raises(DLedgerError, match=f"cannot listen at .*{port}.*, and listenPort to a free port"):
        start(settings_of(sinks.root.with_name("other"), port=port))
    end(sink)


@pytest.mark.slow
def test_tasks_and_process_need_certificates_of_one_authority(sinks: Sinks, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files, others = (tuple(map(str, astuple(make_tls(folder)))) for folder in (tmp_path, tmp_path / "other"))
    sink = sinks.start(tls=files)
    with client_of(sink) as client:
        client.append(b"x")
    opened = open_store(sink)
    with connect(opened.group, opened.peers, secret=sink.secret, timeout_ms=300) as client, pytest.raises(GroupError):
        client.append(b"unencrypted")
    with pytest.raises(DLedgerError, match="no TLS connection with the sink process"):
        open_store(sink._replace(tls=others))
    with pytest.raises(DLedgerError, match="has ended"):
        open_store(sink._replace(tls=()))
    end(sink)
    assert bodies(sinks.root) == [b"x"]


# Two jobs on one path


def test_second_job_fails_when_the_first_does_not_end(sinks: Sinks) -> None:
    first = sinks.start()
    with pytest.raises(StoreError, match=rf"the store is in use by process {first.pid}: .*waited \d\.\d s for it"):
        sinks.start(lease_ms=LEASE)
    with client_of(first) as client:
        client.append(b"undisturbed")
    end(first)
    assert bodies(sinks.root) == [b"undisturbed"]


@pytest.mark.slow
def test_second_job_waits_for_the_first(sinks: Sinks) -> None:
    first = sinks.start()
    waiting = threading.Timer(1.5, send_request, (first, "end"))
    began = time.monotonic()
    waiting.start()
    second = sinks.start(lease_ms=20_000)
    assert time.monotonic() - began > 1.4
    waiting.join()
    assert eventually(lambda: not is_running(first.pid))
    end(second)


@pytest.mark.slow
def test_job_whose_lease_expired_waits_for_the_next_owner(sinks: Sinks) -> None:
    first = sinks.start(lease_ms=LEASE)
    assert eventually(lambda: is_free(sinks.root))
    second = sinks.start()
    with pytest.raises(StoreError, match=rf"the store is in use by process {second.pid}"):
        open_store(first)
    end(second)
    assert open_store(first)


def test_silent_strangers_keep_no_task_from_the_job(sinks: Sinks) -> None:
    sink = sinks.start()
    strangers = [socket.create_connection(("127.0.0.1", sink.port), 5) for _ in range(200)]
    try:
        assert send_request(sink, "open")["group"]
        # The oldest gave way.
        assert strangers[0].recv(1) == b""
    except ConnectionResetError:
        pass
    finally:
        for each in strangers:
            each.close()
    end(sink)
