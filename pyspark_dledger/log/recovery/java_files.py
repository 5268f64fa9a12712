"""A model of the Java DLedger's folders of mapped files; changes are made in memory only.

Sources: DLedger 0.1 to 0.4.0, ``MmapFileList``, ``DefaultMmapFile``, ``MultiPathMmapFileList``. The model includes
Java's arithmetic: numbers wrap at 32 and 64 bits, and a remainder has the sign of the dividend.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.layout import INDEX_UNIT_SIZE, MIN_BLANK_SIZE, is_segment_name, segment_name
from pyspark_dledger.log.io.files import names_in, open_file
from pyspark_dledger.log.io.store_paths import usual_size

_JAVA_LONG = re.compile(r"[+-]?\d+")
_READ_BYTES = 1024 * 1024
LOAD_FAILED = "Load file failed, this usually indicates fatal error, you should check it manually"


class JavaEnds(Exception):
    """Java does not open the store: `message` is its own, `detail` says what is wrong."""

    outcome = ""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message, detail)
        self.message = message
        self.detail = detail


class JavaThrows(JavaEnds):
    """Java throws: the message is the exception's class and text."""

    outcome = "throws"


class JavaExits(JavaEnds):
    """Java ends its process: the message is what it logs before."""

    outcome = "exits"


class JavaHangs(JavaEnds):
    """Java loops forever."""

    outcome = "hangs"


def ledger_error(code: int, name: str, text: str, detail: str = "") -> JavaThrows:
    """A DLedgerException."""
    kind = "io.openmessaging.storage.dledger.exception.DLedgerException"
    return JavaThrows(f"{kind}: [code={code},name={name},desc=] {text}", detail)


def disk_error(text: str, detail: str = "") -> JavaThrows:
    """The DLedgerException for a store that it does not accept."""
    return ledger_error(414, "DISK_ERROR", text, detail)


def underflow(detail: str) -> JavaThrows:
    """The JDK's exception for a read beyond the end of a buffer."""
    return JavaThrows("java.nio.BufferUnderflowException", detail)


def bad_argument(detail: str) -> JavaThrows:
    """The JDK's exception for a position outside a buffer."""
    return JavaThrows("java.lang.IllegalArgumentException", detail)


def int32(value: int) -> int:
    """The low 32 bits as a signed number."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def int64(value: int) -> int:
    """The low 64 bits as a signed number."""
    return (value & 0xFFFFFFFFFFFFFFFF ^ 0x8000000000000000) - 0x8000000000000000


def remainder(value: int, divisor: int) -> int:
    """Java's ``%``, which has the sign of `value`."""
    return value % divisor if value >= 0 else -(-value % divisor)


def quotient(value: int, divisor: int) -> int:
    """Java's ``/``, which rounds towards zero."""
    return value // divisor if value >= 0 else -(-value // divisor)


def parse_long(text: str) -> int:
    """Java's ``Long.parseLong``; raises JavaThrows."""
    if _JAVA_LONG.fullmatch(text) and -(2**63) <= int(text) < 2**63:
        return int(text)
    raise JavaThrows(f'java.lang.NumberFormatException: For input string: "{text}"')


class JavaFile:
    """One mapped file: its base, up to where Java counts it as written, and what the model wrote.

    A file without a path was created by the model and is all zeros.
    """

    def __init__(self, base: int, size: int, name: str, path: Path | None) -> None:
        self.base = base
        self.size = size
        self.name = name
        self.path = path
        self.wrote = size if path is not None else 0
        self.start = 0
        self._blank_head = 0
        self._rewritten = (0, 0)
        self._window = (0, b"")

    @property
    def end(self) -> int:
        return self.base + self.size

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at `offset` of the file; fewer at its end, none outside it."""
        if not 0 <= offset < self.size:
            return b""
        size = min(size, self.size - offset)
        low, high = self._rewritten
        if self.path is None or low <= offset < high:
            return bytes(size)
        if offset < self._blank_head:
            return (b"\xff\xff\xff\xff" + self._blank_head.to_bytes(4, "big") + bytes(offset + size))[offset:][:size]
        at, data = self._window
        if not (at <= offset and offset + size <= at + len(data)):
            self._window = at, data = offset, self._read_disk(offset, max(size, min(_READ_BYTES, self.size - offset)))
        return data[offset - at : offset - at + size]

    def _read_disk(self, offset: int, size: int) -> bytes:
        """Bytes of the file on disk; zeros where it became shorter meanwhile."""
        assert self.path is not None
        try:
            with open_file(self.path) as opened:
                data = opened.read(offset, size)
        except OSError as error:
            raise UnreadableError(str(self.path), error.strerror or str(error)) from None
        return data.ljust(size, b"\0")

    def append_units(self, count: int) -> None:
        """Write index units at the written position, which read as zeros then."""
        low, high = self._rewritten
        self._rewritten = (low if high else self.wrote, self.wrote + count * INDEX_UNIT_SIZE)
        self.wrote += count * INDEX_UNIT_SIZE

    def write_blank_head(self, size: int) -> None:
        """Overwrite the first `size` bytes with a blank, as 0.4.0 does."""
        self._blank_head = size
        self._rewritten = (max(self._rewritten[0], size), max(self._rewritten[1], size))
        if self._rewritten[0] == self._rewritten[1]:
            self._rewritten = (0, 0)


class JavaFileList:
    """The files of the data or the index, in order, and those that Java would delete and create.

    ``file_size`` is Java's configured size in bytes. ``blanks_heads``: as 0.4.0, mark the start of the first file as a
    blank, and delete a first file that has only blanks.
    """

    def __init__(self, dirs: Iterable[Path], file_size: int, blanks_heads: bool) -> None:
        self.file_size = file_size
        self.files: list[JavaFile] = []
        self.deleted: list[str] = []
        self.created: list[str] = []
        self._paths = paths_in(dirs)
        self._blanks_heads = blanks_heads

    @property
    def names_before(self) -> list[str]:
        """All names in the folders, in order."""
        return [path.name for path in self._paths]

    @property
    def names_after(self) -> list[str]:
        return sorted({*self.names_before, *self.created} - (set(self.deleted) - {file.name for file in self.files}))

    @property
    def names_deleted(self) -> list[str]:
        """Names that exist before and not afterwards."""
        return sorted(set(self.names_before) - set(self.names_after))

    def load(self) -> None:
        """Map all files. Raises JavaExits for a file of another size, JavaThrows for a name that is not a number."""
        for path in self._paths:
            size = path.stat().st_size if path.exists() else 0
            if size != self.file_size:
                found = "a folder" if path.is_dir() else f"{size} bytes"
                raise JavaExits(
                    LOAD_FAILED,
                    f"{path.parent.name}/{path.name}: expected a file of {self.file_size} bytes, found {found}",
                )
            base = parse_long(path.name)
            if not stat.S_ISREG(path.stat().st_mode):
                raise JavaExits(LOAD_FAILED, f"{path.parent.name}/{path.name}: expected a file, found none")
            self.files.append(JavaFile(base, self.file_size, path.name, path))

    def find_disorder(self) -> tuple[JavaFile, JavaFile] | None:
        """The first two files that are not adjacent; before, as 0.4.0, delete a first file that has only blanks."""
        if self._blanks_heads:
            self.drop_blank_first()
        for before, after in pairwise(self.files):
            if after.base - before.base != self.file_size:
                return before, after
        return None

    def drop_blank_first(self) -> None:
        """Delete the first file if blanks cover it exactly. Raises JavaThrows, JavaHangs."""
        if not self.files:
            return
        first, pos, seen = self.files[0], 0, set()
        while pos != first.size:
            if pos in seen:
                raise JavaHangs("", f"{first.name} at byte {pos}: expected blanks up to the end, found a cycle")
            seen.add(pos)
            if not 0 <= pos <= first.size:
                raise bad_argument(f"{first.name}: expected a blank that ends in the file, found its end at {pos}")
            head = first.read(pos, MIN_BLANK_SIZE)
            if len(head) >= 4 and head[:4] != b"\xff\xff\xff\xff":
                return
            if len(head) < MIN_BLANK_SIZE:
                raise underflow(f"{first.name} at byte {pos}: expected a blank of 8 bytes, found the end of the file")
            pos = int32(pos + int.from_bytes(head[4:], "big", signed=True))
        self._delete([first])

    def find(self, offset: int) -> JavaFile | None:
        """The file with a position; for position 0 the first file is the default."""
        if not self.files:
            return None
        first = self.files[0]
        if first.base <= offset < self.files[-1].end:
            number = int32(quotient(offset, self.file_size) - quotient(first.base, self.file_size))
            if 0 <= number < len(self.files) and self.files[number].base <= offset < self.files[number].end:
                return self.files[number]
            for file in self.files:
                if file.base <= offset < file.end:
                    return file
        return first if offset == 0 else None

    def data_at(self, offset: int, size: int | None = None) -> tuple[JavaFile, int] | None:
        """The file and the offset in it with `size` written bytes; without a size, at least one. None without them."""
        file = self.find(offset)
        if file is None:
            return None
        at = int32(remainder(offset, self.file_size))
        if size is None:
            return (file, at) if 0 <= at < file.wrote else None
        if int32(at + size) > file.wrote:
            return None
        if at < 0 or at > file.size or size < 0 or size > file.size - at:
            raise bad_argument(f"{file.name} at byte {at}: expected a size within the file, found {size}")
        return file, at

    @property
    def wrote_end(self) -> int:
        """The position of the next byte to write."""
        return self.files[-1].base + self.files[-1].wrote if self.files else 0

    def truncate(self, offset: int) -> None:
        """End the log at `offset`: files after it are deleted."""
        removed = []
        for file in self.files:
            if file.end <= offset:
                continue
            if offset >= file.base:
                file.wrote = int32(remainder(offset, self.file_size))
            else:
                removed.append(file)
        self._delete(removed)

    def reset(self, offset: int) -> None:
        """Begin the log at `offset`: files before it are deleted."""
        removed = []
        for file in self.files:
            if file.base > offset:
                continue
            if offset < file.end:
                file.start = int32(remainder(offset, self.file_size))
                if self._blanks_heads and file.start > MIN_BLANK_SIZE:
                    file.write_blank_head(file.start)
                    file.wrote = max(file.wrote, file.start)
            else:
                removed.append(file)
        self._delete(removed)

    def rebuild(self, pos: int) -> bool:
        """Delete everything and begin at `pos`; false if that fails."""
        self.truncate(-1)
        last = self.files[-1] if self.files else None
        if last is None:
            self._create(int64(pos - remainder(pos, self.file_size)))
        elif last.wrote == last.size:
            self._create(last.end)
        self.truncate(pos)
        self.reset(pos)
        begin = self.files[0].base + self.files[0].start if self.files else 0
        return pos == self.wrote_end and pos == begin

    def append_units(self, count: int) -> int:
        """Write index units at the end (see `JavaFile.append_units`) and return how many fit."""
        written = 0
        while written < count:
            last = self.files[-1] if self.files else None
            if last is None or last.wrote == last.size:
                last = self._create(last.end if last is not None else 0)
            if last.wrote < 0:
                raise bad_argument(f"{last.name}: expected a position for an index unit, found byte {last.wrote}")
            fits = min((last.size - last.wrote) // INDEX_UNIT_SIZE, count - written)
            if fits <= 0:
                break
            last.append_units(fits)
            written += fits
        return written

    def _create(self, base: int) -> JavaFile:
        name = f"{'-' if base < 0 else ''}{segment_name(abs(base))}"
        self.files.append(JavaFile(base, self.file_size, name, None))
        self.created.append(name)
        return self.files[-1]

    def _delete(self, files: list[JavaFile]) -> None:
        for file in files:
            self.files.remove(file)
            self.deleted.append(file.name)
            if file.name in self.created:
                self.created.remove(file.name)


def list_folder(folder: Path) -> list[Path]:
    """The contents of a folder; empty if it does not exist."""
    try:
        return [folder / name for name in names_in(folder)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnreadableError(str(folder), error.strerror or str(error)) from None


def paths_in(folders: Iterable[Path]) -> list[Path]:
    """The contents of the folders of a log, by name."""
    return sorted((path for folder in folders for path in list_folder(folder)), key=lambda path: path.name)


def configured_size(dirs: Iterable[Path], default: int, unit: int = 1) -> int:
    """The file size in bytes that Java was probably configured with, a multiple of `unit`; `default` without files."""
    sizes = {
        int(path.name): path.stat().st_size
        for folder in dirs
        for path in list_folder(folder)
        if is_segment_name(path.name) and path.is_file()
    }
    size = usual_size(sizes)
    return size if size and size % unit == 0 else default
