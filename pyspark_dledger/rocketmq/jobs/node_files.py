"""Writes the files of a DLedger node other than its log: index, checkpoint and current term."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, write_at, write_durably
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, segment_name
from pyspark_dledger.format.state_files import (
    COMMITTED_INDEX,
    CURR_TERM,
    END_INDEX,
    VOTE_LEADER,
    CurrentTerm,
    encode_state_file,
)
from pyspark_dledger.log.copies.index_units import read_units
from pyspark_dledger.log.io.entry_reads import DLedgerIndex
from pyspark_dledger.log.io.state_files import read_current_term
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.jobs.target_folder import read_back_error

INDEX_FILE_SIZE = 32 * 5 * 1024 * 1024
"""DLedger's default, in bytes."""


def index_file_size(stores: Iterable[StoreView]) -> int:
    """The size of most index files of the stores; DLedger's default without any."""
    sizes = Counter(
        file.size
        for store in stores
        for file in store.index_files.files
        if file.size and not file.size % INDEX_UNIT_SIZE
    )
    return sizes.most_common(1)[0][0] if sizes else INDEX_FILE_SIZE


def write_index(folder: Path, first_index: int, chunks: Iterable[bytes], file_size: int) -> int:
    """Write index units from `first_index` on, and read them back. Returns the number of files. Raises OSError."""
    folder.mkdir(parents=True)
    at = first_index * INDEX_UNIT_SIZE
    names = set()
    for chunk in chunks:
        offset = 0
        while offset < len(chunk):
            base = (at + offset) // file_size * file_size
            part = chunk[offset : offset + base + file_size - (at + offset)]
            file = folder / segment_name(base)
            names.add(file.name)
            _write_part(file, part, at + offset - base, file_size)
            offset += len(part)
        found = read_units(DLedgerIndex(folder), at // INDEX_UNIT_SIZE, len(chunk) // INDEX_UNIT_SIZE).tobytes()
        if found != chunk:
            raise read_back_error(str(folder), f"the units from index {at // INDEX_UNIT_SIZE} on", "others")
        at += len(chunk)
    sync_dir(folder)
    return len(names)


def _write_part(file: Path, data: bytes, offset: int, file_size: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, file_size)
        write_at(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_checkpoint(node_dir: Path, committed_index: int, end_index: int) -> None:
    """Write the checkpoint of a new store. Raises OSError."""
    data = encode_state_file({COMMITTED_INDEX: committed_index, END_INDEX: end_index})
    write_durably(node_dir / "checkpoint", data)


def current_term(stores: Sequence[StoreView], node: str, last_term: int) -> tuple[CurrentTerm, str | None]:
    """The term and vote of the new node, and a note if they are not those of the node's own file.

    A node that forgets its vote could vote twice in one term. So it gets its own term and vote if a source has them,
    else the highest term of all sources and the vote in it.
    """
    found = [(store.paths.node, read_current_term(store.paths.node_dir)[0]) for store in stores if store.paths.node_dir]
    known = [(name, term) for name, term in found if term is not None and term.curr_term is not None]
    own = next((term for name, term in known if name == node), None)
    if own is not None and own.curr_term is not None and own.curr_term >= last_term:
        return own, None
    highest = max((term for _, term in known), key=lambda term: term.curr_term or 0, default=None)
    if highest is not None and highest.curr_term is not None and highest.curr_term >= last_term:
        return highest, f"currterm: no source has that of {node}; it gets term {highest.curr_term}, the highest of all"
    return CurrentTerm(
        last_term, None
    ), f"currterm: no source has one; {node} gets term {last_term}, that of the last entry"


def write_current_term(node_dir: Path, term: CurrentTerm) -> None:
    """Write the current term and vote of a new store. Raises OSError."""
    data = encode_state_file({VOTE_LEADER: term.vote_leader or "", CURR_TERM: term.curr_term})
    write_durably(node_dir / "currterm", data)


def check_node_id(node: str | None) -> str:
    """The id of the new node. Raises StoreError without one."""
    if not node or "/" in node:
        raise StoreError("the first source has no node id: give one (--id), such as n0")
    return node.removeprefix("dledger-")
