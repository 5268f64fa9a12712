"""The configuration of a store on disk, with the names of ``DLedgerConfig`` of DLedger 0.3.1.2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark_dledger.common.integers import INT32_MAX
from pyspark_dledger.common.java_text import escaped_path, is_utf8
from pyspark_dledger.common.options import COUNT, INTEGER, SIZE, Parser, option, parse_size, parse_text, show_size
from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.engine import ENGINES
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MIN_BLANK_SIZE

Flush = Literal["sync", "async"]
FLUSHES: tuple[Flush, ...] = ("sync", "async")

_MAX_FILE_SIZE = INT32_MAX  # a blank has its size in 32 bits


def _parse_folders(value: object) -> tuple[Path, ...]:
    return tuple(Path(part.strip()) for part in parse_text(value).split(",") if part.strip())


_RATE = Parser(
    "a size in bytes such as 8m, or 0", lambda value: 0 if value in (0, "0") else parse_size(value), show_size
)
FOLDERS = Parser("folders, separated by commas", _parse_folders)


@dataclass(frozen=True)
class StoreConfig(Retention):
    """The folders of a store and its options. Sizes are bytes, times milliseconds unless the name has another unit.

    An existing store keeps its file sizes. ``flush``: ``sync`` writes to disk after each append, ``async`` every
    ``flush_file_interval_ms``. ``old_log_dir`` is the folder of a CommitLog that this log continues: while it
    has files, none of this log are deleted. Folders may be texts. Raises OptionError for invalid values.
    """

    base_dir: Path
    self_id: str = "n0"
    data_file_size: int = option(
        1 << 30, SIZE, "size of a data file, in a new store", name="mappedFileSizeForEntryData"
    )
    index_file_size: int = option(
        INDEX_UNIT_SIZE * 5 * 1024 * 1024,
        SIZE,
        "size of an index file, in a new store",
        name="mappedFileSizeForEntryIndex",
    )
    data_dirs: tuple[Path, ...] = option(
        (), FOLDERS, "folders of data files, used in turn; default: `data/` of the store", name="dataStorePath"
    )
    read_only_data_dirs: tuple[Path, ...] = option(
        (), FOLDERS, "folders of data files that are only read", name="readOnlyDataStoreDirs"
    )
    flush: str = "async"
    flush_file_interval_ms: int = option(10, COUNT, "ms between flushes, with flush=async", name="flushFileInterval")
    check_point_interval_ms: int = option(3000, COUNT, "ms between checkpoints", name="checkPointInterval")
    scrub_bytes_per_second: int = option(
        8 << 20, _RATE, "bytes a second that the scrubber reads; 0: off", name="scrubBytesPerSecond"
    )
    truncate_at: int | None = option(None, INTEGER, "repair: moves this entry and all after it to a side file")
    old_log_dir: Path | None = None
    engine: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "base_dir", Path(self.base_dir))
        for name in ("data_dirs", "read_only_data_dirs"):
            object.__setattr__(self, name, tuple(map(Path, getattr(self, name))))
        object.__setattr__(self, "old_log_dir", None if self.old_log_dir is None else Path(self.old_log_dir))
        for folder in (self.node_dir, *self.data_dirs, *self.read_only_data_dirs):
            if not is_utf8(str(folder)):
                raise OptionError(
                    f"{escaped_path(str(folder))}: expected a path in UTF-8, found bytes that are not: choose another"
                )
        minimum = ENTRY_HEADER_SIZE + MIN_BLANK_SIZE
        _check(
            minimum <= self.data_file_size <= _MAX_FILE_SIZE, "data_file_size", f"{minimum} to {_MAX_FILE_SIZE}", self
        )
        _check(
            0 < self.index_file_size <= _MAX_FILE_SIZE and self.index_file_size % INDEX_UNIT_SIZE == 0,
            "index_file_size",
            f"a multiple of {INDEX_UNIT_SIZE} up to {_MAX_FILE_SIZE}",
            self,
        )
        _check(self.flush in FLUSHES, "flush", " or ".join(FLUSHES), self)
        _check(self.engine in ENGINES, "engine", ", ".join(ENGINES), self)
        _check(self.flush_file_interval_ms > 0, "flush_file_interval_ms", "at least 1", self)
        _check(self.check_point_interval_ms > 0, "check_point_interval_ms", "at least 1", self)
        _check(self.scrub_bytes_per_second >= 0, "scrub_bytes_per_second", "at least 0", self)
        _check(self.truncate_at is None or self.truncate_at >= 0, "truncate_at", "an index of at least 0", self)
        _check(
            re.fullmatch(r"[^/\0]+", self.self_id) is not None,
            "self_id",
            "a name that can be part of a folder's name",
            self,
        )

    @property
    def node_dir(self) -> Path:
        """The folder of the node, ``dledger-<self_id>``."""
        return self.base_dir / f"dledger-{self.self_id}"

    @property
    def all_data_dirs(self) -> tuple[Path, ...]:
        """The folders in which data files are created."""
        return self.data_dirs or (self.node_dir / "data",)

    @property
    def force_clean_ratio(self) -> float:
        """Above this, files are deleted before they have expired; at least 0.5."""
        return max(self.disk_space_ratio_to_force_clean, 0.50)

    @property
    def disk_full_ratio(self) -> float:
        """Above this, appends are rejected (``DLedgerConfig.getDiskFullRatio``)."""
        return min(self.disk_space_ratio_to_force_clean + 0.05, 0.95)


def _check(is_valid: bool, name: str, expected: str, config: StoreConfig) -> None:
    if not is_valid:
        raise OptionError(f"{name}: expected {expected}, found {getattr(config, name)!r}")
