"""Both engines, and calls whose results must be the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import settings

from pyspark_dledger.format.engine import get_engine

NATIVE, PYTHON = get_engine("native"), get_engine("python")

unhurried = settings(deadline=None)  # a busy machine is not a failure


def result_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, or the kind and the text of its error."""
    try:
        return call(*arguments)
    except (ValueError, TypeError) as error:
        return type(error).__name__, str(error)
