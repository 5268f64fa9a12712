"""Finds control entries among the rows of a scan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.codec import control_kind

SEALED_COLUMNS = ("magic", "size", "index", "term", "pos", "channel", "chainCrc")
"""The fields of a header that tell a control entry, in their order."""


def are_controls(columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_]:
    """Which rows are control entries; `columns` has `SEALED_COLUMNS`."""
    found = np.zeros(len(columns["channel"]), np.bool_)
    for row in np.flatnonzero(columns["channel"] != 0).tolist():
        found[row] = control_kind([int(columns[name][row]) for name in SEALED_COLUMNS]) != 0
    return found
