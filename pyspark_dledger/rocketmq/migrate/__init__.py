"""Moves a DLedger group to brokers without DLedger: master and slaves, or controller mode."""

from __future__ import annotations

from pyspark_dledger.rocketmq.migrate.migration import (
    CONTROLLER,
    MODES,
    MigrationReport,
    NewStore,
    NotSafeError,
    migrate,
)

__all__ = ["CONTROLLER", "MODES", "MigrationReport", "NewStore", "NotSafeError", "migrate"]
