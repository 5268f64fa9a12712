"""Problems are codes with values, the same in both engines; sentences are made of them in one catalogue."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from pyspark_dledger import _native
from pyspark_dledger.errors import UnreadableError
from pyspark_dledger.format.engine import Engine, get_engine
from pyspark_dledger.format.facts import PROBLEM_CODES, TIMES, Fact, ProblemCode
from pyspark_dledger.format.scan.bodies import expand
from pyspark_dledger.format.spec import SurveyRequest
from pyspark_dledger.log.copies.segment_copy import TIMES_AND_POSITION, is_damage
from pyspark_dledger.log.io.unread_files import READ_COLUMNS, check_fact, read_error
from pyspark_dledger.log.verify.findings import CODES
from tests.format.test_engines import Damage, budget, request_of
from tests.support import generate
from tests.support.damage import write_at
from tests.support.generate import mq_message, raw, write_dledger

FACTS = ("pos", "kind", "problem", "problemCode", "problemExpected", "problemFound", "problemErrno")


def test_the_native_engine_has_the_codes_of_the_catalogue() -> None:
    names = _native.problem_names()
    assert names == [code.name.title().replace("_", "") for code in PROBLEM_CODES[: len(names)]]
    assert [int(code) for code in PROBLEM_CODES] == list(range(1, len(PROBLEM_CODES) + 1))
    assert PROBLEM_CODES[len(names) - 1] is ProblemCode.TRAILING_BYTES


@pytest.mark.parametrize("code", PROBLEM_CODES, ids=lambda code: code.name)
def test_each_code_has_a_sentence_and_a_finding_that_exists(code: ProblemCode) -> None:
    text = Fact(code, 1, 2, 3, 4, 5).sentence("name", "reason")
    assert not re.search(r"[{}]", text)
    assert text == "reason" if code is ProblemCode.UNDECIDED else re.match("expected .+, found .+", text)
    assert code.finding in ("", *CODES)
    assert pickle.loads(pickle.dumps(Fact(code, 7))) == Fact(code, 7)


@pytest.mark.slow
@budget(40)
@given(recipe=generate.recipes(), damage=generate.damages())
def test_both_engines_give_the_same_codes_and_values(
    folder: Callable[[], Path], recipe: generate.Recipe, damage: Damage
) -> None:
    store = recipe.write(folder())
    damage(store)
    for segment in store.segments:
        request = request_of(segment, columns=FACTS)
        native, python = (
            [row for batch in expand(engine.scan(request), request) for row in batch.to_pylist()]
            for engine in (get_engine("native"), get_engine("python"))
        )
        assert native == python
        for row in native:
            assert (row["problem"] is None) is (row["problemCode"] is None) is (row["problemFound"] is None)
            assert row["problemErrno"] is None
        surveyed = SurveyRequest(segment, segment.base, segment.end)
        found = get_engine("native").survey(surveyed)
        assert found == get_engine("python").survey(surveyed)
        # A row has the first of the problems that a survey has.
        sentences = {(each.pos, each.fact.sentence(segment.name)) for each in found.problems}
        codes = {(each.pos, int(each.fact.code)) for each in found.problems}
        for row in native if sum(found.counts.values()) == len(found.problems) else ():
            if row["problemCode"] is not None and row["problemCode"] <= ProblemCode.TRAILING_BYTES:
                assert (row["pos"], row["problem"]) in sentences
                assert (row["pos"], row["problemCode"]) in codes


def test_codes_can_be_requested_without_sentences(reader: Engine, tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("T", b"body"), raw(b"x")])
    (segment,) = store.segments
    write_at(segment.path, 48 + 40, b"\x7f" * 8)
    request = request_of(segment, columns=("problemCode", "problemFound"), end=store.end)
    (batch,) = (batch for batch, _ in reader.scan(request))
    assert batch.to_pylist() == [
        {"problemCode": ProblemCode.BORN_TIME, "problemFound": 0x7F7F7F7F7F7F7F7F},
        {"problemCode": None, "problemFound": None},
    ]


def test_damage_is_a_problem_that_is_not_harmless() -> None:
    codes = (None, ProblemCode.BORN_TIME, ProblemCode.MESSAGE_OFFSET, ProblemCode.BODY_CRC)
    column = pa.array([None if code is None else int(code) for code in codes], pa.int32())
    assert is_damage(column).tolist() == [False, False, True, True]
    assert is_damage(column, TIMES_AND_POSITION).tolist() == [False, False, False, True]
    assert is_damage(column, ()).tolist() == [False, True, True, True]
    assert is_damage(column[:1]).tolist() == [False]
    assert set(TIMES_AND_POSITION) == {*TIMES, ProblemCode.MESSAGE_OFFSET}


def test_a_file_that_cannot_be_read_is_known_by_its_code(tmp_path: Path) -> None:
    (segment,) = write_dledger(tmp_path, [raw(b"x")]).segments
    fact = Fact(ProblemCode.UNREADABLE, 0, segment.size, 512, 0, 5)
    expected = UnreadableError(segment.path, "Input/output error", 512)
    with pytest.raises(UnreadableError) as raised:
        check_fact(segment, fact)
    assert raised.value == expected
    check_fact(segment, Fact(ProblemCode.SHORT_FILE, 0, segment.size, 512))
    rows = pa.record_batch([pa.array([1, 512]), pa.array([None, 5], pa.int32())], names=list(READ_COLUMNS))
    assert read_error(segment, rows) == expected
    assert read_error(segment, rows[:1]) is None
    assert read_error(segment, rows[:0]) is None
