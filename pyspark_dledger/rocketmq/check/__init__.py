"""The first minute of an incident: what a store or a group is, what is lost, who may start, and what to do next."""

from __future__ import annotations

from pyspark_dledger.log.next_step import NextStep
from pyspark_dledger.rocketmq.check.check_report import CheckReport, check_stores
from pyspark_dledger.rocketmq.check.member_check import MemberCheck

__all__ = ["CheckReport", "MemberCheck", "NextStep", "check_stores"]
