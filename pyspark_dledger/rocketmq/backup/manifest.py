"""The manifest of a backup, ``backup.json``: each file with its size and the CRC-32 of each block.

A backup whose manifest is missing is unfinished.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pyspark_dledger.common.durable import replace_durably
from pyspark_dledger.common.integers import INT32_MAX, INT64_MAX
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, is_segment_name
from pyspark_dledger.format.state_files import MAX_TERM
from pyspark_dledger.log.io.store_use import BACKUP_MANIFEST
from pyspark_dledger.rocketmq.jobs.manifest import Limits, load_json, parsed, with_crc, without_crc
from pyspark_dledger.rocketmq.jobs.new_files import FileBlocks

FORMAT = 1
DATA_FOLDER = "data"
NODE, ROOT = "node", "root"
"""The folders of a backup's state: files of ``dledger-<id>/``, and of the storePathRootDir."""

# Enough for a log of 4 TiB; parsed, it takes some 25 times as much memory.
_MAX_MANIFEST = 16 << 20
_STATE = re.compile(r"state-\d{1,18}")
# The files of a member and of its root, in its state.
_OTHER_FILE = re.compile(rf"state-\d{{1,18}}/(?:{NODE}|{ROOT})/.+", re.DOTALL)


def _check_name(value: str) -> None:
    if not value.isprintable():
        raise ValueError(f"{value!r} where a name is expected")


_Name = Annotated[str, _check_name]
_Number = Annotated[int, Limits(-1, INT64_MAX - 1)]
_FileSize = Annotated[int, Limits(INDEX_UNIT_SIZE, INT32_MAX)]


@dataclass(frozen=True)
class Manifest:
    """What a backup has.

    Its log has the entries ``[first_index, last_index]`` at the positions ``[begin, end)``, in the files ``log``, in
    order. ``term`` is above every term in which the member voted until then. ``files`` are the others, in the folder
    ``state``. ``has_root``: the member serves messages. ``lacks_state``: the log and the files do not tell queue
    offsets and identities of expired messages.
    """

    id: _Name
    created: str
    source: str
    node: _Name
    members: tuple[_Name, ...]
    cluster: _Name
    term: Annotated[int, Limits(-1, MAX_TERM)]
    first_index: _Number
    last_index: _Number
    last_term: _Number
    begin: _Number
    end: _Number
    data_file_size: _FileSize
    index_file_size: _FileSize
    log: tuple[FileBlocks, ...]
    state: _Name
    files: tuple[FileBlocks, ...]
    has_root: bool = False
    lacks_state: bool = False
    notes: tuple[str, ...] = ()
    format: Annotated[int, Limits(FORMAT, FORMAT)] = FORMAT

    def __post_init__(self) -> None:
        """Raises ValueError for values that do not fit together."""
        if self.index_file_size % INDEX_UNIT_SIZE:
            raise ValueError(f"the size {self.index_file_size} of an index file")
        if not _STATE.fullmatch(self.state):
            raise ValueError(f"the state {self.state!r}")
        for file in self.log:
            if not is_segment_name(Path(file.path).name) or file.file_size != self.data_file_size:
                raise ValueError(f"the data file {file}")
        for file in self.files:
            if not _OTHER_FILE.fullmatch(file.path):
                raise ValueError(f"the file {file.path!r} of a member")

    @property
    def all_files(self) -> tuple[FileBlocks, ...]:
        return (*self.log, *self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, atomically and durably. Raises OSError, and StoreError for a log above 4 TiB."""
    data = f"{json.dumps(with_crc(asdict(manifest)), indent=1)}\n".encode()
    if len(data) > _MAX_MANIFEST:
        raise StoreError(f"{manifest.source}: expected a log of at most about 4 TiB, found {manifest.end} bytes")
    replace_durably(folder / BACKUP_MANIFEST, data)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a finished backup, None without one. Raises StoreError for a damaged one."""
    file = folder / BACKUP_MANIFEST
    try:
        found: Manifest = parsed(Manifest, without_crc(load_json(file, _MAX_MANIFEST)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{file}: expected the manifest of a backup, format {FORMAT}, found {error}: use another backup"
        ) from None
    return found
