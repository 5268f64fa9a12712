"""A log as something else: a store for a broker without DLedger, Parquet files, JSON lines."""

from __future__ import annotations

from pyspark_dledger.rocketmq.export.export_job import export

__all__ = ["export"]
