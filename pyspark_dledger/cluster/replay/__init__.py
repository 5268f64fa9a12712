"""Sends messages of a log to a running cluster: which ones, to which queues, and a journal of what became of each."""

from __future__ import annotations

from pyspark_dledger.cluster.replay.replay_job import replay

__all__ = ["replay"]
