"""Run Python scripts one after the other in one process with one Spark session: ``run_scripts.py SCRIPT...``.

A line ``== SCRIPT: exit N`` follows the output of each script, where N is 0 or 1.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path

from pyspark.sql import SparkSession


def main(scripts: list[str]) -> None:
    # A new session would start new Python workers, which takes longer than a script.
    SparkSession.stop = lambda _: None  # type: ignore[method-assign]
    for script in scripts:
        sys.argv = [script]
        sys.path[0] = str(Path(script).resolve().parent)
        try:
            runpy.run_path(script, run_name="__main__")
            code = 0
        except BaseException:  # noqa: BLE001 - the next script runs, too
            traceback.print_exc()
            code = 1
        sys.stdout.write(f"== {script}: exit {code}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
