"""Starting sink processes: streams find theirs again, and what a worker knows of its driver."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.spark.sink import driver, launch, registry
from pyspark_dledger.spark.sink.control import SinkAddress
from pyspark_dledger.spark.sink.write_options import WriteOptions
from tests.support.sinks import SECRET, Sinks, end, kill, sinks

__all__ = ["sinks"]


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.tempfile, "gettempdir", lambda: str(tmp_path))


# The registry


def options_of(root: Path) -> WriteOptions:
    return WriteOptions(path=str(root), data_file_size=1 << 20, index_file_size=32 * 1024)


def test_process_of_a_stream_is_found_again_and_replaced_when_it_is_gone(sinks: Sinks, tmp_path: Path) -> None:
    first = launch.stream_sink(options_of(sinks.root), False)
    assert launch.stream_sink(options_of(sinks.root), False) == first
    (folder,) = tmp_path.glob("pyspark-dledger-*")
    assert [file.stat().st_mode & 0o777 for file in (folder, *folder.iterdir())] == [0o700, 0o600, 0o600]
    kill(first.pid)
    second = launch.stream_sink(options_of(sinks.root), False)
    assert second.pid != first.pid
    end(second)
    assert list(folder.iterdir()) == []


def test_stream_with_another_address_gets_another_process(sinks: Sinks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "is_alive", lambda _: True)
    monkeypatch.setattr(launch, "start", lambda settings: SinkAddress(settings.host, 1, 2, SECRET, settings.lease_ms))
    for host in ("127.0.0.1", "10.1.2.3"):
        options = dataclasses.replace(options_of(sinks.root), listen=host)
        assert launch.stream_sink(options, False) == launch.stream_sink(options, False)
        assert launch.stream_sink(options, False).host == host


def test_port_of_another_program_is_no_sink_process(sinks: Sinks) -> None:
    sink = sinks.start()
    assert not launch.is_alive(sink._replace(secret="another job's"))
    for response in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{}\n", b'{"pid": 1}\n'):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=respond_once, args=(server, response))
            thread.start()
            assert not launch.is_alive(sink._replace(port=server.getsockname()[1]))
            thread.join()
    assert launch.is_alive(sink)


def respond_once(server: socket.socket, response: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(response)


def test_files_of_a_later_process_stay(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    later = SinkAddress("127.0.0.1", 1, 2, SECRET, 1000)
    with registry.locked(file):
        registry.write_sink(file, later)
        registry.remove_sink(file, later.pid)
        assert registry.read_sink(file) == later
    registry.remove_sink(file, later.pid + 1)
    assert registry.read_sink(file) == later
    registry.remove_sink(file, later.pid)
    assert list(tmp_path.iterdir()) == []


def test_lock_of_a_removed_file_is_not_taken(tmp_path: Path) -> None:
    file, entered = tmp_path / "key.json", threading.Event()

    def enter() -> None:
        with registry.locked(file):
            entered.set()

    with registry.locked(file):
        waiting = threading.Thread(target=enter)
        waiting.start()
        time.sleep(0.2)
        file.with_suffix(".lock").unlink()
        later = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        fcntl.flock(later, fcntl.LOCK_EX)
    assert not entered.wait(0.2)
    os.close(later)
    waiting.join()
    assert entered.is_set()


def test_folder_of_another_user_is_rejected(sinks: Sinks, tmp_path: Path) -> None:
    folder = tmp_path / f"pyspark-dledger-{os.getuid()}"
    (tmp_path / "own").mkdir(mode=0o700)
    for make in (lambda: folder.mkdir(mode=0o755), folder.touch, lambda: folder.symlink_to(tmp_path / "own")):
        make()
        with pytest.raises(DLedgerError, match="expected a folder that only this user can access"):
            launch.stream_sink(options_of(sinks.root), False)
        (folder.rmdir if folder.is_dir() and not folder.is_symlink() else folder.unlink)()


# The driver


def test_task_knows_master_and_driver_of_its_session() -> None:
    found = driver.session_of({"spark.master": "spark://h:7077", "spark.driver.host": "[fe80::1]"}.get)
    assert found == ("spark://h:7077", "fe80::1") and not found.is_local
    local = {"local": True, "local[2]": True, "local-cluster[2,1,1024]": False, "yarn": False, "": False}
    assert {master: driver.TaskSession(master, "").is_local for master in local} == local


def test_driver_of_a_process_without_java_is_its_parent() -> None:
    assert driver.driver_pid() == os.getppid()
