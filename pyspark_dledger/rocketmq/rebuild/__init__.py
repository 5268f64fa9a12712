"""Rebuilds ConsumeQueues and the index of keys from the log."""

from pyspark_dledger.rocketmq.rebuild.rebuild_job import CompareReport, FileSettings, RebuildReport, compare, rebuild

__all__ = ["CompareReport", "FileSettings", "RebuildReport", "compare", "rebuild"]
