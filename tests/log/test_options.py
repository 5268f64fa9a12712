"""The options of a read: names, values, defaults and errors."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path

import pytest

from pyspark_dledger.common.uris import local_path
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log.options import (
    OPTIONS,
    TABLES,
    Offset,
    ReadOptions,
    find_option,
    option_filters,
    parse_options,
    read_paths,
)

MIB = 1024 * 1024
UTC = dt.timezone.utc
# 2026-07-21T03:12:00Z
MOMENT = 1784603520_000_000


def parse_one(name: str, value: object) -> object:
    return getattr(parse_options({name: value}), find_option(name).field)


@pytest.mark.smoke
def test_no_options_give_the_defaults() -> None:
    assert parse_options({}) == ReadOptions()


def test_the_defaults_of_the_table_are_those_of_a_read() -> None:
    for option in OPTIONS:
        # Without maxPartitionBytes the plan chooses a size, at least 128m.
        if option.default is not None and option.name != "maxPartitionBytes":
            assert parse_one(option.name, option.default) == getattr(ReadOptions(), option.field), option.name


def test_every_option_has_a_field_and_every_field_an_option() -> None:
    set_by_programs = ["unread"]
    assert [*(option.field for option in OPTIONS), *set_by_programs] == list(ReadOptions.__dataclass_fields__)


def test_every_option_is_documented() -> None:
    for option in OPTIONS:
        assert option.doc
        assert option.parser.accepts
        assert option.scope in ((), ("batch",), ("stream",), ("group",))


def test_durations_have_units() -> None:
    for value, expected in (("500ms", 500), ("30s", 30_000), ("15 M", 900_000), ("1h", 3_600_000), ("0", 0), (7, 7)):
        assert parse_one("maxTriggerDelay", value) == expected
    for value in ("", "m", "1.5s", "-1s", "1w", True):
        with pytest.raises(OptionError, match="option maxTriggerDelay: expected a duration such as 500ms"):
            parse_one("maxTriggerDelay", value)


def test_minimum_of_a_trigger_is_not_above_its_maximum() -> None:
    parse_options({"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 5})
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger \(6\) is above option maxOffsetsPerTrigger \(5\)"):
        parse_options({"minOffsetsPerTrigger": 6, "maxOffsetsPerTrigger": 5})


def test_names_ignore_case() -> None:
    parsed = parse_options({"ISOLATIONLEVEL": "read_committed", "maxpartitionbytes": "1m"})
    assert (parsed.isolation_level, parsed.max_partition_bytes) == ("read_committed", MIB)


def test_a_name_in_two_spellings_is_rejected() -> None:
    with pytest.raises(OptionError, match="option topic is given twice"):
        parse_options({"topic": "a", "Topic": "b"})


def test_none_is_not_set() -> None:
    assert parse_options(dict.fromkeys((option.name for option in OPTIONS), None)) == ReadOptions()


def test_options_of_spark_pass() -> None:
    given = {"path": "/a", "checkpointLocation": "/b", "queryName": "q", "CHECKPOINTLOCATION": "/c"}
    assert parse_options(given) == ReadOptions()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("isolationlvl", "isolationLevel"),
        ("MAXBATCHROW", "maxBatchRows"),
        ("selfid2", "selfId"),
        ("startingOffset", "startingOffsets"),
        ("topics", "topic"),
    ],
)
def test_an_unknown_option_names_the_nearest_in_its_spelling(name: str, nearest: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_options({name: "x"})
    assert str(error.value) == f"unknown option {name}: the nearest is {nearest}"


def test_an_unknown_option_is_rejected_even_if_it_is_not_set() -> None:
    with pytest.raises(OptionError, match="unknown option foo"):
        parse_options({"foo": None})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("65536", 65536),
        ("64k", 65536),
        ("64K", 65536),
        ("64kb", 65536),
        ("64KiB", 65536),
        ("2m", 2 * MIB),
        ("2 MB", 2 * MIB),
        (" 1g ", 1024 * MIB),
        ("1t", 1024 * 1024 * MIB),
        ("512b", 512),
        (4096, 4096),
    ],
)
def test_sizes(value: object, expected: int) -> None:
    assert parse_one("maxPartitionBytes", value) == expected


@pytest.mark.parametrize("value", ["", "m", "12x", "-1", "0", 0, "1.5g", 1.5, True, None, "1 g b", "9999999999g", "٣"])
def test_wrong_sizes(value: object) -> None:
    if value is None:
        return
    with pytest.raises(OptionError, match=r"^option maxPartitionBytes: expected a size in bytes, .*128m.*, found "):
        parse_options({"maxPartitionBytes": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("minPartitions", value) for value in ("0", "-1", "2147483648", "many", "", True, 1.0)),
        *(("maxBatchRows", value) for value in ("0", "1000001", "1_000")),
        *(("maxBatchBytes", value) for value in ("0", "513m", "1g")),
        *(("maxBodyBytes", value) for value in ("0", "2g")),
        *(("groupSize", value) for value in ("0", "three")),
        *(("verifyCrc", value) for value in ("yes", "1", 1, "")),
        *(("mode", value) for value in ("FAIL", "", 1)),
        *(("engine", value) for value in ("java", "nativ")),
        *(("isolationLevel", value) for value in ("committed", "serializable")),
        *(("committedBound", value) for value in ("-2", "never", "1.5", True, [])),
        *(("queueId", value) for value in ("", "a", "1,,2", "2147483648", [], [1.5], "[1")),
        *(("topic", value) for value in ("", "a,,b", [], [1], '["a", 1]', '["a"', "[]", '[""]', b"a")),
        *(("selfId", value) for value in ("", 5)),
        *(("dataDirs", value) for value in ("", "[]")),
        *(("startingOffsets", value) for value in ("first", "-1", "", '{"index": -1}', '{"index": "1"}', 1.5, True)),
        *(
            ("startingOffsets", value)
            for value in ('{"index": 1, "pos": 2}', '{"offset": 1}', "{}", "{", '{"pos": 1.5}')
        ),
        *(("startingTimestamp", value) for value in ("now", "", "2026-13-01", "2026-02-30", "0000-01-01", 1.5, True)),
        *(("startingTimestamp", value) for value in ("2026-07-21T25:00:00Z", "253402300800000", "2026-07-21T03Z")),
    ],
)
def test_a_wrong_value_names_option_and_value_and_what_is_accepted(name: str, value: object) -> None:
    option = find_option(name)
    with pytest.raises(OptionError) as error:
        parse_options({name: value})
    assert str(error.value) == f"option {name}: expected {option.parser.accepts}, found {value!r}"


def test_a_long_wrong_value_is_shortened() -> None:
    with pytest.raises(OptionError) as error:
        parse_options({"mode": "x" * 10_000})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("value", "expected"), [("true", True), ("TRUE", True), (True, True), ("False", False), (False, False)]
)
def test_booleans(value: object, expected: bool) -> None:
    assert parse_one("includeEntryBody", value) is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("mode", "permissive", "PERMISSIVE"),
        ("mode", "DropMalformed", "DROPMALFORMED"),
        ("isolationLevel", "READ_COMMITTED", "read_committed"),
        ("engine", "Python", "python"),
        ("table", "LOG", "log"),
        ("committedBound", "consumequeue", "consumeQueue"),
        ("committedBound", "Quorum", "quorum"),
        ("committedBound", "17", 17),
        ("committedBound", -1, -1),
        ("committedBound", 0, 0),
    ],
)
def test_enumerations_ignore_case(name: str, value: object, expected: object) -> None:
    assert parse_one(name, value) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("topic", "a", ("a",)),
        ("topic", "a, b ,a", ("a", "b")),
        ("topic", ["a", "b,c"], ("a", "b,c")),
        ("tags", '["a,b", "c"]', ("a,b", "c")),
        ("queueId", "3", (3,)),
        ("queueId", "3, 1", (3, 1)),
        ("queueId", 3, (3,)),
        ("queueId", [0, 1], (0, 1)),
        ("queueId", range(2), (0, 1)),
        ("queueId", "-1", (-1,)),
        ("replicas", '["/a,b", "/c"]', ("/a,b", "/c")),
        ("replicas", "/a,/c", ("/a", "/c")),
        ("replicas", [Path("/a"), "/c"], ("/a", "/c")),
        ("dataDirs", Path("/a,b"), ("/a", "b")),
        ("dataDirs", [Path("/a,b")], ("/a,b",)),
        ("dataDirs", "file:///data/a,/data/b", ("/data/a", "/data/b")),
    ],
)
def test_lists(name: str, value: object, expected: tuple[object, ...]) -> None:
    assert parse_one(name, value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("earliest", Offset("earliest")),
        ("LATEST", Offset("latest")),
        ("7", Offset("index", 7)),
        (7, Offset("index", 7)),
        ('{"index": 7}', Offset("index", 7)),
        ('{"pos": 4096}', Offset("pos", 4096)),
        ({"pos": 4096}, Offset("pos", 4096)),
        (Offset("pos", 4096), Offset("pos", 4096)),
    ],
)
def test_offsets(value: object, expected: Offset) -> None:
    assert parse_one("startingOffsets", value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-07-21T03:12:00Z", MOMENT),
        ("2026-07-21T03:12:00", MOMENT),
        ("2026-07-21 03:12", MOMENT),
        ("2026-07-21T11:12:00+08:00", MOMENT),
        ("2026-07-21T11:12:00 +0800", MOMENT),
        ("2026-07-20T22:12:00-05:00", MOMENT),
        ("2026-07-21t03:12:00.5z", MOMENT + 500_000),
        ("2026-07-21T03:12:00.000001Z", MOMENT + 1),
        ("2026-07-21", MOMENT - (3 * 60 + 12) * 60_000_000),
        ("1784603520000", MOMENT),
        (1784603520000, MOMENT),
        ("-1", -1000),
        (dt.datetime(2026, 7, 21, 3, 12), MOMENT),
        (dt.datetime(2026, 7, 21, 3, 12, tzinfo=UTC), MOMENT),
        (dt.datetime(2026, 7, 21, 11, 12, tzinfo=dt.timezone(dt.timedelta(hours=8))), MOMENT),
        (dt.date(2026, 7, 21), MOMENT - (3 * 60 + 12) * 60_000_000),
        ("0001-01-01", -62135596800_000_000),
        ("9999-12-31T23:59:59.999999", 253402300799_999_999),
    ],
)
def test_timestamps(value: object, expected: int) -> None:
    assert parse_one("startingTimestamp", value) == expected


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_named_in_any_case(table: str) -> None:
    assert parse_options({"table": table.upper()}).table == table


def test_an_unknown_table_names_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"option table: unknown table segment, the nearest is segments$"):
        parse_options({"table": "segment"})


@pytest.mark.parametrize(
    ("start", "end"),
    [("5", "4"), ('{"pos": 100}', '{"pos": 99}')],
)
def test_a_start_after_the_end_is_rejected(start: str, end: str) -> None:
    with pytest.raises(OptionError, match=r"option startingOffsets .* is after option endingOffsets .*"):
        parse_options({"startingOffsets": start, "endingOffsets": end})
    assert parse_options({"startingOffsets": end, "endingOffsets": end}).starting_offsets.value > 0


def test_a_starting_timestamp_after_the_ending_one_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"startingTimestamp \(2026-07-22 .*\) is after option endingTimestamp"):
        parse_options({"startingTimestamp": "2026-07-22", "endingTimestamp": "2026-07-21"})


def test_paths_are_the_one_to_read_and_its_replicas() -> None:
    several = {"paths": '["/a","file:/b,c"]', "Replicas": "/d"}
    assert read_paths({"path": "/a"}) == ("/a",)
    assert read_paths({"PATH": "file:///a"}) == ("/a",)
    assert read_paths({}) == ()
    assert read_paths(several) == ("/a", "/b,c")
    assert parse_options(several).replicas == ("/b,c", "/d")
    assert parse_options({"path": "/a"}).replicas is None


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a", "/a"), ("a:b", "a:b"), ("file:/a", "/a"), ("file:///a b", "/a b"), ("FILE:/a", "/a"), ("a/b:/c", "a/b:/c")],
)
def test_local_paths(path: str, expected: str) -> None:
    assert local_path(path) == expected


def test_remote_paths_are_rejected() -> None:
    with pytest.raises(OptionError, match="path hdfs://n/a: expected a local path, found hdfs: copy the store"):
        local_path("hdfs://n/a")


def test_filters_of_the_options() -> None:
    assert option_filters(ReadOptions()) == Filters()
    parsed = parse_options(
        {"topic": "a,b", "queueId": "3,1", "tags": "x", "startingTimestamp": 1, "endingTimestamp": 2}
    )
    assert option_filters(parsed) == Filters(
        topic=("a", "b"), tags=("x",), queue_id=IntFilter(1, 3, (1, 3)), store_timestamp=IntFilter(1000, 1999)
    )


def test_options_can_be_pickled() -> None:
    parsed = parse_options({"topic": "a", "startingOffsets": "5"})
    assert pickle.loads(pickle.dumps(parsed)) == parsed
