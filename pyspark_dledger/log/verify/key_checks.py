"""Findings about IndexFile units that lead to no message."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyspark_dledger.format.distinct_numbers import are_in
from pyspark_dledger.log.io.files import raise_error
from pyspark_dledger.log.io.key_files import key_units
from pyspark_dledger.log.verify.report import Report
from pyspark_dledger.log.witness.key_offsets import message_starts


class KeyCheck:
    """Compares the messages of ``[low, high)``, in order, with the IndexFile units that point there."""

    def __init__(self, root: Path, low: int, high: int, report: Report) -> None:
        self._root = root
        self._report = report
        self._starts = message_starts(low, high, root)
        self._is_found = np.zeros(len(self._starts), bool)

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Compare messages by their positions, ascending."""
        if len(offsets) and len(self._starts):
            low, high = np.searchsorted(self._starts, [offsets[0], offsets[-1] + 1]).tolist()
            self._is_found[low:high] = are_in(self._starts[low:high], offsets)

    def finish(self, damaged: list[tuple[int, int]]) -> None:
        """Report the units without a message, except those into damaged ranges: there the log is wrong."""
        for start, end in damaged:
            low, high = np.searchsorted(self._starts, [start, end]).tolist()
            self._is_found[low:high] = True
        wrong = self._starts[~self._is_found]
        of_wrong = partial(_points_to, wrong)
        for unit in key_units(self._root, of_wrong, raise_error) if len(wrong) else ():
            self._report.add(
                "keyIndexUnit",
                unit.file,
                f"expected a message at commitLogOffset {unit.offset} of unit {unit.number}, found none",
                offset=unit.position,
                pos=unit.offset,
            )


def _points_to(offsets: npt.NDArray[np.int64], units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.isin(units["commitLogOffset"], offsets)
