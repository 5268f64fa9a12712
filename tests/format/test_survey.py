"""The survey of a segment: every problem is found, intact logs have none, and both engines agree."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format import codec, native_engine
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.spec import (
    COMMITLOG,
    DLEDGER,
    Extent,
    PrecedingEntry,
    Problem,
    Segment,
    Survey,
    SurveyRequest,
)
from tests.format.test_engines import budget
from tests.support import generate
from tests.support.damage import write_log
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger

KINDS = ("entry", "message", "blank", "unwritten", "stale", "corrupt")


def survey(reader: Engine, segment: Segment, end: int | None = None, **options: Any) -> Survey:
    return reader.survey(SurveyRequest(segment, segment.base, segment.end if end is None else end, **options))


class Seen(NamedTuple):
    """A problem with its sentence."""

    code: str
    pos: int
    size: int
    number: int | None
    text: str


def seen(segment: Segment, problem: Problem) -> Seen:
    return Seen(problem.code, problem.pos, problem.size, problem.index, problem.fact.sentence(segment.name))


def all_seen(segment: Segment, found: Survey) -> list[Seen]:
    return [seen(segment, problem) for problem in found.problems]


def entries(root: Path, count: int = 4) -> Store:
    """Entries of 53 bytes with indexes from 0, in a file of 4 KiB."""
    return write_dledger(root, [raw(b"12345")] * count)


def assert_partition(found: Survey, segment: Segment, start: int) -> None:
    ends = [start, *(extent.pos + extent.size for extent in found.extents)]
    assert [extent.pos for extent in found.extents] == ends[:-1]
    assert ends[-1] == segment.end
    assert tuple(found.sizes) == KINDS
    for kind in KINDS:
        assert found.sizes[kind] == sum(extent.size for extent in found.extents if extent.kind == kind)
    assert all(one.kind != other.kind for one, other in zip(found.extents, found.extents[1:], strict=False))


# Counts.


@pytest.mark.slow
@budget(30)
@given(recipe=generate.recipes())
def test_an_intact_store_has_no_problems(reader: Engine, folder: Callable[[], Path], recipe: generate.Recipe) -> None:
    recipe.options.pop("stale", None)
    store = recipe.write(folder())
    for segment in store.segments:
        rows = store.rows_of(segment)
        end = min(segment.end, store.end)
        found = survey(reader, segment, end)
        assert_partition(found, segment, segment.base)
        messages = [row for row in rows if row["kind"] == "message"]
        assert (found.entries, found.messages) == (len(rows), len(messages))
        assert (found.first_pos, found.last_pos) == (rows[0]["pos"], rows[-1]["pos"])
        if recipe.source == DLEDGER:
            assert (found.first_index, found.first_term) == (rows[0]["index"], rows[0]["term"])
            assert (found.last_index, found.last_term) == (rows[-1]["index"], rows[-1]["term"])
        assert found.sizes["message"] == sum(row["size"] for row in messages)
        assert found.sizes["entry"] + found.sizes["message"] == sum(row["size"] for row in rows)
        assert found.sizes["corrupt"] == found.sizes["stale"] == 0
        # Any timestamp is possible, and a leader's pos.
        assert set(found.counts) <= {"messageTimestamp", "posDiffers"}


def test_timestamps_are_those_of_the_first_and_last_message(reader: Engine, tmp_path: Path) -> None:
    payloads = [raw(b"a"), *(mq_message("T", store_timestamp=time) for time in (1700, 1800, 1650)), raw(b"b")]
    (segment,) = write_dledger(tmp_path, payloads).segments
    found = survey(reader, segment)
    assert (found.first_store_timestamp, found.last_store_timestamp, found.messages) == (1700, 1650, 3)
    empty = survey(reader, segment, segment.base)
    assert (empty.entries, empty.first_index, empty.first_pos, empty.first_store_timestamp) == (0, -1, -1, -1)


# Each problem.


def only_problem(reader: Engine, segment: Segment, end: int, **options: Any) -> Seen:
    found = survey(reader, segment, end, **options)
    (problem,) = found.problems
    assert found.counts == {problem.code: 1}
    assert_partition(found, segment, segment.base)
    return seen(segment, problem)


def test_corrupt_bytes(reader: Engine, tmp_path: Path) -> None:
    store = entries(tmp_path)
    (segment,) = store.segments
    write_log(segment, 53, bytes(48))
    assert only_problem(reader, segment, store.end) == Seen(
        "corruptBytes", 53, 53, None, "expected an entry at 53, found zeros"
    )
    found = survey(reader, segment, store.end)
    assert found.extents == [
        Extent("entry", 0, 53),
        Extent("corrupt", 53, 53),
        Extent("entry", 106, 106),
        Extent("unwritten", 212, segment.end - 212),
    ]


@pytest.mark.parametrize("keep", [0, 60, 106])
def test_short_file(reader: Engine, tmp_path: Path, keep: int) -> None:
    store = entries(tmp_path)
    (segment,) = store.segments
    os.truncate(segment.path, keep)
    text = f"expected 4096 bytes in {segment.name}, found {keep}"
    start = keep - keep % 53
    found = survey(reader, segment)
    assert all_seen(segment, found) == [Seen("shortFile", start, 4096 - start, None, text)]
    # The end of the log is after the file's end: one extent of this kind, but two problems.
    assert {problem.code for problem in survey(reader, segment, 200).problems} == {"shortFile"}


HEADER_PROBLEMS = [
    (8, 8, 7, "indexGap", "expected index 2, found 7"),
    (16, 8, 0, "termOrder", "expected term >= 1, found 0"),
    (32, 4, 5, "headerField", "expected channel 0 and chainCrc 0, found channel 5 and chainCrc 0"),
    (36, 4, -5, "headerField", "expected channel 0 and chainCrc 0, found channel 0 and chainCrc -5"),
    (40, 4, 99, "bodyCrc", f"expected bodyCrc 99, found {codec.signed32(codec.crc32(b'12345'))}"),
]


@pytest.mark.parametrize(("offset", "size", "value", "code", "text"), HEADER_PROBLEMS)
def test_header_problems(
    reader: Engine, tmp_path: Path, offset: int, size: int, value: int, code: str, text: str
) -> None:
    store = entries(tmp_path, 3)
    (segment,) = store.segments
    write_log(segment, 106 + offset, value.to_bytes(size, "big", signed=True))
    index = 7 if code == "indexGap" else 2
    assert only_problem(reader, segment, store.end) == Seen(code, 106, 53, index, text)


def test_an_index_gap_after_damage_is_larger_than_the_damage_explains(reader: Engine, tmp_path: Path) -> None:
    store = entries(tmp_path, 6)
    (segment,) = store.segments
    write_log(segment, 53, bytes(106))
    assert survey(reader, segment, store.end).counts == {"corruptBytes": 1}
    write_log(segment, 159, codec.encode_entry(9, 1, 159, b"12345") + codec.encode_entry(10, 1, 212, b"12345"))
    write_log(segment, 265, codec.encode_entry(11, 1, 265, b"12345"))
    found = survey(reader, segment, store.end)
    assert [problem.text for problem in all_seen(segment, found) if problem.code == "indexGap"] in (
        ["expected index 1 to 3, found 9"],
        [],  # without other entries they are not of this log
    )


def test_pos_differs_is_listed_once(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"12345")] * 4, check_pos=False, pos_shift=11)
    (segment,) = store.segments
    found = survey(reader, segment, store.end)
    assert all_seen(segment, found) == [Seen("posDiffers", 0, 53, 0, "expected pos 0, found -11")]
    assert found.counts == {"posDiffers": 4}


MESSAGE_PROBLEMS = [
    (0, b"\0\0\0\7", "messageStructure", "expected totalSize 100 at 48, found 7"),
    (28, bytes(8), "messageOffset", "expected physicalOffset 48, found 0"),
    (8, b"\0\0\0\1", "messageCrc", f"expected message CRC 1, found {codec.crc32(b'body') & 0x7FFFFFFF}"),
    (
        40,
        b"\x7f" * 8,
        "messageTimestamp",
        "expected bornTimestamp within years 1 to 9999, found 9187201950435737471 ms",
    ),
]


@pytest.mark.parametrize(("offset", "data", "code", "text"), MESSAGE_PROBLEMS)
def test_message_problems(reader: Engine, tmp_path: Path, offset: int, data: bytes, code: str, text: str) -> None:
    store = write_dledger(tmp_path, [mq_message("T", b"body", properties=[("a", "b")])])
    (segment,) = store.segments
    write_log(segment, 48 + offset, data)
    assert only_problem(reader, segment, store.end) == Seen(code, 0, 148, 0, text)
    kind = "entry" if code == "messageStructure" else "message"
    assert survey(reader, segment, store.end).sizes[kind] == 148
    if code == "messageCrc":
        assert survey(reader, segment, store.end, verify_crc=False).problems == []


def test_property_crc_of_an_old_message(reader: Engine, tmp_path: Path) -> None:
    store = write_commitlog(tmp_path, [mq_message("T", property_crc=True, queue_id=1)])
    (segment,) = store.segments
    write_log(segment, 15, b"\2")
    problem = only_problem(reader, segment, store.end)
    assert (problem.code, problem.pos, problem.number) == ("propertyCrc", 0, None)
    assert segment.source == COMMITLOG


def test_a_blank_of_a_wrong_size(reader: Engine, tmp_path: Path) -> None:
    store = entries(tmp_path, 1)
    (segment,) = store.segments
    write_log(segment, 53, codec.encode_blank(99))
    text = "expected a blank of 4043 bytes at 53, found 99"
    assert only_problem(reader, segment, segment.end) == Seen("blankSize", 53, 4043, None, text)
    # After a snapshot DLedger 0.4.0 begins a file with a blank, before the file has entries.
    Path(segment.path).write_bytes(codec.encode_blank(99).ljust(4096, b"\0"))
    assert survey(reader, dataclasses.replace(segment, check_pos=False)).problems == []


def test_bytes_after_the_end(reader: Engine, tmp_path: Path) -> None:
    store = entries(tmp_path, 2)
    (segment,) = store.segments
    write_log(
        segment, 110, codec.encode_entry(7, 0, 110, b"stale") + codec.encode_entry(8, 0, 163, b"stale") + b"noise"
    )
    found = survey(reader, segment, store.end)
    assert found.extents == [
        Extent("entry", 0, 106),
        Extent("stale", 106, 110),
        Extent("corrupt", 216, 5),
        Extent("unwritten", 221, 4096 - 221),
    ]
    assert all_seen(segment, found) == [
        Seen("staleBytes", 106, 110, 7, "expected zeros after the log's end at 106, found 2 whole entries up to 216"),
        Seen("trailingBytes", 216, 5, None, "expected zeros after the log's end at 216, found 5 bytes"),
    ]
    write_log(segment, 216, codec.encode_blank(4096 - 216))
    assert survey(reader, segment, store.end).extents[-1] == Extent("blank", 216, 4096 - 216)


def test_lists_are_limited_and_counts_are_not(reader: Engine, tmp_path: Path) -> None:
    store = entries(tmp_path, 40)
    (segment,) = store.segments
    for number in range(1, 40, 2):
        write_log(segment, 53 * number, bytes(48))
        write_log(segment, 53 * number - 53 + 32, b"\1")
    found = survey(reader, segment, store.end, max_problems=3)
    assert found.counts == {"corruptBytes": 20, "headerField": 20}
    assert len(found.problems) == 6
    assert len(found.extents) == 3
    assert sum(found.sizes.values()) == segment.size


# Both engines, and changing files.


@pytest.mark.slow
@budget(75)
@given(recipe=generate.recipes(), damage=generate.damages(), data=st.data())
def test_engines_agree_and_every_byte_has_one_kind(
    folder: Callable[[], Path], recipe: generate.Recipe, damage: Callable[[Store], None], data: st.DataObject
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        if data.draw(st.booleans()):
            segment = dataclasses.replace(segment, before=PrecedingEntry(3, 1, max(segment.base - 9, 0)))
        end = data.draw(st.sampled_from([segment.end, store.end, segment.base, segment.base + segment.size // 2]))
        request = SurveyRequest(segment, segment.base, end, data.draw(st.booleans()))
        found = get_engine("native").survey(request)
        assert found == get_engine("python").survey(request)
        assert_partition(found, segment, segment.base)
        listed = [problem.code for problem in found.problems if problem.code != "posDiffers"]
        assert {code: listed.count(code) for code in set(listed)} == {
            code: count for code, count in found.counts.items() if code != "posDiffers"
        }


def test_a_file_truncated_during_a_survey_raises_no_signal(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 976)] * 8000, file_size=2**23, with_index=False)
    (segment,) = store.segments
    found: list[Survey] = []
    started = threading.Event()

    def run() -> None:
        for _ in range(300):
            found.append(native_engine.survey(SurveyRequest(segment, 0, segment.end)))
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    os.truncate(segment.path, 2**20)
    thread.join()
    assert {one.entries for one in found} <= {8000, 1024}
    assert found[-1].entries == 1024
    assert found[-1].problems[-1].code == "shortFile"
    assert all(sum(one.sizes.values()) == segment.size for one in found)
