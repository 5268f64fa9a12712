"""The future of a single append, which is cheap if nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import Any

from pyspark_dledger.raft.client.results import Appended


class AppendFuture(Future[Appended]):
    """A `Future` that makes its condition when something needs it: a condition costs more than the rest of an append.

    Before that, ``lock`` guards its state and callbacks, and nothing waits. Afterwards the methods of `Future` apply.
    """

    _result: Appended | None = None
    _exception: BaseException | None = None
    _waiters: Any = ()
    _done_callbacks: Any = ()
    _own_condition: threading.Condition | None = None

    def __init__(self, lock: threading.RLock) -> None:
        # Without the initial values of `Future`.
        self._lock = lock
        self._state = PENDING

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        with self._lock:
            if self._own_condition is None:
                self._waiters, self._done_callbacks = [], list(self._done_callbacks)
                self._own_condition = threading.Condition()
            return self._own_condition

    def set_running_or_notify_cancel(self) -> bool:
        with self._lock:
            if self._own_condition is None and self._state == PENDING:
                self._state = RUNNING
                return True
        return super().set_running_or_notify_cancel()

    def set_result(self, result: Appended) -> None:
        with self._lock:
            is_alone = self._own_condition is None and self._state == RUNNING
            if is_alone:
                self._result, self._state = result, FINISHED
        if not is_alone:
            super().set_result(result)
        elif self._done_callbacks:
            self._invoke_callbacks()  # type: ignore[attr-defined]

    def add_done_callback(self, fn: Callable[[Future[Appended]], object]) -> None:
        with self._lock:
            if self._own_condition is None and self._state != FINISHED:
                self._done_callbacks = (*self._done_callbacks, fn)
                return
        super().add_done_callback(fn)

    def result(self, timeout: float | None = None) -> Appended:
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self._state == FINISHED:
            return self._exception
        return super().exception(timeout)
