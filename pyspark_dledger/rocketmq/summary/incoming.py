"""Receives the summary of another member: into a file, and from there into this member's folders."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.common.durable import open_own, write_at
from pyspark_dledger.common.fastjson import MAX_FILE_SIZE
from pyspark_dledger.common.summary_part import SummaryPart
from pyspark_dledger.format.engine import map_whole
from pyspark_dledger.rocketmq.broker.config_files import FILES
from pyspark_dledger.rocketmq.dedup.sorted_run import SortedRun, copy_run
from pyspark_dledger.rocketmq.summary import snapshot
from pyspark_dledger.rocketmq.summary.snapshot import records_of
from pyspark_dledger.rocketmq.summary.summary_file import Summary, parse_summary

_INCOMING = "summary.incoming"
# n identities are in about 8 log2(n) runs. Each takes a file, a sync and a mapping.
_MAX_RUNS = 1000


@dataclass
class ReceivedSummary:
    """What a stream contains; the runs are in the folder of identities, durably."""

    summary: Summary
    runs: list[SortedRun] = field(default_factory=list)
    config: dict[str, bytes] = field(default_factory=dict)


class IncomingStream:
    """The parts of one snapshot, in a file of the node's folder, which is deleted at the end."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _INCOMING
        self._descriptor = -1
        self._end = self._size = 0

    @property
    def is_complete(self) -> bool:
        return self._descriptor >= 0 and self._end == self._size

    def add(self, part: SummaryPart) -> bool:
        """Write the next part; one at offset 0 begins a new snapshot. Raises OSError.

        Returns False if it does not follow the last one, or if the disk has no room for the snapshot.
        """
        if part.offset == 0:
            self.close()
            if 2 * part.size > shutil.disk_usage(self._file.parent).free:
                return False
            self._descriptor = open_own(self._file, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._size = part.size
        if self._descriptor < 0 or (part.offset, part.size) != (self._end, self._size) or part.end > part.size:
            return False
        write_at(self._descriptor, part.data, part.offset)
        self._end = part.end
        return True

    def unpack(self, identities: Path) -> ReceivedSummary:
        """Check the whole stream, and write its runs. Raises ValueError if it is damaged, OSError if the disk fails."""
        records = records_of(map_whole(str(self._file)).view)
        first = next(records)
        if first.kind != snapshot.SUMMARY:
            raise ValueError(f"expected a summary first, found a record of kind {first.kind}")
        received = ReceivedSummary(parse_summary(first.content))
        for kind, name, content in records:
            if kind == snapshot.RUN and len(received.runs) == _MAX_RUNS:
                raise ValueError(f"expected at most {_MAX_RUNS} runs of identities, found more")
            if kind == snapshot.RUN:
                received.runs.append(copy_run(identities, content))
            elif kind == snapshot.CONFIG and name in FILES and len(content) <= MAX_FILE_SIZE:
                received.config[name] = bytes(content)
        return received

    def close(self) -> None:
        """Delete the file. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._end, self._size = -1, 0, 0
        self._file.unlink(missing_ok=True)
