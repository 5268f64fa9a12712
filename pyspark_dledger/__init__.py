"""DLedger logs of Apache RocketMQ as tables: a Spark data source, a reader for plain Python, and replicated logs.

The public functions are in `pyspark_dledger.api`. This module loads nothing until a name is used: Spark imports every
top-level ``pyspark_*`` module to look for ``DefaultSource``, and one that fails hides all others.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # as in typing, which this module does not load
if TYPE_CHECKING:
    from pyspark_dledger.api import (
        backup,
        check,
        connect,
        export,
        migrate,
        open_log,
        rebuild,
        replay,
        restore,
        salvage,
        trace,
    )
    from pyspark_dledger.errors import (
        DLedgerError,
        GroupError,
        IndexRangeError,
        MalformedError,
        OptionError,
        StoreError,
        UnknownOutcomeError,
    )
    from pyspark_dledger.log import Log
    from pyspark_dledger.raft.client import Client, PartialAppendError
    from pyspark_dledger.spark.extension import enable
    from pyspark_dledger.spark.source import DefaultSource

__all__ = [
    "Client",
    "DLedgerError",
    "DefaultSource",
    "GroupError",
    "IndexRangeError",
    "Log",
    "MalformedError",
    "OptionError",
    "PartialAppendError",
    "StoreError",
    "UnknownOutcomeError",
    "__version__",
    "backup",
    "check",
    "connect",
    "enable",
    "export",
    "migrate",
    "open_log",
    "rebuild",
    "replay",
    "restore",
    "salvage",
    "trace",
]

_MODULES = {
    "Client": "raft.client",
    "DLedgerError": "errors",
    "DefaultSource": "spark.source",
    "GroupError": "errors",
    "IndexRangeError": "errors",
    "Log": "log",
    "MalformedError": "errors",
    "OptionError": "errors",
    "PartialAppendError": "raft.client",
    "StoreError": "errors",
    "UnknownOutcomeError": "errors",
    "backup": "api",
    "check": "api",
    "connect": "api",
    "enable": "spark.extension",
    "export": "api",
    "migrate": "api",
    "open_log": "api",
    "rebuild": "api",
    "replay": "api",
    "restore": "api",
    "salvage": "api",
    "trace": "api",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ImportError as error:
        if name != "DefaultSource":
            raise
        # Spark's lookup asks with hasattr, which lets nothing but AttributeError pass.
        raise AttributeError(f"{__name__}.{name}: {error}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
