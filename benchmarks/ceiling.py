"""The transport's own ceiling: a Python data source whose batches lie in the worker's memory before Spark asks for them.

A worker process that is asked for the first time builds the batches of all partitions, with the package itself, and keeps
them; every such build is noted in a file beside the plan, so that a run in which one happened is not counted.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Plan:
    """What the source yields: `partitions` as `Log.plan` made them, or that many empty ones."""

    schema: StructType
    partitions: list[Any]
    empty: bool = False

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(self))
        builds_file(path).write_text("")


def builds_file(plan: Path) -> Path:
    return plan.with_suffix(".builds")


class Ceiling(DataSource):
    """Option ``plan`` is the path of a pickled `Plan`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return _read(self.options["plan"]).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(self.options["plan"])


class CeilingReader(DataSourceReader):
    def __init__(self, plan: str) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(_read(self._plan).partitions))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(_batches(self._plan, os.stat(self._plan).st_mtime_ns)[partition.value])


def _read(plan: str) -> Plan:
    loaded: Plan = pickle.loads(Path(plan).read_bytes())
    return loaded


@lru_cache(maxsize=1)  # one: the batches of a store are gigabytes
def _batches(path: str, _version: int) -> list[list[pa.RecordBatch]]:
    from pyspark_dledger.log.plan import read_partition

    plan = _read(path)
    if plan.empty:
        return [[] for _ in plan.partitions]
    with builds_file(Path(path)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return [list(read_partition(partition)) for partition in plan.partitions]
