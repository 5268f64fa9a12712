"""Filters that Spark pushes down: the rows are those that Spark's own evaluation would keep."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from pyspark_dledger.format.spec import INT64_MAX, INT64_MIN, Filters, IntFilter
from pyspark_dledger.log import open_log
from tests import golden

datasource = pytest.importorskip("pyspark.sql.datasource")
if not hasattr(datasource, "EqualTo"):
    pytest.skip("PySpark 4.0 pushes no filters to Python data sources", allow_module_level=True)

from pyspark.sql.datasource import (  # noqa: E402
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from pyspark_dledger.spark.pushdown import intersect, push  # noqa: E402

Row = dict[str, Any]
CONF = "spark.sql.python.filterPushdown.enabled"
UTC = dt.timezone.utc
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)

FIELDS = {
    "index": "index",
    "term": "term",
    "pos": "pos",
    "queueId": "queue_id",
    "storeTimestamp": "store_timestamp",
    "kind": "kind",
    "topic": "topic",
    "tags": "tags",
    "committed": "committed",
}
NAMES = {name: name for name in (*FIELDS, "keys")}


# What Spark's filters and ours mean, written down once more.


def truth(item: Filter, row: Row) -> bool | None:
    """SQL's answer: true, false, or None for unknown."""
    if isinstance(item, Not):
        answer = truth(item.child, row)
        return None if answer is None else not answer
    value = row[item.attribute[0]]
    if isinstance(item, IsNull):
        return value is None
    if isinstance(item, IsNotNull):
        return value is not None
    if isinstance(item, EqualNullSafe):
        return value == item.value
    if value is None:
        return None
    if isinstance(item, In):
        return True if value in item.value else None if None in item.value else False
    if item.value is None:
        return None
    compare: dict[type, Callable[[Any, Any], bool]] = {
        EqualTo: lambda a, b: a == b,
        GreaterThan: lambda a, b: a > b,
        GreaterThanOrEqual: lambda a, b: a >= b,
        LessThan: lambda a, b: a < b,
        LessThanOrEqual: lambda a, b: a <= b,
        StringStartsWith: lambda a, b: a.startswith(b),
        StringContains: lambda a, b: b in a,
    }
    return compare[type(item)](value, item.value)


def passes(filters: Filters, row: Row) -> bool:
    for column, field in FIELDS.items():
        condition = getattr(filters, field)
        if condition is None:
            continue
        value = row[column]
        if column == "storeTimestamp" and value is not None:
            value = (value - EPOCH) // dt.timedelta(microseconds=1)
        if value is None:
            return False
        if isinstance(condition, IntFilter):
            in_values = condition.values is None or value in condition.values
            if not (condition.low <= value <= condition.high and in_values):
                return False
        elif not (value in condition if isinstance(condition, tuple) else value == condition):
            return False
    return True


SOME_INTEGERS = st.sampled_from([INT64_MIN, INT64_MIN + 1, -2, -1, 0, 1, 2, 3, 2**31, INT64_MAX - 1, INT64_MAX])
SOME_TIMES = st.sampled_from(
    [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        EPOCH,
        EPOCH + dt.timedelta(microseconds=1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ]
)
SOME_STRINGS = st.sampled_from(["", "a", "b", "message"])
SOME_KINDS = st.sampled_from(["message", "entry", "corrupt", "unheard"])
VALUES = {
    **dict.fromkeys(("index", "term", "pos", "queueId"), SOME_INTEGERS),
    **dict.fromkeys(("topic", "tags", "keys"), SOME_STRINGS),
    "storeTimestamp": SOME_TIMES,
    "kind": SOME_KINDS,
    "committed": st.booleans(),
}
ROWS = st.fixed_dictionaries(
    {name: values if name in ("kind", "pos") else st.none() | values for name, values in VALUES.items()}
)
COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def filters_on(column: str) -> st.SearchStrategy[Filter]:
    path, value = st.just((column,)), st.none() | VALUES[column]
    strings = (StringStartsWith, StringContains) if isinstance(VALUES[column], type(SOME_STRINGS)) else ()
    plain = [st.builds(kind, path, value) for kind in COMPARISONS]
    if column in ("topic", "tags", "keys", "kind"):
        plain += [st.builds(kind, path, SOME_STRINGS) for kind in strings]
    plain += [st.builds(In, path, st.lists(value, max_size=3)), st.builds(IsNull, path), st.builds(IsNotNull, path)]
    return st.one_of(*plain, *(st.builds(Not, item) for item in plain))


SOME_FILTERS = st.lists(st.sampled_from(list(VALUES)).flatmap(filters_on), max_size=4)


@settings(max_examples=500, deadline=None)
@given(SOME_FILTERS, SOME_FILTERS, st.lists(ROWS, min_size=1, max_size=8))
def test_what_is_taken_over_and_what_is_left_make_up_the_filters(
    first: list[Filter], second: list[Filter], rows: list[Row]
) -> None:
    base, left_first = push(first, NAMES, Filters())
    narrowed, left = push(second, NAMES, base)
    for row in rows:
        wanted = all(truth(item, row) is True for item in first + second)
        assert (passes(narrowed, row) and all(truth(item, row) is True for item in left_first + left)) == wanted


@given(SOME_FILTERS, SOME_FILTERS, ROWS)
def test_an_intersection_keeps_what_both_keep(first: list[Filter], second: list[Filter], row: Row) -> None:
    one, other = push(first, NAMES, Filters())[0], push(second, NAMES, Filters())[0]
    assert passes(intersect(one, other), row) == (passes(one, row) and passes(other, row))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (EqualTo(("index",), 5), Filters(index=IntFilter(5, 5, (5,)))),
        (EqualNullSafe(("index",), 5), Filters(index=IntFilter(5, 5, (5,)))),
        (In(("queueId",), [3, None, 1, 3]), Filters(queue_id=IntFilter(1, 3, (1, 3)))),
        (GreaterThan(("pos",), 5), Filters(pos=IntFilter(low=6))),
        (LessThan(("term",), 5), Filters(term=IntFilter(high=4))),
        (LessThanOrEqual(("index",), INT64_MAX), Filters(index=IntFilter())),
        (GreaterThan(("index",), INT64_MAX), Filters(index=IntFilter(values=()))),
        (LessThan(("index",), INT64_MIN), Filters(index=IntFilter(values=()))),
        (IsNotNull(("index",)), Filters(index=IntFilter())),
        (IsNotNull(("pos",)), Filters()),
        (In(("topic",), ["a", None]), Filters(topic=("a",))),
        (EqualTo(("tags",), None), Filters(tags=())),
        (Not(EqualTo(("committed",), True)), Filters(committed=False)),
        (Not(EqualTo(("kind",), "message")), Filters(kind=("entry", "noop", "config", "corrupt"))),
        (
            GreaterThan(("storeTimestamp",), dt.datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
            Filters(store_timestamp=IntFilter(low=6)),
        ),
        (
            EqualTo(("storeTimestamp",), dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
            Filters(store_timestamp=IntFilter(0, 0, (0,))),
        ),
    ],
)
def test_taken_over(item: Filter, expected: Filters) -> None:
    assert push([item], NAMES, Filters()) == (expected, [])


@pytest.mark.parametrize(
    "item",
    [
        IsNull(("index",)),
        EqualNullSafe(("topic",), None),
        Not(EqualTo(("index",), 5)),
        Not(EqualNullSafe(("committed",), True)),
        Not(In(("topic",), ["a"])),
        GreaterThan(("topic",), "a"),
        StringStartsWith(("topic",), "a"),
        EqualTo(("keys",), "a"),
        EqualTo(("index",), 5.0),
        EqualTo(("index",), True),
        EqualTo(("storeTimestamp",), dt.datetime(1970, 1, 1)),
        In(("committed",), [True, False]),
        IsNotNull(("topic",)),
        EqualTo(("properties", "index"), 5),
    ],
)
def test_left_to_spark(item: Filter) -> None:
    assert push([item], NAMES, Filters()) == (Filters(), [item])


def test_not_null_is_implied_by_a_value() -> None:
    given_filters = [IsNotNull(("topic",)), IsNotNull(("committed",)), EqualTo(("topic",), "a"), EqualTo(("committed",), True)]
    assert push(given_filters, NAMES, Filters()) == (Filters(topic=("a",), committed=True), [])
    assert push([IsNotNull(("topic",))], NAMES, Filters(topic=("a",))) == (Filters(topic=("a",)), [])


def test_names_are_the_users() -> None:
    assert push([EqualTo(("QUEUEID",), 1)], {"QUEUEID": "queueId"}, Filters())[0].queue_id == IntFilter(1, 1, (1,))


# The same through Spark, on a store with damage.

COLUMNS = tuple(FIELDS)
SCHEMA = (
    "index long, term long, pos long, queueId int, storeTimestamp timestamp, kind string, topic string, tags string, "
    "committed boolean, size int, problem string"
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded store: old CommitLog rows without index and term, and damage in both parts."""
    path = golden.unpack("mq-53-upgrade", tmp_path_factory.mktemp("damaged"))
    ledger = sorted((path / "dledger-n0" / "data").iterdir())
    rows = [row for batch in open_log(path).scan(["pos", "source"]) for row in batch.to_pylist()]
    for source, folder in (("commitlog", path / "commitlog"), ("dledger", ledger[0].parent)):
        positions = [row["pos"] for row in rows if row["source"] == source]
        for number, pos in enumerate(positions[10::60]):
            file = max((f for f in folder.iterdir() if int(f.name) <= pos), key=lambda f: int(f.name))
            # By turns: the size field, and a byte of the message that its CRC covers.
            at, damage = ((4, b"\xff") if source == "dledger" else (0, b"\xff"))
            if number % 2:
                at, damage = (48 if source == "dledger" else 0) + 90, b"\x00\x01\x02\x03"
            with file.open("r+b") as data:
                data.seek(pos - int(file.name) + at)
                data.write(damage)
    return path


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(CONF, "true")
    yield spark
    spark.conf.unset(CONF)


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("dledger").options(**options).schema(SCHEMA).load(str(path))


def conditions() -> list[tuple[str, Callable[[Row], bool]]]:
    """Predicates in SQL, and the same in Python, where a null is None."""

    def known(name: str, test: Callable[[Any], bool]) -> Callable[[Row], bool]:
        return lambda row: row[name] is not None and test(row[name])

    middle = dt.datetime(2024, 1, 1, tzinfo=UTC)
    return [
        ("index < 100", known("index", lambda v: v < 100)),
        ("index >= 100 and index <= 120 and index <> 110", known("index", lambda v: 100 <= v <= 120 and v != 110)),
        ("index = 9223372036854775807", lambda _: False),
        ("index > -9223372036854775808L", known("index", lambda _: True)),
        ("index in (1, 2, 500, 1000000, null)", known("index", lambda v: v in (1, 2, 500))),
        ("index between 50 and 40", lambda _: False),
        ("index is null", lambda row: row["index"] is None),
        ("index is not null and kind <> 'message'", known("index", lambda _: False)),
        ("term = 1", known("term", lambda v: v == 1)),
        ("term <=> null", lambda row: row["term"] is None),
        ("term >= 2 or index < 3", lambda row: (row["term"] or 0) >= 2 or (row["index"] is not None and row["index"] < 3)),
        ("pos >= 70000 and pos < 140000", lambda row: 70000 <= row["pos"] < 140000),
        ("pos > 390000 and kind = 'corrupt'", lambda row: row["pos"] > 390000 and row["kind"] == "corrupt"),
        ("kind = 'corrupt'", lambda row: row["kind"] == "corrupt"),
        ("kind <> 'message'", lambda row: row["kind"] != "message"),
        ("kind in ('corrupt', 'entry', 'nonsense')", lambda row: row["kind"] in ("corrupt", "entry")),
        ("kind = 'nonsense'", lambda _: False),
        ("topic = 'OrderTopic'", known("topic", lambda v: v == "OrderTopic")),
        ("topic <=> 'OrderTopic'", known("topic", lambda v: v == "OrderTopic")),
        ("topic in ('OrderTopic', 'PayTopic') and queueId = 1", lambda row: row["topic"] in ("OrderTopic", "PayTopic") and row["queueId"] == 1),
        ("topic = 'ordertopic'", lambda _: False),
        ("topic = 'OrderTopic' and topic = 'PayTopic'", lambda _: False),
        ("topic is null", lambda row: row["topic"] is None),
        ("topic like 'Order%' and queueId > 1", lambda row: (row["topic"] or "").startswith("Order") and row["queueId"] > 1),
        ("topic >= 'P'", known("topic", lambda v: v >= "P")),
        ("queueId < 3000000000", known("queueId", lambda _: True)),
        ("queueId = 3000000000", lambda _: False),
        ("queueId not in (0, 1)", known("queueId", lambda v: v not in (0, 1))),
        ("tags is not null", known("tags", lambda _: True)),
        ("tags = 'TagA'", known("tags", lambda v: v == "TagA")),
        ("committed", known("committed", lambda v: v)),
        ("not committed", known("committed", lambda v: not v)),
        ("committed <> true and index > 0", lambda row: row["committed"] is False and (row["index"] or 0) > 0),
        ("committed is null", lambda row: row["committed"] is None),
        ("storeTimestamp >= timestamp_ltz'{middle}'", lambda row: row),
        ("problem is not null", known("problem", lambda _: True)),
        ("problem is not null and index > 300", lambda row: row["problem"] is not None and (row["index"] or 0) > 300),
    ]
