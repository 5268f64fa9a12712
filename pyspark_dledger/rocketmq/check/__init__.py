"""The first minute of an incident: what a store or a group is, what is lost, who may start, and what to do next."""

from __future__ import annotations

from pyspark_dledger.log.next_step import NextStep
from pyspark_dledger.rocketmq.check.check_report import CheckReport, MemberCheck, check_stores

__all__ = ["CheckReport", "MemberCheck", "NextStep", "check_stores"]
