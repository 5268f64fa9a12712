"""Errors without our stack frames, for Spark's users."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pyspark_dledger.errors import DLedgerError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def plain_errors(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate `method`: its DLedgerErrors lose the frames below it, which Spark would print."""

    @functools.wraps(method)
    def plain(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except DLedgerError as error:
            raise error.with_traceback(None) from None

    return plain
