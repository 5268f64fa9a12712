"""How data loss is reported."""

from __future__ import annotations

import logging

from pyspark_dledger.errors import DataLossError

_LOG = logging.getLogger(__name__)


OF_STREAMS = "restore the log, start a new checkpointLocation"


def report_loss(problem: str, resumed: str, fail: bool, remedy: str = OF_STREAMS) -> None:
    """Report that data before an offset was lost: raise DataLossError if `fail`, else log a warning.

    `problem` has the log, expected and found; `resumed` says where reading continues and what is skipped.
    """
    if fail:
        raise DataLossError(f"{problem}: {remedy}, or set failOnDataLoss=false, and then {resumed}")
    _LOG.warning("%s (failOnDataLoss=false): %s", problem, resumed)
