"""The transport's ceiling: a Python data source whose batches are in the worker's memory before Spark reads them.

At its first call, a worker process builds the batches of all partitions with this package and keeps them. It notes that
in a file next to the plan, so that the run is not counted.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

_held: dict[tuple[str, int], list[list[pa.RecordBatch]]] = {}  # of one plan only: the batches of a store are gigabytes


@dataclass(frozen=True)
class Plan:
    """What the source yields: `partitions` of `Log.plan`, or so many empty ones."""

    schema: StructType
    partitions: list[Any]
    empty: bool = False

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(self))
        builds_file(path).write_text("")

    @staticmethod
    def read(path: Path) -> Plan:
        plan: Plan = pickle.loads(path.read_bytes())
        return plan


def builds_file(plan: Path) -> Path:
    return plan.with_suffix(".builds")


class Ceiling(DataSource):
    """Option ``plan`` is the path of a written `Plan`."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return Plan.read(Path(self.options["plan"])).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(Path(self.options["plan"]))


class CeilingReader(DataSourceReader):
    """Yields the worker's batches."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(len(Plan.read(self._plan).partitions))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan = Plan.read(self._plan)
        return iter(() if plan.empty else _batches(self._plan, plan)[partition.value])


def _batches(path: Path, plan: Plan) -> list[list[pa.RecordBatch]]:
    key = (str(path), path.stat().st_mtime_ns)
    if key not in _held:
        from pyspark_dledger.log.plan import read_partition

        _held.clear()
        with builds_file(path).open("a") as file:
            file.write(f"{os.getpid()}\n")
        _held[key] = [list(read_partition(partition)) for partition in plan.partitions]
    return _held[key]
