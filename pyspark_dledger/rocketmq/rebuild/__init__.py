"""ConsumeQueues and the index of keys, built anew from the log."""

from pyspark_dledger.rocketmq.rebuild.builder import BuildSettings, Built, build, build_of, notes_of_queues
from pyspark_dledger.rocketmq.rebuild.differences import IndexDifference, QueueDifference
from pyspark_dledger.rocketmq.rebuild.rebuild_job import Compared, FileSettings, Rebuilt, compare, rebuild

__all__ = [
    "BuildSettings",
    "Built",
    "Compared",
    "FileSettings",
    "IndexDifference",
    "QueueDifference",
    "Rebuilt",
    "build",
    "build_of",
    "compare",
    "notes_of_queues",
    "rebuild",
]
