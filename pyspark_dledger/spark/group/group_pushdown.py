"""The batch reader of a live group that takes filters. Needs PySpark 4.1 or later."""

from __future__ import annotations

from pyspark_dledger.spark.group.group_plan import GroupReader
from pyspark_dledger.spark.read.pushdown import FilterPushdown


class GroupPushdownReader(FilterPushdown, GroupReader):
    """See `FilterPushdown`."""
