"""PySpark's daemon, started as a module: its workers search only what a task made for garbage after it.

The plain one searches all loaded modules after each task, which takes longer than most tasks of the tests.
"""

from __future__ import annotations

import gc

from pyspark import daemon


class _OnlyNew:
    @staticmethod
    def collect() -> None:
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    daemon.gc = _OnlyNew  # type: ignore[attr-defined]
    daemon.manager()
