"""A file that is written and read back with direct I/O has the right bytes on every kind of disk and system."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.spec import COMMITLOG, ScanRequest, Segment
from pyspark_dledger.rocketmq.jobs import new_files
from pyspark_dledger.rocketmq.jobs.new_files import DirectFile, FileWindow
from tests.support.generate import COLUMN_NAMES, Row, mq_message, rows_of, write_commitlog
from tests.support.long_runs import examples

BLOCK = 4096
BUFFER_SIZE = 2 * BLOCK
DIRECT = getattr(os, "O_DIRECT", 0)
Ranges = list[tuple[int, int]]

pytestmark = pytest.mark.usefixtures("no_fsync")
needs_direct = pytest.mark.skipif(not DIRECT, reason="the system has no direct I/O")


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT)


# Kinds of disks and systems.


def as_it_is(_patch: pytest.MonkeyPatch) -> None:
    pass


def without_the_flag(patch: pytest.MonkeyPatch) -> None:
    """A system without direct I/O."""
    patch.setattr(new_files, "_DIRECT", 0)


def refusing_the_flag(patch: pytest.MonkeyPatch) -> None:
    """A file system that rejects the flag for direct I/O."""
    control = fcntl.fcntl

    def refuse(descriptor: int, command: int, *given: int) -> int:
        if command == fcntl.F_SETFL and given[0] & DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return control(descriptor, command, *given)

    patch.setattr(fcntl, "fcntl", refuse)


def refusing(patch: pytest.MonkeyPatch, *names: str) -> None:
    """A file system that accepts the flag and rejects each direct call."""
    for name in names:
        patch.setattr(os, name, _unless_direct(getattr(os, name)))


def _unless_direct(call: Callable[..., int]) -> Callable[..., int]:
    def refuse(descriptor: int, *given: Any) -> int:
        if is_direct(descriptor):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return call(descriptor, *given)

    return refuse


def refusing_writes(patch: pytest.MonkeyPatch) -> None:
    refusing(patch, "pwrite", "preadv")


def refusing_reads(patch: pytest.MonkeyPatch) -> None:
    refusing(patch, "preadv")


def doing_less(patch: pytest.MonkeyPatch, limit: int) -> None:
    """A disk that writes and reads less than requested."""
    write, read = os.pwrite, os.preadv
    patch.setattr(os, "pwrite", lambda descriptor, data, at: write(descriptor, data[:limit], at))
    patch.setattr(os, "preadv", lambda descriptor, places, at: read(descriptor, [places[0][:limit]], at))


def doing_less_in_blocks(patch: pytest.MonkeyPatch) -> None:
    doing_less(patch, BLOCK)


def doing_less_in_bytes(patch: pytest.MonkeyPatch) -> None:
    """Direct I/O cannot continue in the middle of a block."""
    doing_less(patch, 1000)


def without_files_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(os, "memfd_create", raising=False)


DISKS = (
    as_it_is,
    without_the_flag,
    refusing_the_flag,
    refusing_writes,
    refusing_reads,
    doing_less_in_blocks,
    doing_less_in_bytes,
    without_files_in_memory,
)


@pytest.fixture(params=DISKS, ids=[each.__name__ for each in DISKS])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    request.param(monkeypatch)


@pytest.fixture(autouse=True)
def _small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small files take many writes."""
    monkeypatch.setattr(new_files, "BUFFER_SIZE", BUFFER_SIZE)


def near_blocks(limit: int) -> st.SearchStrategy[int]:
    """Sizes and positions near the ends of blocks, and others."""
    blocks, more = st.integers(0, limit // BLOCK), st.integers(-2, 2)
    near = st.tuples(blocks, more).map(lambda pair: max(0, pair[0] * BLOCK + pair[1]))
    return st.one_of(near, st.integers(0, limit))


def ranges_of(limit: int) -> st.SearchStrategy[Ranges]:
    one = st.tuples(near_blocks(limit), near_blocks(4 * BLOCK)).map(lambda pair: (pair[0], pair[0] + pair[1] + 1))
    return st.lists(one, max_size=6)


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def pieces_of(data: bytes, size: int = 3000) -> list[bytes]:
    """The data in pieces."""
    return [data[start : start + size] for start in range(0, len(data), size)]


def written(path: Path, pieces: Sequence[bytes], size: int) -> DirectFile:
    """A file of `size` bytes that begins with the pieces."""
    file = DirectFile(path)
    for piece in pieces:
        given = bytearray(piece)
        file.append(given)
        given[:] = b"?" * len(given)  # a later change has no effect
    file.finish(size)
    return file


def read_back(file: DirectFile, ranges: Ranges) -> list[bytes]:
    windows = file.read(ranges)
    return [bytes(window.data(*each)) for each, window in zip(ranges, windows, strict=True)]


# Bytes.


@pytest.mark.usefixtures("disk")
@settings(max_examples=examples(30), deadline=None)
@given(sizes=st.lists(near_blocks(5 * BLOCK), max_size=6), zeros=near_blocks(3 * BLOCK), ranges=ranges_of(40 * BLOCK))
def test_a_file_has_the_appended_bytes_and_then_zeros(
    folder: Callable[[], Path], sizes: list[int], zeros: int, ranges: Ranges
) -> None:
    pieces = [some_bytes(size) for size in sizes]
    expected = b"".join(pieces) + bytes(zeros)
    path = folder() / "file"
    with written(path, pieces, len(expected)) as file:
        assert path.read_bytes() == expected
        assert read_back(file, ranges) == [expected[start:end] for start, end in ranges]
    assert path.read_bytes() == expected


@settings(max_examples=examples(10), deadline=None)
@given(size=near_blocks(9 * BLOCK), number=st.integers(1, 4))
def test_the_size_of_the_buffer_does_not_change_the_file(
    folder: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, size: int, number: int
) -> None:
    monkeypatch.setattr(new_files, "BUFFER_SIZE", number * BLOCK)
    data, path = some_bytes(size), folder() / "file"
    with written(path, pieces_of(data), size) as file:
        assert read_back(file, [(0, size + 1)]) == [data]
    assert path.read_bytes() == data


@pytest.mark.parametrize("size", [16 << 20, (16 << 20) + 1, (40 << 20) + 12_345])
def test_a_large_file_has_the_right_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.undo()
    data = some_bytes(size)
    expected = data + bytes(100)
    with written(tmp_path / "file", pieces_of(data, 1_000_003), size + 100) as file:
        found = b"".join(read_back(file, [(0, 1000), (1000, 16 << 20), (16 << 20, size + 200)]))
    # `assert` would print all bytes.
    assert len(found) == len(expected)
    assert (found == expected, (tmp_path / "file").read_bytes() == expected) == (True, True)


@pytest.mark.usefixtures("disk")
def test_a_window_after_the_end_of_the_file_is_empty(tmp_path: Path) -> None:
    with written(tmp_path / "file", [b"x" * 5000], 5000) as file:
        ranges = [(4990, 5010), (5000, 5001), (8192, 9000), (100_000, 100_001), (0, 3)]
        assert read_back(file, ranges) == [b"x" * 10, b"", b"", b"", b"xxx"]


@pytest.mark.usefixtures("disk")
def test_the_same_ranges_can_be_read_again_and_in_any_order(tmp_path: Path) -> None:
    data = some_bytes(10 * BLOCK + 7)
    ranges = [(start, start + 5000) for start in range(0, len(data), 3000)]
    with written(tmp_path / "file", [data], len(data)) as file:
        for order in (ranges, ranges[::-1], ranges):
            assert read_back(file, order) == [data[start:end] for start, end in order]


def test_without_ranges_there_are_no_windows(tmp_path: Path) -> None:
    with written(tmp_path / "file", [b"x"], 1) as file:
        assert read_back(file, []) == []


@pytest.mark.usefixtures("disk")
def test_the_whole_file_is_written_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, path, found = some_bytes(7 * BLOCK + 1), tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: found.append(path.read_bytes()))
    with written(path, pieces_of(data), 10 * BLOCK + 1):
        assert found == [data + bytes(3 * BLOCK)]


def test_a_window_is_unchanged_while_the_next_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reads = some_bytes(6 * BLOCK), threading.Semaphore(0)
    read = os.preadv

    def count(*given: Any) -> int:
        try:
            return read(*given)
        finally:
            reads.release()

    monkeypatch.setattr(os, "preadv", count)
    ranges = [(start, start + BLOCK) for start in range(0, len(data), BLOCK)]
    with written(tmp_path / "file", [data], len(data)) as file:
        for (start, end), window in zip(ranges, file.read(ranges), strict=True):
            # Of the first window, and of the next one.
            for _ in range((start == 0) + (end < len(data))):
                assert reads.acquire(timeout=60)
            assert bytes(window.data(start, end)) == data[start:end]


# Direct I/O.


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call that reached the disk: whether it was direct."""
    seen: list[bool] = []
    for name in ("pwrite", "preadv"):
        monkeypatch.setattr(os, name, _noting(getattr(os, name), seen))
    return seen


def _noting(call: Callable[..., int], seen: list[bool]) -> Callable[..., int]:
    def note(descriptor: int, *given: Any) -> int:
        done = call(descriptor, *given)
        seen.append(is_direct(descriptor))
        return done

    return note


def supports_direct(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | DIRECT))
    except OSError:
        return False
    return True


@needs_direct
def test_all_calls_are_direct_if_the_disk_supports_it(tmp_path: Path, flags: list[bool]) -> None:
    if not supports_direct(tmp_path):
        pytest.skip("the file system has no direct I/O")
    with written(tmp_path / "file", pieces_of(some_bytes(9 * BLOCK + 1)), 10 * BLOCK) as file:
        read_back(file, [(1, 5 * BLOCK), (5 * BLOCK, 10 * BLOCK)])
    assert len(flags) > 5
    assert all(flags)


@needs_direct
@pytest.mark.parametrize("refuse", [without_the_flag, refusing_the_flag, refusing_writes])
def test_a_disk_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[bool],
    refuse: Callable[[pytest.MonkeyPatch], None],
) -> None:
    refuse(monkeypatch)
    dropped: Ranges = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, start, size, _advice: dropped.append((start, size)))
    with written(tmp_path / "file", pieces_of(some_bytes(9 * BLOCK + 1)), 10 * BLOCK) as file:
        read_back(file, [(1, 5 * BLOCK), (5 * BLOCK, 10 * BLOCK)])
    assert len(flags) > 5
    assert not any(flags)
    assert dropped == [(0, 5 * BLOCK), (5 * BLOCK, 5 * BLOCK), (0, 0)], (
        "each range before it is read, and all at the end"
    )


@needs_direct
def test_after_one_rejected_call_no_call_is_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supports_direct(tmp_path):
        pytest.skip("the file system has no direct I/O")
    write, tried = os.pwrite, []

    def refuse_third(descriptor: int, *given: Any) -> int:
        tried.append(is_direct(descriptor))
        if len(tried) == 3:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return write(descriptor, *given)

    monkeypatch.setattr(os, "pwrite", refuse_third)
    data = some_bytes(9 * BLOCK + 1)
    with written(tmp_path / "file", pieces_of(data), len(data)) as file:
        assert read_back(file, [(0, len(data))]) == [data]
    assert tried[:3] == [True] * 3
    assert tried[3:] == [False] * (len(tried) - 3) != []


def test_a_system_that_cannot_drop_its_cache_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_flag(monkeypatch)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with written(tmp_path / "file", [b"x" * 5000], 5000) as file:
        assert read_back(file, [(0, 6000)]) == [b"x" * 5000]


# Errors.


def open_files() -> set[str]:
    return set(os.listdir("/dev/fd"))


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("dledger-file")]


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """After the test nothing is open and no thread runs."""
    before = open_files()
    yield
    gc.collect()  # an error and its frame may refer to each other
    assert open_files() - before == set()
    assert threads() == []


def failing_from(patch: pytest.MonkeyPatch, name: str, number: int, code: int) -> None:
    """All calls from this number on raise."""
    call, count = getattr(os, name), iter(range(10**6))

    def fail(*given: Any) -> int:
        if next(count) >= number:
            raise OSError(code, os.strerror(code))
        return call(*given)

    patch.setattr(os, name, fail)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("size", [4 * BUFFER_SIZE, 4 * BUFFER_SIZE - 1, 20 * BUFFER_SIZE])
def test_an_error_of_a_write_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, number: int, size: int
) -> None:
    failing_from(monkeypatch, "pwrite", number, code)
    with pytest.raises(OSError, match=os.strerror(code)):
        write_whole(tmp_path / "file", some_bytes(size))


def write_whole(path: Path, data: bytes) -> None:
    with DirectFile(path) as file:
        append_all(file, data)
        file.finish(len(data))


def append_all(file: DirectFile, data: bytes) -> None:
    for piece in pieces_of(data):
        file.append(piece)


@pytest.mark.usefixtures("leaves_nothing")
def test_an_error_of_the_last_write_is_raised_by_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_from(monkeypatch, "pwrite", 0, errno.ENOSPC)
    with DirectFile(tmp_path / "file") as file:
        file.append(b"some bytes")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.finish(BLOCK)


@pytest.mark.usefixtures("leaves_nothing")
def test_after_an_error_every_call_raises_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the caller ignores it: no file has bytes after a hole."""
    failing_from(monkeypatch, "pwrite", 1, errno.EIO)
    with DirectFile(tmp_path / "file") as file:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            append_all(file, some_bytes(10 * BUFFER_SIZE))
        for call in (lambda: file.append(some_bytes(BUFFER_SIZE)), lambda: file.finish(BLOCK)):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                call()


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("name", ["ftruncate", "fsync"])
def test_an_error_of_finish_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    failing_from(monkeypatch, name, 0, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_whole(tmp_path / "file", b"some bytes")


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_an_error_of_a_read_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int) -> None:
    """The windows before it are valid."""
    data = some_bytes(3 * BLOCK)
    without_the_flag(monkeypatch)
    with written(tmp_path / "file", [data], len(data)) as file:
        failing_from(monkeypatch, "preadv", number, code)
        ranges = [(start, start + BLOCK) for start in range(0, len(data), BLOCK)]
        windows = file.read(ranges)
        for start, end in ranges[:number]:
            assert bytes(next(windows).data(start, end)) == data[start:end]
        with pytest.raises(OSError, match=os.strerror(code)):
            next(windows)


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("number", [1, 100])
def test_a_reader_that_stops_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Even if the next window cannot be read."""
    with written(tmp_path / "file", [some_bytes(3 * BLOCK)], 3 * BLOCK) as file:
        failing_from(monkeypatch, "preadv", number, errno.EIO)
        windows = file.read([(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 3 * BLOCK)])
        next(windows)
        windows.close()


@pytest.mark.usefixtures("leaves_nothing")
def test_an_unfinished_file_leaves_nothing_open(tmp_path: Path) -> None:
    with DirectFile(tmp_path / "one"):
        pass
    with DirectFile(tmp_path / "two") as file:
        append_all(file, some_bytes(5 * BLOCK))
    with DirectFile(tmp_path / "three") as file:
        file.finish(0)
    assert (tmp_path / "three").read_bytes() == b""


@pytest.mark.usefixtures("leaves_nothing")
def test_an_existing_file_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")
    with written(tmp_path / "other", [b"x"], 1), pytest.raises(FileExistsError):
        DirectFile(tmp_path / "other")
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert (tmp_path / "other").read_bytes() == b"x"


# Windows as segments.


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("base", [0, 1 << 40])
def test_a_window_is_read_as_a_segment(
    reader: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: int, in_memory: bool
) -> None:
    if not in_memory:
        without_files_in_memory(monkeypatch)
    payloads = [
        mq_message("Orders", some_bytes(500 + number), properties=[("TAGS", "a")], queue_offset=number)
        for number in range(100)
    ]
    store = write_commitlog(tmp_path, payloads, file_size=1 << 17, base=base)
    [segment] = store.segments
    content = Path(segment.path).read_bytes()
    groups = [store.rows[first : first + 7] for first in range(0, len(store.rows), 7)]
    ranges = [(rows[0]["pos"] - base, rows[-1]["pos"] + rows[-1]["size"] - base) for rows in groups]
    with written(tmp_path / "file", [content], len(content)) as file:
        for each, rows, window in zip(ranges, groups, file.read(ranges), strict=True):
            assert rows_in(reader, window, segment, *each) == rows


def rows_in(reader: Engine, window: FileWindow, segment: Segment, start: int, end: int) -> list[Row]:
    start_pos = segment.base + window.start
    part = Segment.local(window.path, segment.name, start_pos, window.end - window.start, COMMITLOG)
    request = ScanRequest(part, segment.base + start, segment.base + end, COLUMN_NAMES, end_is_boundary=True)
    return rows_of(expand(reader.scan(request), request))


def test_rows_of_a_window_outlive_it(reader: Engine, tmp_path: Path) -> None:
    """The next window of the next file may have the same path."""
    payloads = [mq_message(body=some_bytes(600), queue_offset=number) for number in range(6)]
    store = write_commitlog(tmp_path, payloads, file_size=3 * BLOCK)
    [segment] = store.segments
    content, found = Path(segment.path).read_bytes(), []
    first, last = (0, store.rows[3]["pos"]), (store.rows[3]["pos"], store.end)
    for name, ranges in (("one", [first, last]), ("two", [last, first])):
        with written(tmp_path / name, [content], len(content)) as file:
            for each, window in zip(ranges, file.read(ranges), strict=True):
                found.append(rows_in(reader, window, segment, *each))
    assert found == [store.rows[:3], store.rows[3:], store.rows[3:], store.rows[:3]]


@pytest.mark.usefixtures("leaves_nothing")
def test_without_memory_no_file_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **_named: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(new_files.mmap, "mmap", none_left)
    with pytest.raises(OSError, match="no memory"):
        DirectFile(tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.usefixtures("leaves_nothing")
def test_a_window_without_memory_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DirectFile(tmp_path / "file") as file:
        file.append(bytes(10))
        file.finish(10)
        mmap, given = new_files.mmap.mmap, iter(range(10))

        def one_left(*size: int) -> object:
            if next(given):
                raise OSError(errno.ENOMEM, "no memory")
            return mmap(*size)

        monkeypatch.setattr(new_files.mmap, "mmap", one_left)
        with pytest.raises(OSError, match="no memory"):
            next(file.read([(0, 10)]))


def test_an_empty_range_is_an_empty_window(tmp_path: Path) -> None:
    with DirectFile(tmp_path / "file") as file:
        file.append(bytes(10))
        file.finish(10)
        assert [bytes(window.data(5, 2)) for window in file.read([(0, 0)])] == [b""]
