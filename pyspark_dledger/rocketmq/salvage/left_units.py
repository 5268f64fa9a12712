"""What a task leaves of the file that it wrote: the index units of its entries, and the units of its messages.

The files of index, ConsumeQueues and keys are written from them after all tasks, so that no entry is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO, RawIOBase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.codec import record_dtype
from pyspark_dledger.format.column_values import values_of
from pyspark_dledger.format.layout import INDEX_UNIT, MAGIC_NORMAL
from pyspark_dledger.rocketmq.rebuild.dispatched_units import DispatchedUnits, read_units, save_units

IndexUnits = npt.NDArray[Any]


def index_units(batch: pa.RecordBatch) -> IndexUnits:
    """The DLedger index units of entries."""
    units = np.zeros(len(batch), record_dtype(INDEX_UNIT))
    units["magic"] = MAGIC_NORMAL
    for name in ("pos", "size", "index", "term"):
        units[name] = values_of(batch[name])
    return units


def save_left(file: RawIOBase, index: IndexUnits, units: DispatchedUnits | None) -> None:
    """Write the units of some entries; `units` is None in all calls, or in none. Raises OSError."""
    data = BytesIO()  # numpy reports a full disk without its error number
    np.save(data, index, allow_pickle=False)
    file.write(data.getbuffer())
    if units is not None:
        save_units(file, units)


def load_left(path: Path, has_units: bool) -> Iterator[tuple[IndexUnits, DispatchedUnits | None]]:
    """The arguments of each `save_left` in order."""
    with path.open("rb") as file:
        while file.peek(1):
            index = np.load(file, allow_pickle=False)
            yield index, read_units(file) if has_units else None
