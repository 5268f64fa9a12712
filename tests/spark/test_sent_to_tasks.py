"""Readers and writers in a Python of an executor that lacks the package, or has another version."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.cloudpickle import dumps

import pyspark_dledger
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.spark.read.batch_reader import LogReader
from pyspark_dledger.spark.schema import log_schema


def unpickled_with(packages: Path, pickled: bytes) -> str:
    """What a Python with these packages says of a pickle."""
    load = f"import sys, pickle; sys.path.insert(0, {str(packages)!r}); print(pickle.load(sys.stdin.buffer).columns)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", load], input=pickled, capture_output=True, check=False)
    return (run.stderr or run.stdout).decode().splitlines()[-1]


def test_executor_without_the_package_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Path(pyspark.__file__).parent.parent
    for name in ("pyspark", "py4j"):
        (tmp_path / name).symlink_to(installed / name)
    reader = LogReader("/log", ReadOptions(), log_schema(False))
    expected = f"expected pyspark_dledger {pyspark_dledger.__version__}, as on the driver, found"
    found = unpickled_with(tmp_path, dumps(reader))
    assert found.startswith(f"ImportError: {sys.executable} on {socket.gethostname()}: {expected} none (No module ")
    assert found.endswith(": install it there, or send an environment with spark.archives (docs/cluster.md)")
    for name in ("numpy", "numpy.libs", "pyarrow", "crcmod"):
        (tmp_path / name).symlink_to(installed / name)
    (tmp_path / "pyspark_dledger").symlink_to(Path(pyspark_dledger.__file__).parent)
    assert unpickled_with(tmp_path, dumps(reader)) == str(reader.columns)
    monkeypatch.setattr(pyspark_dledger, "__version__", "9.9")
    assert "expected pyspark_dledger 9.9, as on the driver, found 0" in unpickled_with(tmp_path, dumps(reader))
