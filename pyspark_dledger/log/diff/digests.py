"""MD5 of files and byte ranges on several replicas, as RocketMQ's upgrade guide requires before DLedger is enabled.

The guide (docs/en/dledger/deploy_guide.md, 2.2) requires the same old CommitLog on all nodes; at least the last two
files must be compared. Unwritten parts of files may differ, so the written parts are also compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark_dledger.format.spec import COMMITLOG, DLEDGER, Segment
from pyspark_dledger.log.replicas import replica_names
from pyspark_dledger.log.store_view import StoreView

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True)
class FileDigest:
    """The MD5 of the positions ``[start, end)`` of the file `file` on each node, in hex.

    None if a node does not have all of it. ``whole``: of the whole file; else of the part that all nodes have written.
    """

    source: str
    file: str
    start: int
    end: int
    whole: bool
    md5: dict[str, str | None]

    @property
    def equal(self) -> bool:
        """Whether all nodes have the same bytes."""
        return None not in self.md5.values() and len(set(self.md5.values())) == 1


def file_digests(stores: Sequence[StoreView], last: int | None = None) -> list[FileDigest]:
    """Two digests for each written file of the old CommitLog and of DLedger, or for the `last` ones of each.

    The first is of the whole file. The second is of the part that all replicas with the file have written, if less.
    """
    names = replica_names(stores)
    return [
        digest
        for source in (COMMITLOG, DLEDGER)
        for base in sorted({segment.base for store in stores for segment in _written(store, source)})[-(last or 0) :]
        for digest in _digests(dict(zip(names, stores, strict=True)), source, base)
    ]


def _written(store: StoreView, source: str) -> list[Segment]:
    """The segments of a source up to the last one with entries."""
    last = store.ends[source][0].base if source in store.ends else -1
    return [segment for segment in store.segments if segment.source == source and segment.base <= last]


def _digests(stores: dict[str, StoreView], source: str, base: int) -> list[FileDigest]:
    found = {
        name: next((part for part in store.segments if (part.source, part.base) == (source, base)), None)
        for name, store in stores.items()
    }
    segments = {name: segment for name, segment in found.items() if segment is not None}
    file = next(segment.name for segment in segments.values())
    end = max(segment.end for segment in segments.values())
    written = min(_end_of_written(stores[name], segment) for name, segment in segments.items())
    digests = [_digest(found, source, file, base, end, True)]
    if base < written < end:
        digests.append(_digest(found, source, file, base, written, False))
    return digests


def _end_of_written(store: StoreView, segment: Segment) -> int:
    """The end of the last entry or message of a file."""
    last, end = store.ends.get(segment.source, (None, None))
    if last is not None and end is not None and last.base == segment.base:
        return end.pos
    return store.engine.log_end(segment, segment.base, False).pos


def _digest(found: dict[str, Segment | None], source: str, file: str, start: int, end: int, whole: bool) -> FileDigest:
    md5: dict[str, str | None] = {}
    for name, segment in found.items():
        digest = hashlib.md5(usedforsecurity=False)
        is_read = segment is not None and segment.end >= end and _update(digest, segment, start, end)
        md5[name] = digest.hexdigest() if is_read else None
    return FileDigest(source, file, start, end, whole, md5)


def _update(digest: hashlib._Hash, segment: Segment, start: int, end: int) -> bool:
    """Add bytes of a segment to a digest; false if not all of them can be read."""
    try:
        with open(segment.path, "rb", buffering=0) as file:
            file.seek(start - segment.base)
            remaining = end - start
            while remaining > 0:
                data = file.read(min(remaining, _READ_BYTES))
                if not data:
                    return False
                digest.update(data)
                remaining -= len(data)
    except OSError:
        return False
    return True
