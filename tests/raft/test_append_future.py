"""The future of a single append behaves as every other future."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ALL_COMPLETED, CancelledError, Future, InvalidStateError, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest

from pyspark_dledger.raft.client.append_future import AppendFuture
from pyspark_dledger.raft.client.results import Appended

RESULT = Appended(1, 2, 3)


@pytest.fixture
def future() -> AppendFuture:
    return AppendFuture(threading.RLock())


def test_a_thread_that_waits_gets_the_result() -> None:
    lock, found = threading.RLock(), []
    futures = [AppendFuture(lock) for _ in range(500)]
    waiting = [threading.Thread(target=lambda each=each: found.append(each.result(10))) for each in futures]
    for thread in waiting:
        thread.start()
    for each in futures:
        assert each.set_running_or_notify_cancel()
        each.set_result(RESULT)
    for thread in waiting:
        thread.join()
    assert found == [RESULT] * len(futures)


def test_it_can_be_awaited_with_others(future: AppendFuture) -> None:
    plain: Future[Appended] = Future()
    threading.Timer(0.01, lambda: (future.set_running_or_notify_cancel(), future.set_result(RESULT))).start()
    threading.Timer(0.02, lambda: plain.set_result(RESULT)).start()
    assert wait([future, plain], 10, ALL_COMPLETED).not_done == set()
    assert {each.result() for each in as_completed([future, plain], 10)} == {RESULT}


def test_asyncio_awaits_it(future: AppendFuture) -> None:
    async def run() -> Appended:
        threading.Timer(0.01, lambda: (future.set_running_or_notify_cancel(), future.set_result(RESULT))).start()
        return await asyncio.wait_for(asyncio.wrap_future(future), 10)

    assert asyncio.run(run()) == RESULT


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_callbacks_are_called_in_their_order_also_after_the_result(future: AppendFuture, is_waited_for: bool) -> None:
    called: list[object] = []
    future.add_done_callback(lambda _: called.append(1))
    if is_waited_for:
        with pytest.raises(FutureTimeoutError):
            future.result(0)
    future.add_done_callback(lambda found: called.append(found.result()))
    future.set_running_or_notify_cancel()
    assert future.running()
    future.set_result(RESULT)
    future.add_done_callback(lambda found: called.append(found.exception()))
    assert called == [1, RESULT, None]
    assert future.done()
    with pytest.raises(InvalidStateError):
        future.set_result(RESULT)


def test_it_can_be_cancelled_until_it_runs(future: AppendFuture) -> None:
    called: list[object] = []
    future.add_done_callback(called.append)
    assert future.cancel()
    assert not future.set_running_or_notify_cancel()
    assert called == [future]
    with pytest.raises(CancelledError):
        future.result()
    running = AppendFuture(threading.RLock())
    running.set_running_or_notify_cancel()
    assert not running.cancel()


def test_it_raises_the_exception(future: AppendFuture) -> None:
    future.set_running_or_notify_cancel()
    future.set_exception(KeyError(1))
    assert isinstance(future.exception(), KeyError)
    with pytest.raises(KeyError):
        future.result()
