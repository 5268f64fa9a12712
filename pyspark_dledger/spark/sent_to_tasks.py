"""Readers and writers on their way to the tasks: an executor without this package says so, and what to do."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle

_PACKAGE = __name__.partition(".")[0]


class SentToTasks:
    """A base of what Spark pickles on the driver for tasks, or for the commit."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
        return unpickled, (cloudpickle.dumps((type(self), state)), sys.modules[_PACKAGE].__version__)


def unpickled(pickled: bytes, version: str) -> Any:
    """Return the object. The function itself is pickled as code, so it runs without the package.

    Raises ImportError if this Python does not have the package in that version.
    """
    import importlib
    import pickle
    import socket
    import sys

    try:
        found, reason = importlib.import_module("pyspark_dledger").__version__, ""
    except ImportError as error:
        found, reason = "none", f" ({error})"
    if found != version:
        raise ImportError(
            f"{sys.executable} on {socket.gethostname()}: expected pyspark_dledger {version}, as on the driver, found "
            f"{found}{reason}: install it there, or send an environment with spark.archives (docs/cluster.md)"
        ) from None
    made, state = pickle.loads(pickled)  # noqa: S301  # from the driver
    new = made.__new__(made)
    new.__dict__.update(state)
    return new


cloudpickle.register_pickle_by_value(sys.modules[__name__])
