"""The process of the embedded sink: its lease, its lock, its secret, and what ends it."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pyspark_dledger.errors import DLedgerError, GroupError, OptionError, StoreError
from pyspark_dledger.format.encode.puts import PutSettings
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log import open_log
from pyspark_dledger.raft.client import connect
from pyspark_dledger.rocketmq.service.message_service import MessageService
from pyspark_dledger.spark.sink import driver, launch, sink_files
from pyspark_dledger.spark.sink.embedded import EmbeddedSink
from pyspark_dledger.spark.sink.lease import Lease, SinkGoneError, SinkProcess, ask, open_store
from pyspark_dledger.spark.sink.sink_store import SinkStore, place_of
from pyspark_dledger.spark.sink.targets import EmbeddedTarget
from pyspark_dledger.spark.sink.write_options import WriteOptions
from pyspark_dledger.store.files.node_files import write_current_term, write_members
from tests.support import golden
from tests.support.groups import eventually
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


def test_it_serves_a_log_ends_with_everything_on_disk_and_the_next_job_goes_on(sinks: Sinks) -> None:
    written: list[bytes] = []
    for part in ([b"one", b"two"], [b"three"]):
        sink = sinks.start()
        with client_of(sink) as client:
            client.append_batch(part)
        end(sink)
        written += part
        assert bodies(sinks.root) == written
        assert is_free(sinks.root)


def test_messages_go_on_behind_a_brokers_old_commitlog(tmp_path: Path) -> None:
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


def test_a_store_is_open_when_messages_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks would give up sooner than a large old CommitLog is dispatched."""
    dispatched = threading.Event()
    monkeypatch.setattr(MessageService, "is_ready", property(lambda _: dispatched.is_set()))
    sink = EmbeddedSink(settings_of(tmp_path, is_message=True))

    async def opened() -> None:
        opening = asyncio.ensure_future(sink._open())
        await asyncio.sleep(0.3)
        assert not opening.done()
        dispatched.set()
        await opening
        await sink._close()

    asyncio.run(opened())


def test_who_waits_for_a_large_commitlog_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageService, "is_ready", property(lambda _: False))
    sink = EmbeddedSink(settings_of(tmp_path, is_message=True))

    async def ended() -> None:
        opening = asyncio.ensure_future(sink._open())
        await asyncio.sleep(0.1)
        sink._ended.set()
        await asyncio.wait_for(opening, 10)
        await sink._close()

    asyncio.run(ended())


# The lease


def test_without_a_task_the_store_is_let_go_and_opened_again_for_the_next(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=LEASE)
    with client_of(sink) as client:
        client.append(b"before")
    assert eventually(lambda: is_free(sinks.root))
    assert is_running(sink.pid)
    with client_of(sink) as client:
        client.append(b"after")
    end(sink)
    assert bodies(sinks.root) == [b"before", b"after"]


def test_a_task_that_waits_keeps_the_store_open(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=LEASE)
    opened = open_store(sink)
    with Lease(sink), connect(opened.group, opened.peers, secret=sink.secret, max_retries=0) as client:
        client.append(b"before")
        time.sleep(5 * LEASE / 1000)
        assert not is_free(sinks.root)
        client.append(b"after")
    end(sink)
    assert bodies(sinks.root) == [b"before", b"after"]


def test_a_process_that_was_stopped_for_longer_than_its_lease_has_not_lost_it(sinks: Sinks) -> None:
    sink = sinks.start(lease_ms=1000)
    opened = open_store(sink)
    os.kill(sink.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(sink.pid, signal.SIGCONT)
    assert open_store(sink) == opened


def test_a_lease_that_was_renewed_while_its_end_waited_goes_on(tmp_path: Path) -> None:
    sink = EmbeddedSink(settings_of(tmp_path, lease_ms=LEASE))

    async def renewed() -> bool:
        node = sink._node = FakeNode()
        sink._opening.locked = lambda: False  # type: ignore[method-assign]  # as between two who hold it
        watching = asyncio.ensure_future(sink._watch_lease())
        async with sink._opening:
            while sink._left_ms > 0:
                await asyncio.sleep(LEASE / 10_000)
            sink._left_ms = 1000 * LEASE
        await asyncio.sleep(LEASE / 1000)
        watching.cancel()
        return not node.is_stopped

    assert asyncio.run(renewed())


class FakeNode:
    """A node whose store failed, if it did so."""

    def __init__(self, failure: str | None = None) -> None:
        self.store: Any = SimpleNamespace(failure=failure)
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


# Who may ask


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkProcess]:
    """A process that nobody writes to."""
    found = Sinks(tmp_path_factory.mktemp("asked") / "log")
    yield found.start()
    found.close()
    assert bodies(found.root) == []


def test_who_does_not_know_the_secret_is_refused(asked: SinkProcess) -> None:
    sink = asked
    with pytest.raises(StoreError, match="expected the job's secret, found another"):
        ask(sink._replace(secret="wrong"), "end")
    opened = open_store(sink)
    for secret in (None, "wrong"):
        with connect(opened.group, opened.peers, secret=secret, max_retries=0) as client, pytest.raises(GroupError):
            client.append(b"intruder")


def test_what_is_no_request_does_no_harm(asked: SinkProcess) -> None:
    for line in (b"\n", b"[]\n", b'{"secret": 5}\n', b"\xff\n", b"x" * 100_000 + b"\n", b""):
        with socket.create_connection((asked.host, asked.port), 10) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert not answer or "secret" in json.loads(answer)["error"]
    assert open_store(asked)


def test_the_secret_is_in_no_command_line_and_no_environment(asked: SinkProcess) -> None:
    for name in ("cmdline", "environ"):
        assert SECRET.encode() not in Path(f"/proc/{asked.pid}/{name}").read_bytes()
    assert SECRET not in repr(asked)


# What ends it


def test_it_ends_with_the_driver(sinks: Sinks) -> None:
    process = subprocess.Popen(["sleep", "1000"])
    sink = sinks.start(driver=process.pid)
    with client_of(sink) as client:
        client.append(b"kept")
    process.kill()
    process.wait()
    assert eventually(lambda: not is_running(sink.pid))
    assert bodies(sinks.root) == [b"kept"]


def test_it_does_not_wait_for_a_store_without_the_driver(sinks: Sinks) -> None:
    first = sinks.start()
    process = subprocess.Popen(["sleep", "1"])
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    began = time.monotonic()
    with pytest.raises(StoreError, match="expected to wait for the store, found that the job has ended"):
        sinks.start(driver=process.pid, lease_ms=600_000)
    assert time.monotonic() - began < 60
    reaper.join()
    end(first)


def test_it_ends_when_nobody_hears_where_it_listens(sinks: Sinks) -> None:
    """Whoever started it was killed, so nobody will tell it to end."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark_dledger.spark.sink.embedded"], stdin=subprocess.PIPE, stdout=write
    )
    os.close(write)
    process.communicate(json.dumps(settings_of(sinks.root)._asdict()).encode() + b"\n", 60)
    assert process.returncode == 0
    assert is_free(sinks.root)


def test_an_end_is_the_last_of_it(tmp_path: Path) -> None:
    """A renewal that was under way does not open the store again."""
    sink = EmbeddedSink(settings_of(tmp_path / "log"))

    async def opened_after_the_end() -> None:
        await sink._closed()
        await sink._open()

    with pytest.raises(StoreError, match="expected a job that writes, found that it has ended"):
        asyncio.run(opened_after_the_end())
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_disk_that_failed_behind_the_last_append_is_told_at_the_end(tmp_path: Path, flush: str) -> None:
    """Also if the store was closed meanwhile. What ``sync`` acknowledged was on disk before."""
    sink = EmbeddedSink(settings_of(tmp_path, flush=flush))

    async def told() -> list[dict[str, Any]]:
        sink._node = FakeNode("flushing failed (on purpose)")  # type: ignore[assignment]
        await sink._close()
        asked = ("flush", "end", "end")
        return [(await sink._answered(request(operation)))[0] for operation in asked]

    error = {"error": f"{tmp_path}: expected everything on disk, found flushing failed (on purpose): read the log back"}
    assert asyncio.run(told()) == [{} if flush == "sync" else error] * 3


def request(operation: str) -> bytes:
    return json.dumps({"secret": SECRET, "operation": operation}).encode()


def test_a_place_where_no_folder_can_be_made_is_said_to_be_one() -> None:
    with pytest.raises(StoreError, match=r"/proc/no: expected a folder to write a log in, found .*: check permissions"):
        Sinks(Path("/proc/no")).start()


def test_an_address_that_is_not_of_this_machine_is_said_to_be_none(sinks: Sinks) -> None:
    with pytest.raises(StoreError, match=r"expected to listen at 192\.0\.2\.1, found .*: say with the option listen"):
        sinks.start(host="192.0.2.1")


def test_it_does_not_begin_without_the_driver(sinks: Sinks) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    sink = sinks.start(driver=process.pid)
    assert eventually(lambda: not is_running(sink.pid))


def test_a_killed_process_leaves_no_lock_and_everything_that_it_acknowledged(sinks: Sinks) -> None:
    sink = sinks.start()
    with client_of(sink) as client:
        client.append_batch([b"%d" % number for number in range(1000)])
        kill(sink.pid)
    assert is_gone(sink)
    with pytest.raises(SinkGoneError, match="what it acknowledged is in the log"):
        ask(sink, "end")
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


def test_a_commit_without_the_process_is_one_only_if_all_is_on_disk(sinks: Sinks) -> None:
    sink = sinks.start()
    kill(sink.pid)
    in_sync, later = (EmbeddedTarget("/log", sink, is_sync, 3000, 1) for is_sync in (True, False))
    in_sync.ended()
    in_sync.made_durable({sink.pid})
    for commit in (later.ended, lambda: later.made_durable({sink.pid})):
        with pytest.raises(DLedgerError, match="with flush=async it may not be on disk yet"):
            commit()


def test_a_micro_batch_that_another_process_acknowledged_is_not_known_to_be_on_disk(sinks: Sinks) -> None:
    sink = sinks.start(flush="async")
    target = EmbeddedTarget("/log", sink, False, 3000, 1)
    target.made_durable({sink.pid})
    with pytest.raises(DLedgerError, match=rf"in process {sink.pid}, found that .*1.* acknowledged entries; with"):
        target.made_durable({sink.pid, 1})


def test_executors_that_do_not_reach_a_loopback_address_are_told_what_to_say() -> None:
    """Nobody listens there."""
    target = EmbeddedTarget("/log", SinkProcess("127.0.0.1", 1, 2, SECRET, 1000), True, 3000, 1)
    with pytest.raises(DLedgerError, match="say with the option listen at which address"), target.connected("yarn"):
        pass
    with pytest.raises(SinkGoneError), target.connected("local[2]"):
        pass


# Two jobs on one path


def test_a_second_job_fails_clearly_when_the_first_does_not_end(sinks: Sinks) -> None:
    first = sinks.start()
    with pytest.raises(StoreError, match=rf"the store is in use by process {first.pid}: .*waited 0\.\d s for it"):
        sinks.start(lease_ms=LEASE)
    with client_of(first) as client:
        client.append(b"undisturbed")
    end(first)
    assert bodies(sinks.root) == [b"undisturbed"]


def test_a_second_job_waits_for_the_first(sinks: Sinks) -> None:
    first = sinks.start()
    # It has the store as long as it is told to, so the second has to wait for it.
    waiting = threading.Timer(1.5, ask, (first, "end"))
    waiting.start()
    began = time.monotonic()
    second = sinks.start(lease_ms=20_000)
    assert time.monotonic() - began > 1.4
    waiting.join()
    assert eventually(lambda: not is_running(first.pid))
    end(second)


def test_a_job_whose_lease_ran_out_waits_for_who_has_the_store_now(sinks: Sinks) -> None:
    first = sinks.start(lease_ms=LEASE)
    assert eventually(lambda: is_free(sinks.root))
    second = sinks.start()
    with pytest.raises(StoreError, match=rf"the store is in use by process {second.pid}"):
        open_store(first)
    end(second)
    assert open_store(first)


# Finding a stream's process again


def options_of(root: Path) -> WriteOptions:
    return WriteOptions(path=str(root), data_file_size=1 << 20, index_file_size=32 * 1024)


def test_a_streams_process_is_found_again_and_replaced_when_it_is_gone(
    sinks: Sinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_files.tempfile, "gettempdir", lambda: str(tmp_path))
    first = launch.stream_sink(options_of(sinks.root), False)
    assert launch.stream_sink(options_of(sinks.root), False) == first
    (folder,) = tmp_path.glob("pyspark-dledger-*")
    assert [file.stat().st_mode & 0o777 for file in (folder, *folder.iterdir())] == [0o700, 0o600, 0o600]
    kill(first.pid)
    second = launch.stream_sink(options_of(sinks.root), False)
    assert second.pid != first.pid
    end(second)
    assert list(folder.iterdir()) == []


def test_a_stream_that_is_told_to_listen_elsewhere_gets_another_process(
    sinks: Sinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(launch, "is_alive", lambda _: True)
    monkeypatch.setattr(launch, "start", lambda settings: SinkProcess(settings.host, 1, 2, SECRET, settings.lease_ms))
    for host in ("127.0.0.1", "10.1.2.3"):
        told = dataclasses.replace(options_of(sinks.root), listen=host)
        assert launch.stream_sink(told, False) == launch.stream_sink(told, False)
        assert launch.stream_sink(told, False).host == host


def test_a_port_that_somebody_else_has_now_is_no_process_of_ours(asked: SinkProcess) -> None:
    assert not launch.is_alive(asked._replace(secret="another job's"))
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{}\n", b'{"pid": 1}\n'):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=answer_once, args=(server, answer))
            thread.start()
            assert not launch.is_alive(asked._replace(port=server.getsockname()[1]))
            thread.join()
    assert launch.is_alive(asked)


def answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


def test_the_files_of_one_that_follows_stay(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    following = SinkProcess("127.0.0.1", 1, 2, SECRET, 1000)
    with sink_files.locked(file):
        sink_files.write_sink(file, following)
        sink_files.forget_sink(file, following.pid)
        assert sink_files.read_sink(file) == following
    sink_files.forget_sink(file, following.pid + 1)
    assert sink_files.read_sink(file) == following
    sink_files.forget_sink(file, following.pid)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_taken_away_meanwhile_is_none(tmp_path: Path) -> None:
    file, entered = tmp_path / "key.json", threading.Event()

    def enter() -> None:
        with sink_files.locked(file):
            entered.set()

    with sink_files.locked(file):
        waiting = threading.Thread(target=enter)
        waiting.start()
        time.sleep(0.2)
        file.with_suffix(".lock").unlink()
        following = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(following, fcntl.LOCK_EX)
    assert not entered.wait(0.2)
    os.close(following)
    waiting.join()
    assert entered.is_set()


def test_somebody_elses_folder_is_not_trusted(sinks: Sinks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_files.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"pyspark-dledger-{os.getuid()}"
    (tmp_path / "own").mkdir(mode=0o700)
    for make in (lambda: folder.mkdir(mode=0o755), folder.touch, lambda: folder.symlink_to(tmp_path / "own")):
        make()
        with pytest.raises(DLedgerError, match="expected a folder that only this user can read"):
            launch.stream_sink(options_of(sinks.root), False)
        (folder.rmdir if folder.is_dir() and not folder.is_symlink() else folder.unlink)()


# Where it writes


def made(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_the_place_of_a_new_log_and_of_one_that_is_there(tmp_path: Path) -> None:
    assert place_of(str(tmp_path / "new"), None, False) == SinkStore(tmp_path / "new", "n0")
    assert place_of(str(tmp_path / "new"), "n7", False) == SinkStore(tmp_path / "new", "n7")
    root = made(tmp_path, "dledger-n3/data")
    assert place_of(str(root), None, False) == SinkStore(root, "n3")
    assert place_of(str(root / "dledger-n3"), None, False) == SinkStore(root, "n3")
    assert place_of(str(root / "dledger-n3"), "n3", False) == SinkStore(root, "n3")
    (tmp_path / "link").symlink_to(root / "dledger-n3")
    assert place_of(str(tmp_path / "link"), None, False) == SinkStore(root, "n3")


def test_what_a_first_write_left_that_could_not_begin_is_no_log_of_somebody_else(sinks: Sinks) -> None:
    with pytest.raises(OptionError, match="index_file_size: expected"):
        sinks.start(is_message=True, index_file_size=33)
    assert [path.name for path in sinks.root.iterdir() if path.name.startswith("dledger-")] == []
    assert any(sinks.root.iterdir())
    for is_message in (True, False):
        assert place_of(str(sinks.root), None, is_message) == SinkStore(sinks.root, "n0")


@pytest.mark.parametrize(
    ("names", "self_id", "is_message", "problem"),
    [
        (("dledger-n0", "dledger-n1"), None, True, "found n0, n1: they are members of a group; write to its group"),
        (("dledger-n0", "dledger-n1"), "n0", True, "found n0, n1: they are members of a group"),
        (("dledger-n3",), "n0", True, "expected the node n0 .selfId., found n3"),
        (("dledger-n0/snapshot",), None, True, "found a snapshot folder, which only 0.4.0 has"),
        (("photos",), None, True, "expected a store, or an empty or new folder, found photos"),
        (("commitlog",), None, False, "found commitlog/, which stands beside messages"),
        (("dledger-n0", "consumequeue"), None, False, "found consumequeue/, which stands beside messages"),
    ],
)
def test_a_place_that_is_not_for_a_group_of_one(
    tmp_path: Path, names: tuple[str, ...], self_id: str | None, is_message: bool, problem: str
) -> None:
    with pytest.raises(StoreError, match=problem):
        place_of(str(made(tmp_path, *names)), self_id, is_message)


def test_a_member_of_a_larger_group_is_known_by_its_vote(tmp_path: Path) -> None:
    node = made(tmp_path, "dledger-n0/data") / "dledger-n0"
    write_current_term(node, 3, "n0")
    assert place_of(str(tmp_path), None, False).self_id == "n0"
    write_current_term(node, 4, "n2")
    with pytest.raises(StoreError, match="found that n0 voted for n2: it is a member of a larger group"):
        place_of(str(tmp_path), None, False)


def test_a_member_of_a_larger_group_is_known_when_a_node_ran_it(tmp_path: Path) -> None:
    """The one that led voted for itself, as one of a group of one does."""
    root = made(tmp_path, "dledger-n0/data")
    write_members(root / "dledger-n0", ["n0"])
    assert place_of(str(root), None, False) == SinkStore(root, "n0")
    write_members(root / "dledger-n0", ["n0", "n1", "n2"])
    with pytest.raises(
        StoreError, match="found that n0 is a member of that of n0, n1, n2, which would be contradicted"
    ):
        place_of(str(root), None, False)


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="expected a folder to write a log in, found a file"):
        place_of(str(tmp_path / "file"), None, False)


# What a worker knows of its driver


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["java", "org.apache.spark.deploy.SparkSubmit", "--conf", "spark.master=local[2]"], "127.0.0.1"),
        (["java", "SparkSubmit"], "127.0.0.1"),
        (["java", "--master", "spark://h:7077", "--conf", "spark.driver.host=10.1.2.3"], "10.1.2.3"),
        (["java", "--master", "local-cluster[2,1,1024]", "--conf", "spark.driver.host=10.1.2.3"], "10.1.2.3"),
        (["java", "-Dspark.master=yarn", "-Dspark.driver.host=10.1.2.3", "Main"], "10.1.2.3"),
        (["java", "--master", "k8s://h", "--properties-file", "{conf}"], "10.9.9.9"),
    ],
)
def test_tasks_reach_the_sink_by_loopback_or_as_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    conf = tmp_path / "spark.properties"
    conf.write_text("# comment\nspark.driver.host=10.9.9.9\nspark.master local\n")
    given = [argument.replace("{conf}", str(conf)) for argument in arguments]
    monkeypatch.setattr(driver, "_arguments", lambda _: given)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert driver.host_for_tasks() == expected


def test_the_driver_of_a_process_without_java_is_its_parent() -> None:
    assert driver.driver_pid() == os.getppid()
