"""A client's options, threads, callbacks and forks, and its end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError, GroupError, OptionError, UnknownOutcomeError
from pyspark_dledger.raft.client import Appended, PartialAppendError, appender
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.messages import GetRequest
from tests.support.clients import batch_of, connected
from tests.support.fake_members import SILENT, Act, FakeMember, fakes
from tests.support.groups import eventually


def test_close_waits_for_submitted_appends() -> None:
    fake = FakeMember(script=deque([Act(delay=0.3)]))
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(2000)]
    assert all(future.done() for future in futures)
    assert len({future.result().index for future in futures}) == 2000
    client.close()
    for call in (lambda: client.append(b""), lambda: client.get(0), lambda: client.append_batch([b""])):
        with pytest.raises(GroupError, match="the client is closed: call connect again"):
            call()


def test_close_fails_appends_as_unknown_or_not_sent() -> None:
    fake = FakeMember(script=deque([SILENT] * 1000))
    futures: list[Future[Appended]] = []
    with connected(fake, timeout_ms=300) as client:
        futures += [client.submit(bytes(100_000)) for _ in range(200)]
        started = time.monotonic()
    assert time.monotonic() - started < 20
    errors = [future.exception(0) for future in futures]
    kinds = [type(error) for error in errors]
    assert kinds[0] is UnknownOutcomeError and kinds[-1] is GroupError
    assert str(errors[-1]).startswith("group g: an append was not sent because the client was closed")
    sent = {body for seen in fake.appends for body in seen.bodies}
    assert sum(kind is UnknownOutcomeError for kind in kinds) >= len(sent)


def test_close_ends_calls_of_other_threads() -> None:
    fake = FakeMember(script=deque([SILENT] * 1000))
    fake.responses[GetRequest] = lambda _: None
    errors: list[type[BaseException]] = []

    def work(call: Callable[[], object]) -> None:
        with pytest.raises((GroupError, UnknownOutcomeError)) as caught:
            call()
        errors.append(caught.type)

    with connected(fake, timeout_ms=400) as client:
        calls: list[Callable[[], object]] = [lambda: client.append_batch(batch_of(30)), lambda: client.get(0)]
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: fake.appends)
    for thread in threads:
        thread.join(30)
    assert set(errors) == {GroupError, PartialAppendError}


def test_unsent_append_can_be_cancelled() -> None:
    fake = FakeMember(leader_id=None)
    with connected(fake) as client:
        futures = [client.submit(b"%d" % number) for number in range(4)]
        assert futures[1].cancel()
        fake.leader_id = "n0"
        assert [future.result(30).index for future in futures if not future.cancelled()] == [0, 1, 2]
        assert not futures[0].cancel()
    assert fake.log.bodies == [b"0", b"2", b"3"]


def test_callback_may_submit_but_not_wait() -> None:
    fake = FakeMember(leader_id=None)
    found: list[object] = []

    def called(_: Future[Appended]) -> None:
        for call in (
            lambda: client.append(b""),
            lambda: client.get(0),
            client.close,
            lambda: client.append_batch([b""]),
        ):
            with pytest.raises(DLedgerError, match="cannot be made in a callback of a future"):
                call()
        found.append(client.submit(b"second"))

    with connected(fake) as client:
        client.submit(b"first").add_done_callback(called)
        # Not before: the callback of a finished future runs in this thread.
        fake.leader_id = "n0"
        eventually(lambda: found)
    assert found[0].result(30).index == 1  # type: ignore[attr-defined]


def test_submit_blocks_while_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "_MAX_QUEUED", 10_000)
    fake = FakeMember(leader_id=None)
    with connected(fake, timeout_ms=30_000) as client:
        futures: list[Future[Appended]] = []
        thread = threading.Thread(target=lambda: futures.extend(client.submit(b"x") for _ in range(100)))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        fake.leader_id = "n0"
        thread.join(30)
        assert sorted(future.result(30).index for future in futures) == list(range(100))


def test_client_cannot_be_used_in_a_forked_child() -> None:
    fake = FakeMember()
    with connected(fake) as client:
        client.append(b"x")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                try:
                    client.append(b"of the child")
                except DLedgerError as error:
                    status = 0 if "call connect after the fork" in str(error) else 2
                client.close()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.append(b"y").index == 1


def test_failed_client_fails_all_calls(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Members) -> None:
        raise AssertionError("an error in the client")

    monkeypatch.setattr(Members, "leader", fail)
    with connected(FakeMember()) as client:
        with pytest.raises(GroupError, match="was not sent because the client failed: nothing was appended"):
            client.append(b"x")
        with pytest.raises(GroupError, match="the client failed"):
            client.append_batch([b"x"])
    assert "an error in the client" in caplog.text


def test_unreferenced_client_stops_its_thread() -> None:
    fake = FakeMember()
    with fakes(fake) as peers:
        client = dl.connect("g", peers)
        client.append(b"x")
        thread = client._thread
        del client
        gc.collect()
        thread.join(30)
        assert not thread.is_alive()


def test_process_exits_with_an_open_client() -> None:
    fake = FakeMember()
    with fakes(fake) as peers:
        code = f"import pyspark_dledger as dl; client = dl.connect('g', {peers!r}); print(client.append(b'x'))"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout, result.stderr) == (0, "Appended(index=0, pos=0, term=1)\n", "")


def test_invalid_options() -> None:
    for name, number, minimum in (("timeout_ms", 0, 1), ("max_retries", -1, 0)):
        with pytest.raises(OptionError, match=f"{name}: expected at least {minimum}, found {number}"):
            dl.connect("g", "n0-127.0.0.1:1", **{name: number})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected ID-HOST:PORT"):
        dl.connect("g", "127.0.0.1")
    for group in ("", None):
        with pytest.raises(OptionError, match="group: expected the name of a group"):
            dl.connect(group, "n0-127.0.0.1:1")  # type: ignore[arg-type]
    for peers in (None, {"n0": "127.0.0.1:1"}):
        with pytest.raises(OptionError, match="peers: expected a text such as n0-"):
            dl.connect("g", peers)  # type: ignore[arg-type]


def test_invalid_numbers() -> None:
    with connected(FakeMember()) as client:
        calls: list[tuple[str, Callable[[], object]]] = [
            ("index: .* found -1", lambda: client.get(-1)),
            ("index: .* found 'x'", lambda: client.get("x")),  # type: ignore[arg-type]
            (f"index: .* found {1 << 63}", lambda: client.get(1 << 63)),
            ("first_index: .* found -5", lambda: client.read(-5)),
            ("wait_ms: .* found -1", lambda: client.read(0, wait_ms=-1)),
            ("max_bytes: .* found 0", lambda: client.read(0, max_bytes=0)),
        ]
        for text, call in calls:
            with pytest.raises(OptionError, match=text):
                call()


def test_process_exits_silently_during_an_append() -> None:
    with fakes(FakeMember(leader_id=None)) as peers:
        code = f"import time, pyspark_dledger as dl; client = dl.connect('g', {peers!r}); client.submit(b'x'); "
        result = subprocess.run(
            [sys.executable, "-c", code + "time.sleep(0.3)"], capture_output=True, text=True, timeout=30
        )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
