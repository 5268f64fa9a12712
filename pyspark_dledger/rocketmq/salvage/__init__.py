"""Writes one intact store from damaged replicas."""

from __future__ import annotations

from pyspark_dledger.rocketmq.salvage.salvage_job import SalvageReport, SalvageRequest, UndecidedError, plan, salvage

__all__ = ["SalvageReport", "SalvageRequest", "UndecidedError", "plan", "salvage"]
