"""Pushed filters keep the rows that Spark's own evaluation keeps."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession, functions

from pyspark_dledger import enable
from pyspark_dledger.common.integers import INT64_MAX, INT64_MIN
from pyspark_dledger.format.spec import KINDS, Filters, IntFilter
from pyspark_dledger.log import open_log
from tests.support import golden
from tests.support.damage import flip
from tests.support.extension import HAS_EXTENSION

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

from pyspark_dledger.log.conditions import Lookup  # noqa: E402
from pyspark_dledger.spark.read.pushdown import intersect, lookup_of, push  # noqa: E402
from tests.support.long_runs import examples  # noqa: E402

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


# A second implementation of Spark's filters and of ours.


def truth(item: Filter, row: Row) -> bool | None:
    """Return SQL's result: true, false, or None for unknown."""
    if isinstance(item, Not):
        result = truth(item.child, row)
        return None if result is None else not result
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
# Rows have only kinds that exist; a filter may ask for another one.
ROWS = st.fixed_dictionaries(
    {name: st.none() | values for name, values in VALUES.items()}
    | {"kind": st.sampled_from(KINDS), "pos": SOME_INTEGERS}
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


def test_filters_on_queue_offsets_and_keys_are_looked_up() -> None:
    names = {"QUEUEOFFSET": "queueOffset", "pos": "pos", "topic": "topic", "keys": "keys", "id": "uniqKey"}
    column = ("QUEUEOFFSET",)
    filters = [GreaterThan(column, 5), IsNotNull(column), In(column, (9, 4, 7)), LessThan(("pos",), 3)]
    assert lookup_of(filters, names) == Lookup(IntFilter(7, 9, (7, 9)))
    assert lookup_of([*filters[3:], EqualTo(("topic",), "a b")], names) is None
    assert push(filters[:3], names, Filters()) == (Filters(), filters[:3])
    assert lookup_of([In(("keys",), ("a b", " c"))], names) == Lookup(keys=("a", "c"))
    assert lookup_of([In(("keys",), ("a", " "))], names) is None
    assert lookup_of([EqualTo(("id",), "a b")], names) == Lookup(keys=("a b",))
    assert lookup_of([Not(EqualTo(("id",), "a")), StringContains(("keys",), "a")], names) is None


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(SOME_FILTERS, SOME_FILTERS, st.lists(ROWS, min_size=1, max_size=8))
def test_pushed_and_remaining_filters_together_are_the_given_ones(
    first: list[Filter], second: list[Filter], rows: list[Row]
) -> None:
    base, remaining_first = push(first, NAMES, Filters())
    narrowed, remaining = push(second, NAMES, base)
    for row in rows:
        wanted = all(truth(item, row) is True for item in first + second)
        assert (
            passes(narrowed, row) and all(truth(item, row) is True for item in remaining_first + remaining)
        ) == wanted


@pytest.mark.slow
@settings(deadline=None)
@given(SOME_FILTERS, SOME_FILTERS, ROWS)
def test_intersection_keeps_what_both_keep(first: list[Filter], second: list[Filter], row: Row) -> None:
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
def test_pushed_filter(item: Filter, expected: Filters) -> None:
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
def test_remaining_filter(item: Filter) -> None:
    assert push([item], NAMES, Filters()) == (Filters(), [item])


def test_not_null_is_implied_by_a_value() -> None:
    given_filters = [
        IsNotNull(("topic",)),
        IsNotNull(("committed",)),
        EqualTo(("topic",), "a"),
        EqualTo(("committed",), True),
    ]
    assert push(given_filters, NAMES, Filters()) == (Filters(topic=("a",), committed=True), [])
    assert push([IsNotNull(("topic",))], NAMES, Filters(topic=("a",))) == (Filters(topic=("a",)), [])


def test_filters_have_the_users_names() -> None:
    assert push([EqualTo(("QUEUEID",), 1)], {"QUEUEID": "queueId"}, Filters())[0].queue_id == IntFilter(1, 1, (1,))


# In Spark, on a store with damage.

COLUMNS_READ = (*FIELDS, "size", "problem")
COLUMNS_SHOWN = ("pos", "size", "kind", "index", "problem")
SCHEMA = (
    "index long, term long, pos long, queueId int, storeTimestamp timestamp, kind string, topic string, tags string, "
    "committed boolean, size int, problem string"
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded store: old CommitLog rows without index and term, and damage in both parts."""
    path = golden.unpack("mq-53-upgrade", tmp_path_factory.mktemp("damaged"))
    rows = [row for batch in open_log(path).scan(["pos", "source"]) for row in batch.to_pylist()]
    # The size of the entry; a byte that the message's CRC covers; the size inside the entry's message.
    places = {"dledger": (4, 48 + 95, 51), "commitlog": (0, 95)}
    for source, folder in (("dledger", path / "dledger-n0" / "data"), ("commitlog", path / "commitlog")):
        files = {int(file.name): file for file in folder.iterdir()}
        positions = [row["pos"] for row in rows if row["source"] == source]
        for number, pos in enumerate(positions[10::60]):
            base = max(base for base in files if base <= pos)
            flip(files[base], pos - base + places[source][number % len(places[source])], 0xFF)
    return path


@pytest.fixture(scope="module")
def pushing(spark: SparkSession) -> SparkSession:
    """A session with the extension, which pushes filters without a setting."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    enable(session)
    return session


@pytest.fixture
def asking(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose planner offers filters to sources."""
    spark.conf.set(CONF, "true")
    yield spark
    spark.conf.unset(CONF)


def load(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    options = {**OPTIONS, **options}
    return spark.read.format("dledger").options(**options).schema(SCHEMA).load(str(path))


def optimized_plan(frame: DataFrame) -> str:
    return frame._jdf.queryExecution().optimizedPlan().toString()


def pushed_kinds(frame: DataFrame) -> set[str]:
    """The kinds of the filters that the scan of a query evaluates."""
    scan = frame._jdf.queryExecution().optimizedPlan().collectLeaves().head().scan()
    return set(re.findall(r"(\w+)\(", scan.getMetaData().apply("PushedFilters")))


Predicate = Callable[[Row], bool]


def known(name: str, test: Callable[[Any], bool]) -> Predicate:
    """Return a predicate that is false for null."""
    return lambda row: row[name] is not None and test(row[name])


def both(first: Predicate, second: Predicate) -> Predicate:
    return lambda row: first(row) and second(row)


def never(_: Row) -> bool:
    return False


MOMENT = dt.datetime(2026, 11, 21, 3, 8, 30, 500_000, tzinfo=UTC)

# Predicates in SQL, and the same in Python, where a null is None.
CONDITIONS: list[tuple[str, Predicate]] = [
    ("index < 100", known("index", lambda v: v < 100)),
    ("index >= 100 and index <= 120 and index <> 110", known("index", lambda v: 100 <= v <= 120 and v != 110)),
    ("index = 9223372036854775807", never),
    ("index > -9223372036854775807L", known("index", lambda _: True)),
    ("index in (1, 2, 500, 1000000, null)", known("index", lambda v: v in (1, 2, 500))),
    ("index between 50 and 40", never),
    ("index is null", lambda row: row["index"] is None),
    (
        "index is not null and kind <> 'message'",
        both(known("index", lambda _: True), known("kind", lambda v: v != "message")),
    ),
    ("term = 0", known("term", lambda v: v == 0)),
    ("term > 0", known("term", lambda v: v > 0)),
    ("term <=> null", lambda row: row["term"] is None),
    ("term < 0 or index < 3", known("index", lambda v: v < 3)),
    ("pos >= 70000 and pos < 140000", lambda row: 70000 <= row["pos"] < 140000),
    ("pos > 390000 and kind = 'corrupt'", lambda row: row["pos"] > 390000 and row["kind"] == "corrupt"),
    ("kind = 'corrupt'", lambda row: row["kind"] == "corrupt"),
    ("kind <> 'message'", lambda row: row["kind"] != "message"),
    ("kind in ('corrupt', 'entry', 'nonsense')", lambda row: row["kind"] in ("corrupt", "entry")),
    ("kind not in ('corrupt', null)", never),
    ("kind = 'nonsense'", never),
    ("topic = 'OrderTopic'", known("topic", lambda v: v == "OrderTopic")),
    ("topic <=> 'OrderTopic'", known("topic", lambda v: v == "OrderTopic")),
    (
        "topic in ('OrderTopic', 'PayTopic') and queueId = 1",
        both(known("topic", lambda v: v in ("OrderTopic", "PayTopic")), known("queueId", lambda v: v == 1)),
    ),
    ("topic = 'ordertopic'", never),
    ("topic = 'OrderTopic' and topic = 'PayTopic'", never),
    ("topic is null", lambda row: row["topic"] is None),
    (
        "topic like 'Order%' and queueId > 1",
        both(known("topic", lambda v: v.startswith("Order")), known("queueId", lambda v: v > 1)),
    ),
    ("topic >= 'P'", known("topic", lambda v: v >= "P")),
    ("queueId < 3000000000", known("queueId", lambda _: True)),
    ("queueId = 3000000000", never),
    ("queueId not in (0, 1)", known("queueId", lambda v: v not in (0, 1))),
    ("tags is not null", known("tags", lambda _: True)),
    ("tags = '支付成功'", known("tags", lambda v: v == "支付成功")),
    ("committed", known("committed", lambda v: v)),
    ("not committed", known("committed", lambda v: not v)),
    (
        "committed <> true and index > 400",
        both(known("committed", lambda v: not v), known("index", lambda v: v > 400)),
    ),
    ("committed is null", lambda row: row["committed"] is None),
    (f"storeTimestamp >= timestamp_ltz'{MOMENT}'", known("storeTimestamp", lambda v: v >= MOMENT)),
    (f"storeTimestamp < timestamp_ltz'{MOMENT}'", known("storeTimestamp", lambda v: v < MOMENT)),
    ("storeTimestamp > date'2026-11-22'", never),
    ("problem is not null", known("problem", lambda _: True)),
    ("problem is not null and index > 300", both(known("problem", lambda _: True), known("index", lambda v: v > 300))),
]


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*COLUMNS_SHOWN).collect())


# Some entries are not committed, and there are several partitions.
OPTIONS = {"committedBound": "300", "maxPartitionBytes": "100k"}


@pytest.fixture(scope="module")
def reference(damaged: Path) -> list[Row]:
    return [row for batch in open_log(damaged).scan(COLUMNS_READ, **OPTIONS) for row in batch.to_pylist()]


def test_damaged_store_has_rows_for_all_conditions(reference: list[Row]) -> None:
    assert {row["kind"] for row in reference} == {"message", "entry", "corrupt"}
    assert {row["committed"] for row in reference} == {True, False, None}
    assert {row["index"] is None for row in reference if row["problem"] is not None} == {True, False}
    assert {row["storeTimestamp"] < MOMENT for row in reference if row["storeTimestamp"] is not None} == {True, False}


@pytest.fixture(scope="module")
def evaluated_by_spark(spark: SparkSession, damaged: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows for which each condition is true, without pushdown."""
    results = [functions.expr(sql).alias(str(number)) for number, (sql, _) in enumerate(CONDITIONS)]
    rows = load(spark, damaged).select(*COLUMNS_SHOWN, *results).collect()
    shown = len(COLUMNS_SHOWN)
    return {sql: sorted(row[:shown] for row in rows if row[shown + i]) for i, (sql, _) in enumerate(CONDITIONS)}


@pytest.mark.parametrize(("sql", "keeps"), CONDITIONS, ids=[sql for sql, _ in CONDITIONS])
def test_rows_are_the_same_with_and_without_pushdown(
    pushing: SparkSession,
    damaged: Path,
    reference: list[Row],
    evaluated_by_spark: dict[str, list[tuple[Any, ...]]],
    sql: str,
    keeps: Predicate,
) -> None:
    pushed = rows_of(load(pushing, damaged).where(sql))
    assert pushed == evaluated_by_spark[sql]
    assert pushed == sorted(tuple(row[name] for name in COLUMNS_SHOWN) for row in reference if keeps(row))


def test_bounds_inside_corrupt_bytes_do_not_split_them(
    pushing: SparkSession, damaged: Path, reference: list[Row]
) -> None:
    pos, size = next((row["pos"], row["size"]) for row in reference if row["kind"] == "corrupt" and row["size"] > 1)
    for bound in (pos, pos + 1, pos + size - 1, pos + size):
        for sign, test in (("<", int.__lt__), (">=", int.__ge__)):
            expected = [row for row in reference if test(row["pos"], bound)]
            frame = load(pushing, damaged).where(f"pos {sign} {bound}")
            assert rows_of(frame) == sorted(tuple(row[name] for name in COLUMNS_SHOWN) for row in expected)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "sql",
    [
        "index < 100",
        "index in (1, 2)",
        "term = 0 and index >= 5",
        "pos between 1000 and 2000",
        "topic = 'OrderTopic' and queueId in (1, 2)",
        "tags = 'TagA'",
        "kind <> 'message'",
        "committed",
        "not committed",
        f"storeTimestamp >= timestamp_ltz'{MOMENT}'",
    ],
)
def test_comparisons_reach_the_scan(pushing: SparkSession, damaged: Path, sql: str) -> None:
    frame = load(pushing, damaged).where(sql)
    assert pushed_kinds(frame) - {"IsNotNull"}
    assert frame.count() > 0


@pytest.mark.parametrize(
    "sql", ["topic like 'O%'", "index is null", "size > 100", "index % 2 = 0", "topic is not null"]
)
def test_other_filters_stay_in_spark(pushing: SparkSession, damaged: Path, sql: str) -> None:
    frame = load(pushing, damaged).where(sql)
    assert pushed_kinds(frame) <= {"IsNotNull"}
    assert "Filter" in optimized_plan(frame)


def test_pushed_range_plans_fewer_partitions(pushing: SparkSession, damaged: Path) -> None:
    every = load(pushing, damaged).rdd.getNumPartitions()
    some = load(pushing, damaged).where("index between 100 and 110").rdd.getNumPartitions()
    assert 1 == some < every


def test_contradiction_reads_nothing(pushing: SparkSession, damaged: Path) -> None:
    frame = load(pushing, damaged).where("index > 5").where("index < 3")
    assert frame.collect() == []


def test_filters_narrow_the_options(pushing: SparkSession, damaged: Path, reference: list[Row]) -> None:
    frame = load(pushing, damaged, topic="OrderTopic,PayTopic", queueId="0,1").where("topic > 'A' and queueId = 1")
    expected = [row for row in reference if row["topic"] in ("OrderTopic", "PayTopic") and row["queueId"] == 1]
    assert frame.count() == len(expected) > 0
    assert load(pushing, damaged, topic="OrderTopic").where("topic = 'PayTopic'").count() == 0


def test_columns_may_have_the_users_spelling(pushing: SparkSession, damaged: Path, reference: list[Row]) -> None:
    reader = pushing.read.format("dledger").schema("QUEUEID int, Index long")
    frame = reader.load(str(damaged)).where("queueid = 1")
    assert "EqualTo" in pushed_kinds(frame)
    assert frame.count() == len([row for row in reference if row["queueId"] == 1])


def test_filters_of_one_query_do_not_reach_the_next_load(pushing: SparkSession, damaged: Path) -> None:
    first, second = load(pushing, damaged).where("index < 5"), load(pushing, damaged).where("index < 10")
    assert first.union(second).count() == 5 + 10
    assert load(pushing, damaged).count() > 1000


# Queries that read one view several times, over the indexes 0 to 538.
FEW, LAST = "SELECT index FROM {0} WHERE index < 10", "SELECT index FROM {0} WHERE index >= 530"
QUERIES = {
    "union": (f"SELECT count(*) FROM ({FEW} UNION ALL {LAST})", 19),
    "self-join": (f"SELECT count(*) FROM ({FEW}) a JOIN ({LAST}) b ON a.index + 530 = b.index", 9),
    "scalar subquery": (f"SELECT count(*) + (SELECT count(*) FROM ({FEW})) FROM ({LAST})", 19),
    "IN subquery": (f"SELECT count(*) FROM {{0}} WHERE index < 20 AND index IN ({FEW})", 10),
    "CTE": (f"WITH few AS ({FEW}), last AS ({LAST}) SELECT count(*) FROM (TABLE few UNION ALL TABLE last)", 19),
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("mq-53-upgrade", tmp_path_factory.mktemp("intact"))


def view(spark: SparkSession, path: Path, **options: Any) -> str:
    name = "pushed_view"
    spark.read.format("dledger").options(**options).schema("index long").load(str(path)).createOrReplaceTempView(name)
    return name


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("session", ["pushing", "asking"])
def test_filters_of_one_part_of_a_query_do_not_change_another(
    request: pytest.FixtureRequest, intact: Path, query: str, session: str
) -> None:
    spark, (sql, expected) = request.getfixturevalue(session), QUERIES[query]
    ((found,),) = spark.sql(sql.format(view(spark, intact))).collect()
    assert found == expected


@pytest.mark.parametrize("session", ["pushing", "asking"])
def test_queries_of_one_load_do_not_change_each_other(
    request: pytest.FixtureRequest, intact: Path, session: str
) -> None:
    pushing = request.getfixturevalue(session)
    name = view(pushing, intact)
    frame = pushing.table(name)
    pushing.sql(f"CREATE OR REPLACE TEMPORARY VIEW pushed_few AS {FEW.format(name)}")
    few = frame.where("index < 10").cache()
    counts = [frame.where("index >= 530").count(), few.count(), frame.where("index is not null").count()]
    assert counts == [9, 10, 539]
    assert pushing.table("pushed_few").count() == 10
    assert few.union(frame.where("index >= 530")).count() == 19
    few.unpersist()


@pytest.mark.parametrize("option", ["pushFilters", "plannedByExtension"])
def test_no_option_pushes_filters(asking: SparkSession, intact: Path, option: str) -> None:
    """Spark 4.1 to 4.3 reads a later query of one load with the filters of the first."""
    with pytest.raises(Exception, match=f"OptionError: .*{option.lower()}"):
        asking.read.format("dledger").option(option, True).load(str(intact))


@pytest.mark.smoke
@pytest.mark.skipif(HAS_EXTENSION, reason="the extension pushes filters")
@pytest.mark.parametrize("offers", ["false", "true"])
def test_filters_stay_in_spark_without_the_extension(asking: SparkSession, damaged: Path, offers: str) -> None:
    asking.conf.set(CONF, offers)
    frame = load(asking, damaged)
    assert "Filter" in optimized_plan(frame.where("index < 10"))
    assert frame.where("index < 10").count() == 10
    assert frame.where("topic = 'OrderTopic'").count() < frame.count()


@pytest.mark.smoke
def test_query_without_filters_works_with_the_conf(asking: SparkSession, damaged: Path, reference: list[Row]) -> None:
    assert load(asking, damaged).count() == len(reference)
