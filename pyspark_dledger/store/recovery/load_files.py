"""Finds and checks the files of a store when it starts (``MmapFileList.load`` and ``checkSelf``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from pyspark_dledger.common.durable import sync_dir, sync_file
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import decode_entry_header, decode_index_unit
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAX_ENTRY_SIZE,
    MIN_BLANK_SIZE,
    is_segment_name,
    segment_name,
)
from pyspark_dledger.format.state_files import Checkpoint
from pyspark_dledger.log.io.entry_reads import read_at
from pyspark_dledger.log.io.store_paths import HIGHEST_BASE
from pyspark_dledger.store.files.mapped_files import MappedFile
from pyspark_dledger.store.files.node_files import Reset, load_reset, remove_reset, write_checkpoint, write_reset


def load_data_files(dirs: Iterable[Path], file_size: int) -> tuple[list[MappedFile], int]:
    """The data files of all folders in order, and their size (`file_size` without files).

    Other names are ignored. An empty last file was being created, and is removed. Raises StoreError for different sizes
    and for a name that does not fit the size.
    """
    found = _named_files(dirs)
    if found and found[-1][1] == 0:
        found.pop()[0].unlink()
    sizes = Counter(size for _, size in found)
    usual = sizes.most_common(1)[0][0] if sizes else file_size
    if not ENTRY_HEADER_SIZE + MIN_BLANK_SIZE <= usual < 2**31:
        raise StoreError(f"{found[0][0]}: expected a data file of less than 2 GiB, found {usual} bytes")
    for path, size in found:
        if size != usual:
            raise StoreError(
                f"{path}: expected a file of {usual} bytes as the others have, found {size}: copy it from another "
                "member of the group"
            )
        if int(path.name) % usual or int(path.name) > HIGHEST_BASE:
            raise StoreError(
                f"{path}: expected a name that is a multiple of {usual}, the size of the file: move it away"
            )
    return [MappedFile(path, int(path.name), size) for path, size in found], usual


def check_order(files: list[MappedFile]) -> None:
    """Raises StoreError for a gap between two files, and for two files of one name."""
    for before, after in pairwise(files):
        if after.base == before.base:
            raise StoreError(f"{after.path}: expected one file of this name, found {before.path} too: remove one")
        if after.base != before.end:
            raise StoreError(
                f"{after.path}: expected {segment_name(before.end)} after {before.path.name}, found this "
                "file: copy the missing ones from another member of the group"
            )


def load_index_files(folder: Path, file_size: int) -> tuple[list[MappedFile], int, list[Path]]:
    """The index files in order, their size, and unusable files, whose units are rebuilt from the data."""
    found = _named_files([folder])
    sizes = Counter(size for _, size in found if 0 < size < 2**31 and size % INDEX_UNIT_SIZE == 0)
    usual = sizes.most_common(1)[0][0] if sizes else file_size
    fits = [(path, size) for path, size in found if size == usual and int(path.name) % usual == 0]
    files = [MappedFile(path, int(path.name), size) for path, size in fits]
    for number, (before, after) in enumerate(pairwise(files), 1):
        if before.end != after.base:
            files = files[:number]
            break
    kept = {file.path for file in files}
    return files, usual, [path for path, _ in found if path not in kept]


def finish_reset(
    node_dir: Path,
    files: list[MappedFile],
    index_files: list[MappedFile],
    checkpoint: Checkpoint,
    engine: Engine,
    *,
    needs_checksum: bool,
) -> tuple[list[MappedFile], Checkpoint]:
    """Finish an interrupted reset if its first entry was written, else undo it. Returns data files and checkpoint.

    With `needs_checksum`, an index unit does not prove the entry: a power loss can have taken its bytes.
    After an undone reset the old log is back, see `MmapFileStore.reset`. After a finished one the checkpoint names the
    first entry of the new log.
    """
    reset = load_reset(node_dir)
    if reset is None:
        return files, checkpoint
    new = [file for file in files if file.end > reset.pos]
    old = files[: len(files) - len(new)]
    unit = [file for file in index_files if file.base <= reset.index * INDEX_UNIT_SIZE < file.end]
    is_written = bool(new) and bool(unit) and _begins(new[0], unit[0], reset, engine if needs_checksum else None)
    is_done = reset.is_durable or is_written
    if is_done:
        for file in (*new[:1], *unit):
            sync_file(file.path)
            sync_dir(file.path.parent)
        # From here on a power loss cannot bring the old log back.
        write_reset(node_dir, reset._replace(is_durable=True))
        committed = checkpoint.committed_index
        if committed is not None:
            checkpoint = Checkpoint(committed, reset.index)
            write_checkpoint(node_dir, committed, reset.index)
    for file in old if is_done else new:
        file.path.unlink()
        sync_dir(file.path.parent)
    remove_reset(node_dir)
    return (new if is_done else old), checkpoint


def _begins(file: MappedFile, index_file: MappedFile, reset: Reset, engine: Engine | None) -> bool:
    """Whether the first entry after a reset was written, and then its index unit; an `engine` checks its checksum."""
    data = read_at(str(file.path), max(reset.pos - file.base, 0), ENTRY_HEADER_SIZE)
    units = read_at(str(index_file.path), reset.index * INDEX_UNIT_SIZE - index_file.base, INDEX_UNIT_SIZE)
    if len(data) < ENTRY_HEADER_SIZE or len(units) < INDEX_UNIT_SIZE:
        return False
    header, unit = decode_entry_header(data), decode_index_unit(units)
    if not (header.index, header.pos) == (unit.index, unit.pos) == (reset.index, reset.pos):
        return False
    if engine is None:
        return True
    entry = read_at(str(file.path), reset.pos - file.base, min(unit.size, MAX_ENTRY_SIZE))
    try:
        return len(entry) == header.size and engine.find_wrong_body(entry, True) is None
    except ValueError:
        return False


def check_version(node_dir: Path) -> None:
    """Raises StoreError for a store of DLedger 0.4.0 with a snapshot folder."""
    if (node_dir / "snapshot").is_dir():
        raise StoreError(
            f"{node_dir}: expected a store of DLedger 0.1 to 0.3.2, found a snapshot folder, which only 0.4.0 has: "
            "stores of 0.4.0 can be read, but not written"
        )


def _named_files(dirs: Iterable[Path]) -> list[tuple[Path, int]]:
    """Files with names of 20 digits, and their sizes, sorted by name."""
    found = []
    for folder in dirs:
        for path in folder.iterdir() if folder.is_dir() else ():
            if is_segment_name(path.name):
                if not path.is_file():
                    raise StoreError(f"{path}: expected a file, found something else: move it away")
                found.append((path, path.stat().st_size))
    return sorted(found, key=lambda item: item[0].name)
