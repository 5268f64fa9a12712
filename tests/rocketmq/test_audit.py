"""The table ``audit``: it lists each disagreement of log and ConsumeQueue, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.format.layout import FLAG_INNER_BATCH
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.state_files import StoreCheckpoint
from pyspark_dledger.rocketmq.rebuild import compare
from pyspark_dledger.rocketmq.tables import TABLES, audit_table, read_table
from pyspark_dledger.rocketmq.tables.audit_table import AUDIT_CODES
from tests.support.generate import (
    Payload,
    Store,
    mq_message,
    raw,
    write_commitlog,
    write_consume_queue,
    write_dledger,
)
from tests.support.golden import ALL, Golden
from tests.support.long_runs import examples, some
from tests.support.queues import FILLER, Unit, file_of, java_hash, units_of, write_units
from tests.support.sparse_copy import copy_tree

Row = dict[str, Any]

COMMITTED = 30
STORED = 1700000000137


def payloads() -> list[Payload]:
    """Messages of two topics and a delay queue, of each kind of transaction, and entries that are no messages."""
    made: list[Payload] = []
    next_offsets: Counter[tuple[str, int]] = Counter()

    def add(topic: str, queue_id: int = 0, tags: str | None = None, **more: Any) -> None:
        properties = [("TAGS", tags)] if tags else []
        offset = next_offsets[topic, queue_id] if more.get("transaction", "none") in ("none", "commit") else 0
        body = b"%d" % len(made)
        made.append(mq_message(topic, body, queue_id=queue_id, queue_offset=offset, properties=properties, **more))
        next_offsets[topic, queue_id] += more.get("transaction", "none") in ("none", "commit")

    for number in range(12):
        add("Orders", number % 2, ["paid", "付款", None, "polygenelubricants"][number % 4])
        add("Pays", 0, None, transaction=["none", "prepared", "commit", "rollback"][number % 4])
        add("SCHEDULE_TOPIC_XXXX", 3, "paid")
        made.append(raw(b"no message"))
    return made


def rows_of(path: Path | str, **options: Any) -> list[Row]:
    log = open_log(path, **options)
    return [row for batch in read_table(log, "audit") for row in batch.to_pylist()]


def codes_of(path: Path | str, **options: Any) -> Counter[str]:
    return Counter(row["code"] for row in rows_of(path, **options))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_dledger(tmp_path, payloads(), file_size=2048)


def queue(store: Store, topic: str, queue_id: int = 0) -> list[Unit]:
    return [unit for unit in units_of(store.rows) if (unit.topic, unit.queue_id) == (topic, queue_id)]


# Stores without disagreements


@pytest.mark.slow
@pytest.mark.parametrize(
    ("golden", "size"), [*((golden, "128m") for golden in ALL), *((golden, "8k") for golden in some(ALL, 12))], ids=str
)
def test_goldens_are_clean(case_folder: Callable[[str], Path], golden: Golden, size: str) -> None:
    """Two brokers were killed: their messages without a unit are after the committed bound."""
    options = {"dataDirs": _data_dirs(case_folder("raw-multipath"))} if golden.case == "raw-multipath" else {}
    assert rows_of(case_folder(golden.case) / golden.folder, maxPartitionBytes=size, **options) == []


def _data_dirs(case: Path) -> list[str]:
    return [str(path) for path in case.glob("path*")]


def test_a_generated_store_is_clean(store: Store) -> None:
    write_units(store.path, units_of(store.rows))
    assert rows_of(store.path) == []


def test_prepared_and_rolled_back_messages_belong_in_no_queue(store: Store) -> None:
    """The twelve messages of Pays have six units."""
    assert len(queue(store, "Pays")) == 6


def test_uncommitted_messages_need_no_unit(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, payloads(), committed=COMMITTED)
    known = {row["commitLogOffset"] for row in store.rows if row["index"] <= COMMITTED}
    write_units(tmp_path, (unit for unit in units_of(store.rows) if unit.commit_log_offset in known))
    assert rows_of(tmp_path) == []
    assert set(codes_of(tmp_path, committedBound="end")) == {"messageNotInQueue"}


def test_a_message_after_the_bound_may_have_its_unit_already(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, payloads(), committed=COMMITTED)
    write_units(tmp_path, units_of(store.rows))
    assert rows_of(tmp_path, committedBound="checkpoint") == []


def test_units_of_expired_messages_are_no_disagreement(store: Store) -> None:
    write_units(store.path, units_of(store.rows))
    Path(store.segments[0].path).unlink()
    assert rows_of(store.path) == []


def test_a_queue_may_begin_with_fillers_in_the_middle_of_a_file(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Late", b"%d" % n, queue_offset=150 + n) for n in range(80)])
    write_units(tmp_path, [Unit("Late", 0, number, *FILLER) for number in range(100, 150)] + units_of(store.rows))
    assert rows_of(tmp_path) == []


def test_messages_of_the_old_commitlog_are_audited(tmp_path: Path) -> None:
    old = write_commitlog(tmp_path, [mq_message("Old", b"%d" % n, queue_offset=n) for n in range(40)])
    store = write_dledger(
        tmp_path, [mq_message("Old", b"%d" % n, queue_offset=40 + n) for n in range(40)], base=old.segments[-1].end
    )
    units = units_of(old.rows + store.rows)
    write_units(tmp_path, units)
    assert rows_of(tmp_path) == []
    shutil.rmtree(tmp_path / "consumequeue")
    write_units(tmp_path, [unit for unit in units if unit.queue_offset >= 38])
    assert codes_of(tmp_path) == {"messageNotInQueue": 38}


def test_all_messages_of_a_plain_commitlog_are_committed(tmp_path: Path) -> None:
    store = write_commitlog(tmp_path, [mq_message("Plain", b"%d" % n, queue_offset=n) for n in range(40)])
    write_units(tmp_path, units_of(store.rows)[:-1])
    assert [(row["code"], row["queueOffset"]) for row in rows_of(tmp_path)] == [("messageNotInQueue", 39)]


def test_an_address_in_consumequeue_ext_is_not_compared(store: Store) -> None:
    write_units(store.path, [unit._replace(tags_code=-(2**63) + 20 * n) for n, unit in enumerate(units_of(store.rows))])
    assert rows_of(store.path) == []


def test_any_delay_of_whole_seconds_is_accepted(store: Store) -> None:
    units = units_of(store.rows)
    write_units(
        store.path, [u._replace(tags_code=STORED + 7000) if u.topic.startswith("SCHEDULE") else u for u in units]
    )
    assert rows_of(store.path) == []


# Each code


def test_a_message_without_a_unit(store: Store) -> None:
    missing = queue(store, "Orders")[3]
    write_units(store.path, [unit for unit in units_of(store.rows) if unit != missing])
    rows = rows_of(store.path)
    assert [(row["code"], row["queueOffset"]) for row in rows] == [("queueOffsetGap", 3), ("messageNotInQueue", 3)]
    assert rows[1] == {
        "code": "messageNotInQueue",
        "topic": "Orders",
        "queueId": 0,
        "queueOffset": 3,
        "commitLogOffset": missing.commit_log_offset,
        "expected": f"a unit of {missing.commit_log_offset}",
        "found": "none written",
    }


def test_messages_after_the_end_of_their_queue(store: Store) -> None:
    last = queue(store, "Orders", 1)[-2:]
    write_units(store.path, [unit for unit in units_of(store.rows) if unit not in last])
    assert [(row["code"], row["queueOffset"], row["found"]) for row in rows_of(store.path)] == [
        ("messageNotInQueue", unit.queue_offset, "the queue ends at 4") for unit in last
    ]


def test_messages_of_a_missing_queue(store: Store) -> None:
    write_units(store.path, [unit for unit in units_of(store.rows) if unit.topic != "Pays"])
    rows = rows_of(store.path)
    assert {(row["code"], row["topic"], row["found"]) for row in rows} == {("messageNotInQueue", "Pays", "no queue")}
    assert len(rows) == 6


def test_a_missing_consumequeue(store: Store) -> None:
    assert codes_of(store.path) == {"messageNotInQueue": len(units_of(store.rows))}


def test_a_unit_without_a_message(store: Store) -> None:
    units = units_of(store.rows)
    wrong = queue(store, "Orders")[2]
    write_units(
        store.path, [unit._replace(commit_log_offset=unit.commit_log_offset + (unit == wrong)) for unit in units]
    )
    rows = rows_of(store.path)
    assert [(row["code"], row["queueOffset"], row["expected"], row["found"]) for row in rows] == [
        ("unitWithoutMessage", 2, f"a message of {wrong.size} bytes", "none"),
        ("messageNotInQueue", 2, f"a unit of {wrong.commit_log_offset}", f"a unit of {wrong.commit_log_offset + 1}"),
    ]


def test_units_after_the_end_of_the_log(store: Store) -> None:
    units = units_of(store.rows)
    write_units(store.path, [*units, Unit("Orders", 0, 6, store.end + 48, 200, 0)])
    assert [(row["code"], row["queueOffset"], row["found"]) for row in rows_of(store.path)] == [
        ("unitWithoutMessage", 6, f"the log ends at {store.end}")
    ]


def test_units_of_a_missing_segment(store: Store) -> None:
    write_units(store.path, units_of(store.rows))
    lost = store.segments[2]
    Path(lost.path).unlink()
    rows = rows_of(store.path)
    assert {row["code"] for row in rows} == {"unitWithoutMessage"}
    assert [row["commitLogOffset"] for row in rows] == [
        unit.commit_log_offset for unit in units_of(store.rows_of(lost))
    ]


@pytest.mark.parametrize(("units_of_part", "least", "most"), [(1, 10, 1100), (audit_table._UNITS_OF_EMPTY_PART, 0, 8)])
def test_positions_without_messages_are_split_into_parts(
    store: Store, monkeypatch: pytest.MonkeyPatch, units_of_part: int, least: int, most: int
) -> None:
    """Any number of units may point there. Few units make few parts: each part opens all queues."""
    monkeypatch.setattr(audit_table, "_UNITS_OF_EMPTY_PART", units_of_part)
    far = store.end + 2**32
    write_units(
        store.path, [*units_of(store.rows), Unit("Orders", 0, 6, far, 200, 0), Unit("Orders", 0, 7, 2**62, 9, 0)]
    )
    log = open_log(store.path)
    parts = TABLES["audit"].plan(log, log.options)
    assert least < len(parts) < most
    assert [part.low for part in parts[1:]] == [part.high for part in parts[:-1]]
    assert [(row["queueOffset"], row["commitLogOffset"]) for row in rows_of(store.path)] == [(6, far), (7, 2**62)]


def test_a_wrong_size(store: Store) -> None:
    wrong = queue(store, "Pays")[1]
    write_units(store.path, [unit._replace(size=unit.size + 7 * (unit == wrong)) for unit in units_of(store.rows)])
    assert [(row["code"], row["expected"], row["found"]) for row in rows_of(store.path)] == [
        ("wrongSize", str(wrong.size), str(wrong.size + 7))
    ]


def test_a_wrong_tags_code(store: Store) -> None:
    wrong = queue(store, "Orders")[0]
    assert wrong.tags_code == 3433164  # "paid".hashCode()
    write_units(store.path, [unit._replace(tags_code=7) if unit == wrong else unit for unit in units_of(store.rows)])
    assert [(row["code"], row["expected"], row["found"]) for row in rows_of(store.path)] == [
        ("wrongTagsCode", "3433164", "7")
    ]


def test_a_wrong_delivery_time(store: Store) -> None:
    wrong = queue(store, "SCHEDULE_TOPIC_XXXX", 3)[4]
    write_units(store.path, [u._replace(tags_code=3433164) if u == wrong else u for u in units_of(store.rows)])
    assert [(row["code"], row["expected"]) for row in rows_of(store.path)] == [
        ("wrongTagsCode", f"whole seconds after {STORED}")
    ]


def test_a_unit_in_another_queue(store: Store) -> None:
    write_units(store.path, units_of(store.rows))
    copy_tree(store.path / "consumequeue" / "Orders" / "0", store.path / "consumequeue" / "Copied" / "5")
    rows = rows_of(store.path)
    assert {(row["code"], row["topic"], row["expected"], row["found"]) for row in rows} == {
        ("wrongQueue", "Copied", "Orders/0", "Copied/5")
    }
    assert len(rows) == len(queue(store, "Orders"))


def test_a_unit_of_a_prepared_message(store: Store) -> None:
    row = next(row for row in store.rows if row["transaction"] == "prepared")
    units = units_of(store.rows)
    write_units(store.path, [*units, Unit("Pays", 0, 6, row["commitLogOffset"], row["storeSize"], 0)])
    assert ("wrongQueue", "no unit of a message that is prepared") in [
        (row["code"], row["expected"]) for row in rows_of(store.path)
    ]


def test_units_at_other_queue_offsets_than_their_messages(store: Store) -> None:
    moved = [
        u._replace(queue_offset=u.queue_offset + (u.topic == "Orders" and u.queue_offset > 3))
        for u in units_of(store.rows)
    ]
    write_units(store.path, moved)
    rows = [row for row in rows_of(store.path) if row["queueId"] == 1]
    assert [(row["code"], row["queueOffset"], row["expected"], row["found"]) for row in rows] == [
        ("queueOffsetGap", 4, "unit 4", "none written"),
        ("queueOffsetGap", 5, "4", "5"),
        ("queueOffsetGap", 6, "5", "6"),
    ]


def test_a_missing_file_of_a_queue(tmp_path: Path) -> None:
    store = write_dledger(tmp_path, [mq_message("Long", b"%d" % n, queue_offset=n) for n in range(250)])
    write_units(tmp_path, units_of(store.rows))
    file_of(tmp_path, "Long", 0, 100).unlink()
    rows = rows_of(tmp_path)
    assert Counter(row["code"] for row in rows) == {"messageNotInQueue": 100, "queueOffsetGap": 1}
    (gap,) = (row for row in rows if row["code"] == "queueOffsetGap")
    assert (gap["queueOffset"], gap["expected"], gap["commitLogOffset"]) == (100, "units 100 to 199", None)


def test_a_file_of_another_size(store: Store) -> None:
    write_units(store.path, units_of(store.rows))
    os.truncate(file_of(store.path, "Orders", 1, 0), 1000)
    (row,) = rows_of(store.path)
    assert (row["code"], row["topic"], row["queueId"], row["queueOffset"]) == ("wrongFileSize", "Orders", 1, 0)
    assert (row["expected"], row["found"]) == ("2000 bytes", "1000 bytes")
    found = {(row.topic, row.queue_id): row for row in compare(store.path, "consumequeue").differences}
    assert found["Orders", 0].is_equal
    assert (found["Orders", 1].is_equal, found["Orders", 1].found) == (False, "1000")


def test_copies_of_the_next_unit_in_place_of_lost_messages_are_no_disagreement(tmp_path: Path) -> None:
    """A rebuild writes them, because consumers lose messages at a filler."""
    numbers = [*range(4), *range(6, 10)]
    store = write_dledger(tmp_path, [mq_message("Orders", b"%d" % n, queue_offset=n) for n in numbers])
    units = units_of(store.rows)
    write_units(tmp_path, [*units, *(units[4]._replace(queue_offset=number) for number in (4, 5))])
    assert rows_of(tmp_path) == []
    assert open_log(tmp_path).findings() == []
    write_units(tmp_path, [units[4]._replace(queue_offset=number) for number in (2, 3)])
    assert codes_of(tmp_path) == {"messageNotInQueue": 2}
    assert [finding.code for finding in open_log(tmp_path).findings()] == ["messageNotInQueue"]


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (-(2**62), 417676066), (5, -9)])
def test_a_damaged_last_unit_hides_no_other(store: Store, offset: int, size: int) -> None:
    """A binary search takes all units before it for those of expired messages, or never reaches it."""
    units = units_of(store.rows)
    wrong = Unit("Orders", 0, 6, offset, size, 5653728)
    write_units(store.path, [*(unit for unit in units if unit[:3] != ("Orders", 0, 2)), wrong])
    found = [(row["code"], row["queueOffset"]) for row in rows_of(store.path)]
    assert ("unitWithoutMessage", 6) in found and ("messageNotInQueue", 2) in found
    codes = {finding.code for finding in open_log(store.path).findings()}
    assert {"consumeQueueUnit", "messageNotInQueue"} <= codes


def test_messages_that_no_queue_can_have_need_no_unit(tmp_path: Path) -> None:
    """Their topic is damaged: a rebuild names them."""
    store = write_commitlog(tmp_path, [mq_message(topic, b"x") for topic in ("Orders", "\0\0", "..", "a/b")])
    write_units(tmp_path, units_of(store.rows[:1]))
    assert rows_of(tmp_path) == []
    assert compare(tmp_path, "consumequeue").is_equal
    assert [finding.code for finding in open_log(tmp_path).findings()] == []


def test_messages_of_a_deleted_topic_need_no_unit(store: Store) -> None:
    """The broker does not know the topic, and it has no queue."""
    write_units(store.path, [unit for unit in units_of(store.rows) if unit.topic != "Pays"])
    (store.path / "config").mkdir()
    for known, codes in (("Pays", {"messageNotInQueue": 6}), ("Orders", {})):
        (store.path / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {known: {}}}))
        assert codes_of(store.path) == Counter(codes)


def test_each_code_has_a_test() -> None:
    assert set(AUDIT_CODES) == {
        *("messageNotInQueue", "unitWithoutMessage", "wrongSize", "wrongTagsCode", "wrongQueue", "queueOffsetGap"),
        "wrongFileSize",
    }


# Several queues for one message


def test_messages_dispatched_to_several_queues(tmp_path: Path) -> None:
    listed = [("INNER_MULTI_DISPATCH", "%LMQ%a,%LMQ%b"), ("INNER_MULTI_QUEUE_OFFSET", "0,5")]
    store = write_dledger(tmp_path, [mq_message("Mqtt", queue_id=2, properties=listed)])
    (unit,) = units_of(store.rows)
    write_units(tmp_path, [unit, unit._replace(topic="%LMQ%a", queue_id=0)])
    assert rows_of(tmp_path) == []
    write_units(tmp_path, [unit._replace(topic="%LMQ%b", queue_id=0, queue_offset=4)])
    assert [(r["code"], r["topic"], r["expected"], r["found"]) for r in rows_of(tmp_path)] == [
        ("queueOffsetGap", "%LMQ%b", "5", "4")
    ]


def test_batch_messages_need_no_unit(tmp_path: Path) -> None:
    write_dledger(tmp_path, [mq_message("Batches", other_flags=FLAG_INNER_BATCH)])
    assert rows_of(tmp_path) == []


# Options and errors


def test_topic_and_queue_id_select_rows(store: Store) -> None:
    assert codes_of(store.path, topic="Orders") == {"messageNotInQueue": 12}
    assert codes_of(store.path, topic="Orders,Pays", queueId=0) == {"messageNotInQueue": 12}
    assert codes_of(store.path, topic="Nothing") == {}


def test_options_without_effect_are_rejected(store: Store) -> None:
    text = "option startingOffsets has no effect on table audit, only on table log and a stream: leave it out"
    with pytest.raises(OptionError, match=text):
        rows_of(store.path, startingOffsets=3)


def test_a_store_without_a_committed_bound(tmp_path: Path) -> None:
    write_dledger(tmp_path, payloads(), checkpoint=False)
    with pytest.raises(
        StoreError, match=r"expected a committed index, .* committedBound=end trusts the end of the log"
    ):
        rows_of(tmp_path)
    assert codes_of(tmp_path, committedBound="end")["messageNotInQueue"] == 30


def test_a_folder_without_a_root(store: Store) -> None:
    with pytest.raises(StoreError, match="expected a whole store to audit, found one segment"):
        rows_of(store.segments[0].path)
    lone = store.path / "alone"
    copy_tree(Path(store.segments[0].path).parent, lone)
    with pytest.raises(StoreError, match="expected a storePathRootDir with the folder consumequeue"):
        rows_of(lone)


def test_messages_written_during_an_audit_are_no_disagreement(tmp_path: Path) -> None:
    """The queues are newer than the plan."""
    made = payloads()
    write_dledger(tmp_path, made[:24], file_size=2048)
    log = open_log(tmp_path)
    parts = TABLES["audit"].plan(log, log.options)
    store = write_dledger(tmp_path, made, file_size=2048)
    write_units(tmp_path, units_of(store.rows))
    assert [row for part in parts for batch in TABLES["audit"].read(part) for row in batch.to_pylist()] == []


# Any damage


def judge(messages: Sequence[Row], units: Sequence[Unit]) -> Counter[tuple[str, str, int, int]]:
    """The expected rows: code, topic, queueId and queueOffset, found by looking up everything."""
    found: Counter[tuple[str, str, int, int]] = Counter()

    def expect(code: str, unit: Unit, is_so: bool = True) -> None:
        found[code, unit.topic, unit.queue_id, unit.queue_offset] += is_so

    by_offset = {row["commitLogOffset"]: row for row in messages if row["kind"] == "message"}
    expected = {unit.commit_log_offset: unit for unit in units_of(messages)}
    by_place = {unit[:3]: unit.commit_log_offset for unit in units}
    in_queue = set()
    for unit in units:
        row = by_offset.get(unit.commit_log_offset)
        if row is None:
            expect("unitWithoutMessage", unit)
            continue
        expect("wrongSize", unit, unit.size != row["storeSize"])
        wait = unit.tags_code - row["storeTimestamp"] // 1000
        is_delay = unit.topic == "SCHEDULE_TOPIC_XXXX"
        fits = (wait >= 0 and wait % 1000 == 0) if is_delay else unit.tags_code == java_hash(row["tags"] or "")
        expect("wrongTagsCode", unit, not fits)
        if (row["topic"], row["queueId"]) != unit[:2] or unit.commit_log_offset not in expected:
            expect("wrongQueue", unit)
        else:
            in_queue.add(unit.commit_log_offset)
            places = range(unit.queue_offset, row["queueOffset"] + 1)
            copies = {by_place.get((*unit[:2], place)) for place in places}
            is_copy = copies == {unit.commit_log_offset}  # as a rebuild writes them
            expect("queueOffsetGap", unit, row["queueOffset"] != unit.queue_offset and not is_copy)
    for offset, unit in expected.items():
        expect("messageNotInQueue", unit, offset not in in_queue)
    for name in {unit[:2] for unit in units}:
        offsets = sorted(unit.queue_offset for unit in units if unit[:2] == name)
        for before, offset in pairwise(offsets):
            found["queueOffsetGap", name[0], name[1], before + 1] += offset > before + 1
    return +found


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), size=st.sampled_from(["1k", "3k", "128m"]))
def test_random_damage_of_units_is_found(
    data: st.DataObject, size: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("audit")
    store = write_dledger(root, payloads(), file_size=2048)
    units = units_of(store.rows)
    offsets = st.sampled_from([unit.commit_log_offset for unit in units] + [5, store.end, store.end + 5000])
    for number in data.draw(st.lists(st.integers(0, len(units) - 1), max_size=8)):
        change = data.draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "commit_log_offset": offsets,
                    "size": st.integers(1, 500),
                    "tags_code": st.integers(-5, 5),
                    "queue_offset": st.integers(0, 15),
                },
            )
        )
        units[number] = units[number]._replace(**change)
    lost = set(data.draw(st.lists(st.integers(0, len(units) - 1), max_size=4)))
    kept = list({unit[:3]: unit for number, unit in enumerate(units) if number not in lost}.values())
    write_units(root, kept)
    found = Counter(
        (row["code"], row["topic"], row["queueId"], row["queueOffset"])
        for row in rows_of(root, maxPartitionBytes=size, committedBound="end")
    )
    assert found == judge(store.rows, kept)


def test_messages_that_are_not_confirmed_need_no_unit(tmp_path: Path) -> None:
    """In controller mode, brokers up to 5.3 dispatch only what is confirmed."""
    store = write_commitlog(tmp_path, [mq_message("Orders", b"x", queue_offset=number) for number in range(9)])
    write_consume_queue(tmp_path, store.rows[:5])
    assert codes_of(tmp_path) == {"messageNotInQueue": 4}
    (tmp_path / "epochFileCheckpoint").write_text("1\n0\n1-0\n")
    for confirmed in (5, 7):
        checkpoint = StoreCheckpoint(confirm_phy_offset=store.rows[confirmed]["pos"])
        (tmp_path / "checkpoint").write_bytes(checkpoint.pack())
        assert codes_of(tmp_path) == Counter({"messageNotInQueue": confirmed - 5} if confirmed > 5 else {})
