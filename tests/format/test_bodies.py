"""Compressed bodies are decompressed within limits, and every error is a problem of its row."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.errors import MalformedError
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.scan.bodies import DecompressionError, decompress, expand
from pyspark_dledger.format.spec import DLEDGER, Compressed, ScanRequest, Segment
from tests.support.generate import Row, compress, mq_message, raw, rows_of, write_dledger
from tests.support.long_runs import examples

CODECS = ("zlib", "lz4", "zstd")
BODY = b"the quick brown fox " * 50
SKIPPABLE = b"\x50\x2a\x4d\x18" + b"\x03\0\0\0" + b"abc"


def decompressed(codec: str, stored: bytes) -> bytes:
    return b"".join(decompress(codec, stored))


# One stream.


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.binary(max_size=300), st.integers(1, 20000))
def test_streams_are_decompressed(codec: str, part: bytes, times: int) -> None:
    assert decompressed(codec, compress(part * times, codec)) == part * times


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncated_stream_fails(codec: str) -> None:
    stored = compress(random.Random(1).randbytes(500) + BODY, codec)
    for length in range(len(stored)):
        with pytest.raises(DecompressionError, match="truncated stream"):
            decompressed(codec, stored[:length])


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_after_the_stream_are_ignored(codec: str) -> None:
    stored = compress(BODY, codec)
    for rest in (b"x", b"\0" * 20, b"garbage"):
        assert decompressed(codec, stored + rest) == BODY


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_consecutive_frames_are_one_body(codec: str) -> None:
    stored = compress(BODY, codec)
    assert decompressed(codec, stored + stored + b"x") == BODY + BODY
    assert decompressed(codec, stored + compress(b"", codec) + stored) == BODY + BODY
    with pytest.raises(DecompressionError, match="truncated stream"):
        decompressed(codec, stored + stored[:-1])
    with pytest.raises(DecompressionError, match="truncated stream"):
        decompressed(codec, stored + SKIPPABLE[:-1])


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_skippable_frames_are_skipped(codec: str) -> None:
    stored = compress(BODY, codec)
    assert decompressed(codec, SKIPPABLE + stored + SKIPPABLE) == BODY


@pytest.mark.parametrize("codec", CODECS)
def test_invalid_streams_fail_with_one_line(codec: str) -> None:
    for stored in (b"x", b"hello world hello world", bytes(100), b"\xff" * 100):
        with pytest.raises(DecompressionError, match=r"^[^\n]+$"):
            decompressed(codec, stored)


@settings(deadline=None, max_examples=examples(120))
@given(st.sampled_from(CODECS), st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_gives_an_error_or_other_bytes(codec: str, at: int, change: int) -> None:
    stored = bytearray(compress(random.Random(2).randbytes(100) + BODY, codec))
    stored[at % len(stored)] ^= change
    with contextlib.suppress(DecompressionError):
        assert len(decompressed(codec, bytes(stored))) < 100_000_000


@pytest.mark.parametrize("options", [{"level": 3}, {"level": 19}])
def test_the_end_of_frames_of_other_writers_is_found(options: dict[str, int]) -> None:
    for size in (0, 1, 255, 256, 300, 65_535, 65_536 + 300, 3_000_000):
        data = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
        stored = pa.Codec("zstd", compression_level=options["level"]).compress(data, asbytes=True)
        assert decompressed("zstd", stored + b"rest") == data
        with pytest.raises(DecompressionError, match="truncated stream"):
            decompressed("zstd", stored[:-1])
        stored = pa.Codec("lz4").compress(data, asbytes=True)
        assert decompressed("lz4", stored + b"rest") == data


# LZ4 frames with every optional field, as the format's own command line writes them (`lz4 -BX -B4 --content-size`
# of "a" and "b" in turns); checksums of blocks are left to the library.
def test_the_end_of_lz4_frames_with_all_optional_fields_is_found() -> None:
    content = b"abcd"
    for flags, fields in ((0x60, b""), (0x68, len(content).to_bytes(8, "little"))):
        descriptor = bytes([flags, 0x40]) + fields
        header = b"\x04\x22\x4d\x18" + descriptor + bytes([xxh32(descriptor) >> 8 & 0xFF])
        block = (len(content) | 0x80000000).to_bytes(4, "little") + content
        frame = header + block + bytes(4)
        assert decompressed("lz4", frame + b"rest") == content
        checked = b"\x04\x22\x4d\x18" + (descriptor := bytes([flags | 0x14, 0x40]) + fields)
        checked += bytes([xxh32(descriptor) >> 8 & 0xFF]) + block + xxh32(content).to_bytes(4, "little")
        checked += bytes(4) + xxh32(content).to_bytes(4, "little")
        assert decompressed("lz4", checked + b"rest") == content
        with pytest.raises(DecompressionError, match="truncated stream"):
            decompressed("lz4", checked[:-1])


def xxh32(data: bytes) -> int:
    """The checksum of LZ4 frames, for less than 16 bytes."""
    assert len(data) < 16
    prime = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (32 - bits)) & mask

    value = prime[4] + len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value = rotate(value + int.from_bytes(data[at : at + 4], "little") * prime[2] & mask, 17) * prime[3] & mask
    for byte in data[whole:]:
        value = rotate(value + byte * prime[4] & mask, 11) * prime[0] & mask
    value = (value ^ value >> 15) * prime[1] & mask
    value = (value ^ value >> 13) * prime[2] & mask
    return value ^ value >> 16


# Rows.


def request_for(tmp_path: Path, payloads: Sequence[Any], **options: Any) -> tuple[ScanRequest, list[Row]]:
    store = write_dledger(tmp_path, payloads, file_size=2**22, with_index=False)
    (segment,) = store.segments
    defaults: dict[str, Any] = {"columns": ("pos", "kind", "problem", "compression", "body")}
    return ScanRequest(segment, 0, store.end, **(defaults | options)), store.rows


def batches(engine: str, request: ScanRequest) -> list[pa.RecordBatch]:
    return list(expand(get_engine(engine).scan(request), request))


@pytest.mark.parametrize("kind", ["legacy", "lz4", "zstd", "zlib"])
def test_scanned_bodies_are_decompressed(engine: str, tmp_path: Path, kind: str) -> None:
    payloads = [raw(b"a"), mq_message(body=BODY, compressed=kind), mq_message(body=BODY), raw(b"b")]
    request, _ = request_for(tmp_path, payloads)
    rows = rows_of(batches(engine, request))
    assert [row["body"] for row in rows] == [b"a", BODY, BODY, b"b"]
    assert [row["problem"] for row in rows] == [None] * 4


def test_an_empty_body_with_the_flag_is_empty(engine: str, tmp_path: Path) -> None:
    request, _ = request_for(
        tmp_path, [mq_message(body=b"", compressed="zstd"), mq_message(body=b"", other_flags=0x701)]
    )
    rows = rows_of(batches(engine, request))
    assert [(row["body"], row["problem"], row["compression"]) for row in rows] == [
        (b"", None, "zstd"),
        (b"", None, None),
    ]


FAILURES = {
    "expected a zlib body of 5 bytes to decompress, found incorrect header check": ("zlib", b"hello"),
    "expected a zlib body of 10 bytes to decompress, found a truncated stream": (
        "zlib",
        zlib.compress(BODY)[:10],
    ),
    "expected a lz4 body of 5 bytes to decompress, found the magic 0x6c6c6568": ("lz4", b"hello"),
    "expected a zstd body of 3 bytes to decompress, found a truncated stream": ("zstd", b"\x28\xb5\x2f"),
    "expected a body of at most 999 bytes decompressed, found more": ("zlib", zlib.compress(BODY)),
    "expected compression type 0 to 3, found 5": ("unknown", b"hello"),
}


@pytest.mark.parametrize("problem", FAILURES)
def test_an_error_is_the_problem_of_its_row(engine: str, tmp_path: Path, problem: str) -> None:
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201, "unknown": 0x501}
    kind, stored = FAILURES[problem]
    payloads = [mq_message(body=b"first"), mq_message(body=stored, other_flags=flags[kind]), mq_message(body=b"last")]
    request, written = request_for(tmp_path, payloads, max_body_bytes=999)
    rows = rows_of(batches(engine, request))
    assert [row["body"] for row in rows] == [b"first", None, b"last"]
    assert [row["problem"] for row in rows] == [None, problem, None]

    # Without the column `problem` the body is null. Without `body` it is checked too.
    assert [row["body"] for row in rows_of(batches(engine, dataclasses.replace(request, columns=("body",))))] == [
        *(b"first", None, b"last"),
    ]
    only = dataclasses.replace(request, columns=("problem",))
    assert [row["problem"] for row in rows_of(batches(engine, only))] == [None, problem, None]

    for columns in (("pos",), ("pos", "body"), ("pos", "problem")):
        dropping = dataclasses.replace(request, mode="DROPMALFORMED", columns=columns)
        assert [row["pos"] for row in rows_of(batches(engine, dropping))] == [0, written[2]["pos"]]
        failing = dataclasses.replace(request, mode="FAILFAST", columns=columns)
        seen: list[list[Row]] = []
        with pytest.raises(MalformedError) as raised:
            seen.extend(rows_of([batch]) for batch in expand(get_engine(engine).scan(failing), failing))
        assert f": message at {written[1]['pos']}: {problem}; mode=PERMISSIVE keeps" in str(raised.value)


def test_an_earlier_problem_stays(engine: str, tmp_path: Path) -> None:
    payload = mq_message(body=b"hello", other_flags=0x301, born_timestamp=-(2**62))
    request, _ = request_for(tmp_path, [payload])
    (row,) = rows_of(batches(engine, request))
    assert row["body"] is None
    assert row["problem"].startswith("expected bornTimestamp")


def test_a_body_of_the_maximum_size_is_decompressed(engine: str, tmp_path: Path) -> None:
    payloads = [mq_message(body=BODY, compressed=kind) for kind in CODECS]
    request, _ = request_for(tmp_path, payloads, max_body_bytes=len(BODY))
    assert [row["body"] for row in rows_of(batches(engine, request))] == [BODY] * 3
    request = dataclasses.replace(request, max_body_bytes=len(BODY) - 1)
    assert [row["body"] for row in rows_of(batches(engine, request))] == [None] * 3


def test_batches_are_cut_by_decompressed_bytes(engine: str, tmp_path: Path) -> None:
    payloads = [raw(b"%d" % n) if n % 3 else mq_message(body=BODY, compressed="zstd") for n in range(30)]
    request, written = request_for(tmp_path, payloads, max_batch_bytes=2500)
    found = batches(engine, request)
    assert [row["body"] for row in rows_of(found)] == [row["body"] for row in written]
    for batch in found:
        assert sum(row["compression"] == "zstd" for row in rows_of([batch])) <= 2
    one_by_one = batches(engine, dataclasses.replace(request, max_batch_bytes=500))
    assert [row["body"] for row in rows_of(one_by_one)] == [row["body"] for row in written]


def test_a_batch_without_compressed_bodies_is_not_changed() -> None:
    request = ScanRequest(Segment.local("/none", "none", 0, 0, DLEDGER), 0, 0, ("pos", "body"))
    batch = pa.record_batch(
        [pa.array([1], pa.int64()), pa.array([b"x"], pa.binary())], schema=arrow_schema(request.columns)
    )
    (out,) = expand([(batch, [])], request)
    assert out is batch


def test_failfast_returns_the_rows_before_the_error() -> None:
    request = ScanRequest(Segment.local("/none", "none", 0, 0, DLEDGER), 0, 0, ("pos",), mode="FAILFAST")
    batch = pa.record_batch([pa.array([1, 2, 3], pa.int64())], schema=arrow_schema(request.columns))
    stream = expand([(batch, [Compressed(1, 0, b"?", 2)])], request)
    assert next(stream).to_pydict() == {"pos": [1]}
    with pytest.raises(MalformedError, match="message at 2: expected a zlib body of 1 bytes"):
        next(stream)


BOMB = """
import os, sys
from tests.support.processes import peak_memory
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.spec import Compressed, DLEDGER, ScanRequest, Segment
import pyarrow as pa

codec, path = sys.argv[1:]
stored = open(path, "rb").read()
request = ScanRequest(Segment.local("/none", "none", 0, 0, DLEDGER), 0, 0, ("problem", "body"), max_body_bytes=2**20)
arrays = [pa.array([None], pa.string()), pa.array([b""], pa.binary())]
batch = pa.record_batch(arrays, schema=arrow_schema(request.columns))
before = peak_memory(os.getpid())
(out,) = expand([(batch, [Compressed(0, {"zlib": 0, "lz4": 1, "zstd": 2}[codec], stored, 0)])], request)
after = peak_memory(os.getpid())
print(out.to_pydict(), after - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_decompression_stops_at_the_limit(tmp_path: Path, codec: str) -> None:
    zeros = bytes(2**20)
    path = tmp_path / "bomb"
    if codec == "zlib":
        stream = zlib.compressobj(9)
        path.write_bytes(b"".join(stream.compress(zeros) for _ in range(512)) + stream.flush())
    else:
        with pa.CompressedOutputStream(str(path), codec) as out:
            for _ in range(512):
                out.write(zeros)
    run = subprocess.run([sys.executable, "-c", BOMB, codec, str(path)], capture_output=True, text=True, check=True)
    values, grown = run.stdout.rstrip().rsplit(" ", 1)
    problem = "expected a body of at most 1048576 bytes decompressed, found more"
    assert values == str({"problem": [problem], "body": [None]})
    assert int(grown) < 64 * 2**20
