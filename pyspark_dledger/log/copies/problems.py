"""Which problems of rows are damage of a copy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import numbers_of
from pyspark_dledger.format.facts import TIMES, ProblemCode

Bools = npt.NDArray[np.bool_]

TIMES_AND_POSITION = TIMES | {ProblemCode.MESSAGE_OFFSET}
"""Problems of messages that are whole; followers of 0.4.0 keep the position of their leader."""


def is_damage(codes: pa.Array, harmless: Iterable[ProblemCode] = TIMES) -> Bools:
    """Which rows have a problem that is not `harmless`, by the column problemCode."""
    if codes.null_count == len(codes):
        return np.zeros(len(codes), np.bool_)
    found = numbers_of(codes, 0)
    is_damaged: Bools = found != 0
    for code in harmless:
        is_damaged &= found != code
    return is_damaged
