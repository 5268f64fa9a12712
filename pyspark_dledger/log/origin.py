"""What a plan was made of, and whether its reader, perhaps on another machine, finds the same log.

Bytes are compared, not inodes: these differ between mounts, and a restored copy is the same log. A remote file has the
stamp of its listing, which its reader compares.
"""

from __future__ import annotations

import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyspark_dledger.common.fields import changed
from pyspark_dledger.common.uris import unlisted
from pyspark_dledger.errors import StoreError
from pyspark_dledger.format.codec import EntryHeader
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, is_segment_name
from pyspark_dledger.format.message import has_message_magic
from pyspark_dledger.format.spec import DLEDGER, Fingerprint, ScanRequest, Segment
from pyspark_dledger.log.gaps import FileGap, report_loss
from pyspark_dledger.log.io.entry_reads import entry_in
from pyspark_dledger.log.io.files import is_remote_path, is_there, names_in, open_file, path_of
from pyspark_dledger.log.store_segments import TAIL_BYTES
from pyspark_dledger.log.store_view import StoreView

# A page: the scan reads it anyway.
_MAX_BYTES = 4096
_AFTER_BYTES = 8
# Copying an entry into the file takes less.
_WRITING_SECONDS = 0.005
_REMEDY = "mount the same store at this path on every host, or plan the read again"

_Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Origin:
    """The store that a plan was made of, and the host.

    ``lasts`` are the last file of each folder, with the position after it. The ``anchor`` is the beginning of the last
    written segment, which expires last.
    """

    host: str
    folders: tuple[str, ...]
    lasts: tuple[tuple[str, int], ...]
    anchor: tuple[Segment, Fingerprint] | None


def origin_of(store: StoreView) -> Origin:
    """What readers need to tell the store from another one, and an expired file from an absent one."""
    paths = store.paths
    folders = (*paths.data_dirs, *paths.commitlog_dirs) if paths.only is None else (paths.only.parent,)
    lasts: dict[str, tuple[str, int]] = {}
    for segment in reversed(store.segments):
        lasts.setdefault(_folder(segment.path), (segment.path, segment.end))
        if len(lasts) == len(folders):
            break
    return Origin(socket.gethostname(), tuple(map(str, folders)), tuple(lasts.values()), _anchor(store.segments))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _anchor(segments: Sequence[Segment]) -> tuple[Segment, Fingerprint] | None:
    for segment in reversed(segments):
        if not segment.file.is_local and not segment.file.is_remote:
            return None
        try:
            with _opened(segment) as read:
                found = _first_entry(read, segment, segment.base, True)
        except OSError:
            continue
        if found is not None:
            return replace(segment, before=None, after=None, witness=None), found
    return None


def with_fingerprints(store: StoreView, parts: Iterable[ScanRequest | FileGap]) -> list[ScanRequest | FileGap]:
    """The requests with what their readers have to find at the begin and at the end of each range."""
    lasts = {source: end.last_pos for source, (_, end) in store.ends.items()}
    return [
        part if isinstance(part, FileGap) else changed(part, fingerprints=_fingerprints_of(store, part, lasts))
        for part in parts
    ]


def _fingerprints_of(store: StoreView, request: ScanRequest, lasts: dict[str, int]) -> tuple[Fingerprint, ...]:
    segment = request.segment
    base, last = segment.base, lasts.get(segment.source, -1)
    end = base + segment.size
    is_whole = request.start == base and request.end >= end and segment.file.is_local
    if is_whole and not base <= last < end:
        head, entry, tail = store.file_ends(segment, True)
        first = _first_of(head, entry, segment)
        if first is not None and len(tail) == TAIL_BYTES and base + first.size < end - TAIL_BYTES:
            return first, Fingerprint(end - TAIL_BYTES, TAIL_BYTES, zlib.crc32(tail))
    return tuple(_fingerprints(store, request, last))


def _fingerprints(store: StoreView, request: ScanRequest, last: int) -> Iterator[Fingerprint]:
    """At the begin of a range its first entry, or bytes that are none; at the end its last bytes, or the last entry.

    `last` is the position of the log's last entry: only its header is sure to be written completely.
    """
    segment, start, end = request.segment, request.start, min(request.end, request.segment.end)
    if segment.file.is_remote or start >= end:
        return
    if start == segment.base and start != last:
        head, entry, _ = store.file_ends(segment)
        first = _first_of(head, entry, segment)
    else:
        first = _first_entry(segment.file.read, segment, start, start == last)
    first_end = start if first is None else first.pos + first.size
    if first is not None:
        yield first
    else:
        yield from _bytes_at(segment, start, min(_MAX_BYTES, end - start))
    if start < last < end:
        yield from _bytes_at(segment, last, ENTRY_HEADER_SIZE)
    elif start != last and first_end < end - TAIL_BYTES:
        yield from _bytes_at(segment, end - TAIL_BYTES, TAIL_BYTES)


def _bytes_at(segment: Segment, pos: int, size: int) -> Iterator[Fingerprint]:
    """Some bytes of a file; nothing if it cannot be read, which the scan reports."""
    data = segment.read(pos, size)
    if data:
        yield _fingerprint(pos, data)


def _first_of(head: bytes, entry: EntryHeader | None, segment: Segment) -> Fingerprint | None:
    """The first bytes of the entry or message that a file begins with, if it has another one; or None."""
    if entry is not None:
        data = head[: entry.size]
        return Fingerprint(segment.base, len(data), zlib.crc32(data), entry.index, entry.term)
    if segment.source == DLEDGER or not has_message_magic(head, 0, len(head)):
        return None
    return _fingerprint(segment.base, head[: int.from_bytes(head[:4], "big")])


def _first_entry(read: _Read, segment: Segment, pos: int, may_be_last: bool) -> Fingerprint | None:
    """The first bytes of the entry or message at `pos`, or None. The body of the last one can still be being copied."""
    data = read(pos - segment.base, _MAX_BYTES)
    index = term = None
    if segment.source == DLEDGER:
        header = entry_in(data, segment, pos)
        if header is None:
            return None
        size, index, term = header.size, header.index, header.term
    elif has_message_magic(data, 0, len(data)):
        size = int.from_bytes(data[:4], "big")
    else:
        return None
    if may_be_last and not read(pos - segment.base + size, _AFTER_BYTES).strip(b"\0"):
        time.sleep(_WRITING_SECONDS)
        data = read(pos - segment.base, _MAX_BYTES)
    return _fingerprint(pos, data[:size], index, term)


def _fingerprint(pos: int, data: bytes, index: int | None = None, term: int | None = None) -> Fingerprint:
    return Fingerprint(pos, len(data), zlib.crc32(data), index, term)


@contextmanager
def _opened(segment: Segment) -> Iterator[_Read]:
    """A function that reads bytes of its file at an offset. Raises OSError, for a remote file StoreError."""
    if not segment.file.is_local:
        yield segment.file.read
        return
    with open_file(segment.path) as file:
        yield file.read


def is_there_as_planned(request: ScanRequest, origin: Origin | None, fail_on_data_loss: bool) -> bool:
    """Whether the file of a range is the one that was planned on; false if it has expired and may be skipped.

    Raises StoreError for another file, or none, and DataLossError for an expired one with `fail_on_data_loss`.
    """
    segment = request.segment
    if segment.file.is_remote:
        if fail_on_data_loss or _exists(segment.path):
            return True  # the scan reports a file that was changed or deleted
    else:
        try:
            with _opened(segment) as read:
                for planned in request.fingerprints:
                    _check(segment, planned, read, origin)
            return True
        except OSError as error:
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                return True  # the scan reports it
    _check_expired(request, origin)
    problem = f"{segment.path}: expected positions {request.start} to {request.end - 1}, found the file deleted"
    report_loss(problem, "they are skipped", fail_on_data_loss, "plan the read again")
    return False


def check_origin(origin: Origin) -> None:
    """Raise StoreError unless the store is the one that was planned on."""
    for text in origin.folders:
        folder = path_of(text)
        if not is_remote_path(folder) and not folder.is_dir():
            raise StoreError(f"{text}: expected the folder{_planned(origin)}, found none on {_host()}: {_REMEDY}")
    if origin.anchor is None:
        return
    segment, planned = origin.anchor
    try:
        with _opened(segment) as read:
            _check(segment, planned, read, origin)
    except OSError as error:
        raise StoreError(
            f"{segment.path}: expected {_text(planned)}{_planned(origin)}, found no "
            f"readable file ({error.strerror}) on {_host()}: {_REMEDY}"
        ) from None


def _check(segment: Segment, planned: Fingerprint, read: _Read, origin: Origin | None) -> None:
    """Raise StoreError if a file has other bytes than planned."""
    data = read(planned.pos - segment.base, planned.size)
    if len(data) == planned.size and zlib.crc32(data) == planned.crc:
        return
    if len(data) < planned.size:
        found = f"{len(data)} of {planned.size} bytes"
    else:
        header = entry_in(data, segment, planned.pos) if segment.source == DLEDGER else None
        there = _fingerprint(planned.pos, data)
        found = _text(there if header is None else there._replace(index=header.index, term=header.term))
    raise StoreError(
        f"{segment.path}: expected {_text(planned)} at pos "
        f"{planned.pos}{_planned(origin)}, found {found} on {_host()}: {_REMEDY}"
    )


def _check_expired(request: ScanRequest, origin: Origin | None) -> None:
    """Raise StoreError unless the store proves that a file which is not there has expired.

    Its first segment begins after the file, what is missing of the plan is before that, and it is the same log.
    """
    segment = request.segment
    begin = None
    if origin is not None and origin.anchor is not None:
        check_origin(origin)
        begin = _first_base(origin.folders)
        lasts_are_there = all(end <= (begin or 0) or _exists(last) for last, end in origin.lasts)
        if begin is not None and segment.end <= begin and lasts_are_there:
            return
    found = "" if begin is None else f", and a log that begins at pos {begin}"
    raise StoreError(
        f"{segment.path}: expected positions {request.start} to {request.end - 1}{_planned(origin)}, found no file on "
        f"{_host()}{found}: {_REMEDY}"
    )


def _exists(path: str) -> bool:
    return is_there(path_of(unlisted(path)))


def _first_base(folders: Iterable[str]) -> int | None:
    """The base of the first segment in some folders; None without one."""
    names = (name for folder in folders for name in names_in(path_of(folder)))
    return min((int(name) for name in names if is_segment_name(name)), default=None)


def _text(found: Fingerprint) -> str:
    crc = f"CRC-32 {found.crc} of {found.size} bytes"
    return crc if found.index is None else f"index {found.index} (term {found.term}, {crc})"


def _planned(origin: Origin | None) -> str:
    return "" if origin is None else f" as planned on {origin.host}"


def _host() -> str:
    return socket.gethostname()
