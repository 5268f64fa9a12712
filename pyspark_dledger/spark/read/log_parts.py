"""Partitions of the log on their way to the tasks.

Spark pickles the partitions of a read one by one. So what they have in common is pickled once, and each has these
bytes.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_dledger.common.fields import changed, changes
from pyspark_dledger.format.spec import Fingerprint, FollowingEntry, ScanRequest
from pyspark_dledger.log.gaps import FileGap
from pyspark_dledger.log.plan import Partition

_Changes = tuple[dict[str, Any], dict[str, Any], list[tuple[Any, ...]], tuple[Any, ...] | None]
"""Values of a request and of its segment that another one does not have; its fingerprints and following entry."""


class LogPart(InputPartition):
    """A partition of the log, which is pickled as its differences from the plan's first range."""

    def __init__(self, value: Partition, model: ScanRequest, common: bytes) -> None:
        super().__init__(value)
        self._model = model
        self._common = common

    def __reduce__(self) -> tuple[Any, ...]:
        ranges = [_changes(part, self._model) for part in self.value.ranges]
        return _unpickled, (self._common, ranges, self.__dict__.get("statistics"))


def log_parts(partitions: Sequence[Partition]) -> list[InputPartition]:
    """The partitions of one plan, for Spark."""
    ranges = (part for each in partitions for part in each.ranges)
    model = next((part for part in ranges if isinstance(part, ScanRequest)), None)
    if model is None:
        return [InputPartition(each) for each in partitions]
    common = pickle.dumps(replace(partitions[0], ranges=(model,)))
    return [LogPart(each, model, common) for each in partitions]


def _changes(part: ScanRequest | FileGap, model: ScanRequest) -> FileGap | _Changes:
    if isinstance(part, FileGap):
        return part
    request, segment, after = changes(part, model), changes(part.segment, model.segment), part.segment.after
    for name, changed_values in (("segment", request), ("fingerprints", request), ("after", segment)):
        changed_values.pop(name, None)
    return request, segment, [tuple(each) for each in part.fingerprints], after and tuple(after)


def _unpickled(common: bytes, ranges: list[FileGap | _Changes], _statistics: str | None) -> InputPartition:
    """A partition as `LogPart` pickles it. The statistics are for the optimizer's extension only."""
    partition: Partition = pickle.loads(common)  # noqa: S301  # from the driver
    (model,) = partition.ranges
    return InputPartition(replace(partition, ranges=tuple(_range(part, model) for part in ranges)))


def _range(part: FileGap | _Changes, model: Any) -> ScanRequest | FileGap:
    if isinstance(part, FileGap):
        return part
    request, segment, fingerprints, after = part
    return changed(
        model,
        **request,
        segment=changed(model.segment, **segment, after=after and FollowingEntry(*after)),
        fingerprints=tuple(Fingerprint(*each) for each in fingerprints),
    )
