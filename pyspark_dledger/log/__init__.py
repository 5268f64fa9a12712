"""A store on disk: finding files, segments, what is committed, planning and scanning."""

from pyspark_dledger.log.log import Log, open_log
from pyspark_dledger.log.state import State

__all__ = ["Log", "State", "open_log"]
