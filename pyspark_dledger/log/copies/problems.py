"""Which problems of rows are damage of a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.column_values import flags_of, is_valid

Bools = npt.NDArray[np.bool_]

BORN_TIME = "^expected bornTimestamp "
TIMES = "^expected (born|store)Timestamp "
POSITION = "^expected physicalOffset "
TIMES_AND_POSITION = f"{TIMES}|{POSITION}"
"""Problems of messages that are whole. Producers set the time of birth, and followers of 0.4.0 keep the position of
their leader. A copy with a valid time is better than one without.
"""


def is_damage(problems: pa.Array, harmless: str = TIMES) -> Bools:
    """Which rows have a problem other than `harmless`, a regular expression."""
    if problems.null_count == len(problems):
        return np.zeros(len(problems), np.bool_)
    return is_valid(problems) & ~flags_of(pc.match_substring_regex(problems, harmless))
