"""The Spark data source ``rocketmq`` of pyspark_dledger: Spark looks for one data source in each ``pyspark_*`` package.

This module loads nothing until Spark asks for it: one that fails would hide all others.
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pyspark_dledger.spark.cluster.cluster_source import RocketMQDataSource
    except ImportError as error:
        # Spark asks with hasattr, which lets nothing but AttributeError pass.
        raise AttributeError(f"{__name__}.{name}: {error}") from error
    return RocketMQDataSource
