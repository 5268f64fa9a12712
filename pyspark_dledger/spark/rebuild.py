"""ConsumeQueues and the index of keys built anew, by tasks of Spark or here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import OptionError
from pyspark_dledger.rocketmq.rebuild import Compared, FileSettings, Rebuilt, compare
from pyspark_dledger.rocketmq.rebuild import rebuild as rebuild_by
from pyspark_dledger.rocketmq.work_parts import map_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild(
    path: str | os.PathLike[str],
    what: str,
    spark: SparkSession | None = None,
    out: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Rebuilt | Compared:
    """Build ``consumequeue`` or ``index`` of the store at `path` anew from its log, in the place of the old one.

    The old folder is kept beside it. With `out`, an empty or absent folder, it is built there, and the store is only
    read; with `dry_run` what would change is told, and nothing written. With a session its tasks read the log: the
    store, and where it is built, have to be at the same path for every executor.

    `options` are unitsPerFile, hashSlots, indexUnits and brokerConf (docs/rebuild.md), and those of a read that choose
    a store and its committed bound. Raises OptionError for wrong ones; StoreError where a broker or a node has the
    store, where it is written meanwhile, where no committed bound is known, or the disk fails.
    """
    files, others = FileSettings.taken_from(options)
    if dry_run:
        if spark is not None or out is not None:
            raise OptionError("dry_run: expected neither spark nor out, for nothing is written: leave them out")
        return compare(path, what, files=files, options=others)
    if spark is None:
        return rebuild_by(path, what, out=out, files=files, run=map_here, options=others)
    from pyspark_dledger.spark.tasks import run_on

    return rebuild_by(path, what, out=out, files=files, run=run_on(spark), options=others)
