"""Python imports this at its start: Spark's workers search only what a task made for garbage after it.

PySpark's daemon has them search all loaded modules after each task, which takes longer than most tasks of the tests.
"""

from __future__ import annotations

import gc
import sys

if "pyspark.daemon" in sys.orig_argv:
    search = gc.collect

    def collect_new() -> int:
        found = search()
        gc.freeze()
        return found

    gc.collect = collect_new  # type: ignore[assignment]
