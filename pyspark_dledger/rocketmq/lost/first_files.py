"""What a store's own units say of entries before its first file: they expired, or the first files are missing."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.log.io.queue_files import FOLDER
from pyspark_dledger.log.io.queue_units import messages_in
from pyspark_dledger.log.store_view import StoreView


def before_first_file(log: StoreView) -> str | None:
    """That units know entries or messages before the first file; None if none does, and for a remote store."""
    if not log.min_offset or is_remote(log.path) or log.paths.only is not None:
        return None
    found = list(_units(log))
    text = f"its files begin at pos {log.min_offset}: what was before has expired, or is lost with missing files"
    return f"{text}; {' and '.join(found)}" if found else None


def _units(log: StoreView) -> Iterator[str]:
    first = log.index_files.first_index
    if 0 <= first < log.begin_index:
        yield f"its index has the entries {first} to {log.begin_index - 1}"
    root = log.paths.root
    if root is not None and (root / FOLDER).is_dir():
        count = len(messages_in(0, log.min_offset, root).pos)
        if count:
            yield f"its queues have {counted(count, 'message')} from there"
