"""Rebuilds ConsumeQueues and the index of keys from the log."""

from pyspark_dledger.rocketmq.rebuild.builder import (
    BuildReport,
    BuildSettings,
    build,
    build_from_units,
    notes_of_queues,
)
from pyspark_dledger.rocketmq.rebuild.index_comparison import IndexDifference
from pyspark_dledger.rocketmq.rebuild.queue_comparison import QueueDifference
from pyspark_dledger.rocketmq.rebuild.rebuild_job import CompareReport, FileSettings, RebuildReport, compare, rebuild

__all__ = [
    "BuildReport",
    "BuildSettings",
    "CompareReport",
    "FileSettings",
    "IndexDifference",
    "QueueDifference",
    "RebuildReport",
    "build",
    "build_from_units",
    "compare",
    "notes_of_queues",
    "rebuild",
]
