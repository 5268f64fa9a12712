"""Python imports this at its start: Spark's Python processes start faster, which is most of their time in tests.

PySpark's processes import PySpark from a zip, which has no compiled modules: the installed one is the same, compiled.
Its daemon has the workers search all loaded modules for garbage after each task: they search what a task made.
"""

from __future__ import annotations

import gc
import sys

if any(argument.startswith("pyspark.") for argument in sys.orig_argv):
    sys.path[:] = [path for path in sys.path if not path.endswith(("/pyspark.zip", "-src.zip"))]

if "pyspark.daemon" in sys.orig_argv:
    search = gc.collect

    def collect_new() -> int:
        found = search()
        gc.freeze()
        return found

    gc.collect = collect_new  # type: ignore[assignment]
