"""Both engines give a broker the same units, keys and identities for any rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_dledger.format.columns import arrow_schema
from pyspark_dledger.format.dispatched_rows import DISPATCHED_COLUMNS, MAX_QUEUE_OFFSET, DispatchedRows, key_hash
from pyspark_dledger.format.engine import Engine
from tests.support.engines import NATIVE, PYTHON, unhurried
from tests.support.queues import java_hash

HEADER = 48
SECOND = 1_000_000  # in microseconds


def row(pos: int, topic: str | None = "T", **changes: Any) -> dict[str, Any]:
    given = {"queueId": 1, "queueOffset": pos, "storeSize": 100, "sysFlag": 0, "storeTimestamp": pos * SECOND}
    return {"pos": pos, "size": 148, "index": pos // 148, "term": 3, "topic": topic, **given, **changes}


def dispatched(engine: Engine, *rows: dict[str, Any], **arguments: Any) -> DispatchedRows:
    filled = [{name: each.get(name) for name in DISPATCHED_COLUMNS} for each in rows]
    batch = pa.RecordBatch.from_pylist(filled, arrow_schema(DISPATCHED_COLUMNS))
    return engine.dispatched_rows(batch, HEADER, **{"has_tags": False, "batch_topics": None, **arguments})


def plain(found: DispatchedRows) -> tuple[Any, ...]:
    """With lists instead of arrays."""
    keys, ids = found.keys, found.ids
    lists = [each.tolist() for each in (keys.offset, keys.stored, keys.key_hash, ids.index, ids.store_timestamps)]
    arrays = found.queue_offset.tolist(), found.units.tobytes()
    return *found._replace(queue_offset=None, units=None, keys=None, ids=None), arrays, lists, ids.ids  # type: ignore[arg-type]


@pytest.fixture(params=[NATIVE, PYTHON], ids=["native", "python"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


def test_units_are_those_of_one_queue_after_the_other(engine: Engine) -> None:
    found = dispatched(engine, row(148, "B", tags="x"), row(296, "A", queueId=0), row(444, "B"))
    assert (found.queues, found.counts) == ([("B", 1), ("A", 0)], [2, 1])
    assert found.queue_offset.tolist() == [148, 444, 296]
    assert found.units.tolist() == [(196, 100, java_hash("x")), (492, 100, 0), (344, 100, 0)]
    assert (found.first_index, found.last_index, found.last_term) == (1, 3, 3)
    assert (found.messages, found.first_stored, found.last_stored) == (3, 148_000, 444_000)


def test_keys_are_those_of_all_messages_that_were_not_rolled_back(engine: Engine) -> None:
    rows = [
        row(0, uniqKey="U", keys=" a  b ", tags="t"),
        row(148, sysFlag=0xC, uniqKey="rolled back"),
        row(296, sysFlag=0x4, keys="half"),
        row(444, keys="polygenelubricants", tags=""),
    ]
    for has_tags, tagged in ((False, []), (True, ["T#t"])):
        keys = dispatched(engine, *rows, has_tags=has_tags).keys
        texts = ["U", "a", "b", *tagged, "half", "polygenelubricants"]
        assert keys.key_hash.tolist() == [key_hash("T", text) for text in texts]
        assert keys.offset.tolist() == [48] * (len(texts) - 2) + [344, 492]
        assert keys.stored.tolist()[-2:] == [296_000, 444_000]
    assert dispatched(engine, *rows).queue_offset.tolist() == [0, 444]


def test_rows_that_no_queue_can_have_are_skipped(engine: Engine) -> None:
    wrong = [
        *(row(148, topic) for topic in (None, "", ".", "..", "a/b", "a\0", "é" * 128)),
        *(row(148, queueId=-1), row(148, queueOffset=-1), row(148, queueOffset=MAX_QUEUE_OFFSET + 1)),
    ]
    right = [row(0, "é" * 127), row(0, queueOffset=MAX_QUEUE_OFFSET)]
    found = dispatched(engine, right[0], *wrong, right[1])
    assert (found.messages, found.skipped, found.first_skipped) == (2, len(wrong), 1)
    assert found.queues == [("é" * 127, 1), ("T", 1)]


def test_batches_have_no_units_if_batch_topics_are_given(engine: Engine) -> None:
    rows = [row(0), row(148, sysFlag=0x80), row(296, "Batches")]
    assert sum(dispatched(engine, *rows).counts) == 3
    found = dispatched(engine, *rows, batch_topics=["Batches"])
    assert (found.queues, found.counts, found.messages, found.batches) == ([("T", 1)], [1], 3, 2)


def test_identities_need_an_entry_but_no_queue(engine: Engine) -> None:
    ids = [bytes([number]) * 24 for number in range(3)]
    rows = [row(148, ".", putId=ids[0]), row(296), row(444, putId=ids[1]), row(592, putId=ids[2], index=None)]
    found = dispatched(engine, *rows).ids
    assert (found.index.tolist(), found.ids, found.store_timestamps.tolist()) == (
        [1, 3],
        ids[0] + ids[1],
        [148_000, 444_000],
    )


TEXTS = st.sampled_from([None, "a", "b"]) | st.text("aé😀/.# \0", max_size=4)
NUMBERS = st.sampled_from([-1, 0, 1, MAX_QUEUE_OFFSET])
ROWS = st.fixed_dictionaries(
    {"queueId": st.sampled_from([-1, 0, 1]), "queueOffset": NUMBERS, "sysFlag": st.sampled_from([0, 4, 8, 12, 0x80])},
    optional={"tags": TEXTS, "keys": TEXTS, "uniqKey": TEXTS, "storeTimestamp": st.sampled_from([None, -SECOND, 0])},
)


@unhurried
@given(st.lists(st.tuples(TEXTS, ROWS), max_size=5), st.booleans(), st.none() | st.just(["a"]))
def test_engines_dispatch_the_same(rows: list[Any], has_tags: bool, batch_topics: list[str] | None) -> None:
    made = [row(148 * number, topic, **changes) for number, (topic, changes) in enumerate(rows)]
    native, python = (
        plain(dispatched(engine, *made, has_tags=has_tags, batch_topics=batch_topics)) for engine in (NATIVE, PYTHON)
    )
    assert native == python
