"""A store on disk: finding files, segments, what is committed, planning and scanning."""

from pyspark_dledger.log.log import Log, State, open_log

__all__ = ["Log", "State", "open_log"]
