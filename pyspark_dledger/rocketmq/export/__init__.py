"""Exports a log: as a store for a broker without DLedger, as Parquet files, or as JSON lines."""

from __future__ import annotations

from pyspark_dledger.rocketmq.export.export_job import export

__all__ = ["export"]
