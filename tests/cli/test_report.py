"""``dledger report``: its facts are those of the tables, its page is safe and whole, and a browser shows it well."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_dledger import rebuild
from pyspark_dledger.cli.main import main
from pyspark_dledger.cli.output.quantities import bytes_text, duration_text, number_text, percent_text, time_text
from pyspark_dledger.cli.output.stream import ProgressBar
from pyspark_dledger.cli.report import drawing, page, store_figures, time_figures, timeline
from pyspark_dledger.cli.report.facts import Facts, gather, redacted
from pyspark_dledger.cli.report.page import render
from pyspark_dledger.cli.report.page_tables import replica_tables
from pyspark_dledger.cli.report.timeline import Timeline, latency_row
from pyspark_dledger.cli.stores import statistics
from pyspark_dledger.cli.verbs import report
from pyspark_dledger.format import layout
from pyspark_dledger.format.columns import TIMESTAMP
from pyspark_dledger.format.json_text import rows_of
from pyspark_dledger.log import open_log
from pyspark_dledger.rocketmq.check.store_facts import MAX_EXAMPLES
from pyspark_dledger.rocketmq.tables import read_table
from tests.support.damage import write_at
from tests.support.generate import YEAR_1, YEAR_10000, mq_message, write_commitlog, write_dledger
from tests.support.long_runs import examples
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.slow

Row = dict[str, Any]

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")

# Names that a page has to show as text, and nothing else.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a\u202eb",
    "\x01\x1b[31m\x00",
    r"$\frac{1}{2}$",
    "]]></svg></title>",
    "{{7*7}}{% for %}",
    "x" * 255,
    "&amp;",
    "' onmouseover='alert(1)",
    # As what is adapted in the tags of a figure.
    "#1c2126 #d3d9df",
    'id="y href="#x url(#z',
)


def facts_of(path: Path | str, *replicas: Path | str) -> Facts:
    compared = open_log(path, replicas=list(map(str, replicas))) if replicas else None
    return gather(open_log(path), compared, ProgressBar())


def answers(facts: Facts) -> dict[str, tuple[str, str]]:
    found = [*facts.group_verdicts, *facts.verdicts]
    return {verdict.question: (verdict.level, verdict.answer) for verdict in found}


def table(path: Path | str, name: str, **options: Any) -> list[Row]:
    return [row for batch in read_table(open_log(path, **options), name) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def damaged(case_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replica of three that lost a page of 4 KiB."""
    path = tmp_path_factory.mktemp("report") / "damaged"
    copy_tree(case_folder("mq-53-three") / "n1", path)
    write_at(path / "dledger-n1" / "data" / f"{393216:020}", 10 * 4096, bytes(4096))
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain CommitLog whose topics are `HOSTILE`, in a folder with such a name."""
    path = tmp_path_factory.mktemp("report") / "<b>store &amp; more"
    messages = [
        mq_message(name, b"x" * 50, magic=layout.MESSAGE_MAGIC_V2, store_timestamp=1700000000137 + 1000 * number)
        for number, name in enumerate(HOSTILE)
    ]
    write_commitlog(path, messages)
    return path


@pytest.fixture(scope="module")
def extreme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Times of the years 1 and 9999 and none at all, indexes and terms near their ends."""
    path = tmp_path_factory.mktemp("report") / "extreme"
    times = [(0, 0), (YEAR_1, YEAR_10000 - 1), (YEAR_10000 - 1, YEAR_1), (5, 2**62), (-1, 1700000000000)]
    messages = [mq_message("T", b"x", born_timestamp=born, store_timestamp=stored) for born, stored in times]
    terms = [2**62 + number for number in range(len(messages))]
    write_dledger(path, messages, first_index=2**62, terms=terms)
    return path


@pytest.fixture(scope="module")
def facts(case_folder: Callable[[str], Path], damaged: Path, hostile: Path, extreme: Path) -> dict[str, Facts]:
    """The facts of stores of all kinds."""
    live, three = case_folder("mq-53-live"), case_folder("mq-53-three")
    return {
        "live": facts_of(live / "n0", live / "n1", live / "n2"),
        "upgrade": facts_of(case_folder("mq-53-upgrade")),
        "damaged": facts_of(damaged, three / "n0", three / "n2"),
        "killed": facts_of(case_folder("mq-498-upgrade-killed")),
        "plain": facts_of(case_folder("mq-plain")),
        "controller": facts_of(*(case_folder("mq-53-controller") / name for name in ("b1", "b2", "b3"))),
        "raw": facts_of(case_folder("raw-single-040") / "dledger-n0"),
        "hostile": facts_of(hostile),
        "extreme": facts_of(extreme),
    }


STORES = ("live", "upgrade", "damaged", "killed", "plain", "raw", "hostile", "extreme")


PAGES = ("live", "damaged", "controller", "raw", "hostile", "extreme")


@pytest.fixture(scope="module")
def pages(facts: dict[str, Facts]) -> dict[str, str]:
    return {name: render(facts[name], "") for name in PAGES}


# Facts


@pytest.mark.parametrize("store", STORES)
def test_facts_equal_the_tables(facts: dict[str, Facts], store: str) -> None:
    found = facts[store]
    path = found.path
    (state,) = (row for batch in read_table(open_log(path), "state") for row in rows_of(batch, bytes))
    assert found.state == state
    segments = table(path, "segments")
    for name in ("segment", "entries", "usedBytes", "blankBytes", "staleBytes", "corruptBytes", "findings"):
        assert [row[name] for row in found.segments] == [row[name] for row in segments], name
    for name, listed in (("findings", found.findings), ("audit", found.audit)):
        if listed.reason is None:
            rows = table(path, name)
            assert listed.counts == Counter(row["code"] for row in rows)
            for code, examples in listed.examples.items():
                assert examples == [row for row in rows if row["code"] == code][:MAX_EXAMPLES]


@pytest.mark.parametrize("store", STORES)
def test_messages_are_counted_by_topic_term_and_time(facts: dict[str, Facts], store: str) -> None:
    found = facts[store]
    log = open_log(found.path)
    rows = [row for batch in log.scan(["term", "topic", "storeSize", "storeTimestamp"]) for row in batch.to_pylist()]
    messages = [row for row in rows if row["topic"] is not None]
    assert {row["topic"]: row["messages"] for row in found.topics} == Counter(row["topic"] for row in messages)
    assert sum(row["bytes"] for row in found.topics) == sum(row["storeSize"] for row in messages)
    terms = Counter(row["term"] for row in rows if row["term"] is not None)
    assert {row["term"]: row["entries"] for row in found.terms} == terms
    timed = [row for row in rows if row["storeTimestamp"] is not None]
    assert found.timeline.messages == len(timed)
    if timed:
        bins = found.timeline.counts()
        assert bins.messages.sum() + bins.outside == len(timed)


RESTART = "What would a restart with RocketMQ 5.3.3 (assumed, its folder compaction/ shows 5.1 or later) do?"


def test_a_store_that_was_stopped_cleanly_has_only_good_answers(facts: dict[str, Facts]) -> None:
    found = answers(facts["upgrade"])
    assert {level for level, _ in found.values()} == {"good", "info"}
    assert found["What is it?"][1] == "RocketMQ broker in DLedger mode; index 0 to 538; committed up to 538."
    assert found["What is in the store?"][1] == (
        "1,082 messages, 776 KiB in 15 files, stored from 2026-11-21 03:08:25 to 03:08:34 UTC."
    )
    assert found[RESTART][1] == "Would change nothing."
    assert {row["dropped"] for row in facts["upgrade"].recoveries if row["software"] == "RocketMQ"} == {0}
    assert found["What do consumers miss?"][1] == "Nothing."


def test_the_answers_about_damage_name_what_is_lost(facts: dict[str, Facts]) -> None:
    found = answers(facts["damaged"])
    assert found[RESTART] == (
        "error",
        (
            "Would drop 108 entries, of them committed: 503 to 610, would cut 106 ConsumeQueue units, "
            "would serve 1 damaged entry, which it does not notice."
        ),
    )
    dropped = [(row["dropped"], row["lost"]) for row in facts["damaged"].recoveries if row["software"] == "RocketMQ"]
    assert dropped == [(108, ((503, 610),))] * 2
    assert found["What do consumers miss?"] == ("error", "12 units without a message.")
    assert found["Do the replicas agree?"] == (
        "error",
        "No replica contradicts another; n1 has 12 damaged entries; none is behind.",
    )


def test_the_verdict_on_a_group_answers_in_order(facts: dict[str, Facts]) -> None:
    found = facts["damaged"].group_verdicts
    assert [(each.level, each.question) for each in found] == [
        ("info", "What is it?"),
        ("good", "Is anything lost for good?"),
        ("error", "May n1 start?"),
        ("good", "May n0 start?"),
        ("good", "May n2 start?"),
        ("info", "What to do?"),
        ("error", "Do the replicas agree?"),
    ]
    _, lost, n1, n0, _, what, _ = [each.answer for each in found]
    assert lost == "Nothing."
    assert n1.startswith("Must not start as it is: 12 entries damaged, 502 to 513, intact on n0 and n2; ")
    assert "verify: 13 errors (consumeQueueUnit 11, messageStructure 1, corruptBytes 1)" in n1
    assert n0 == "May start and be elected: no replica would lose anything."
    assert re.fullmatch(r"dledger salvage \S+/damaged \S+/n0 \S+/n2 --plan: it writes nothing: .+", what)


def test_the_verdict_is_that_of_check(
    case_folder: Callable[[str], Path], damaged: Path, facts: dict[str, Facts], capsys: pytest.CaptureFixture[str]
) -> None:
    three = case_folder("mq-53-three")
    assert main(["check", str(damaged), str(three / "n0"), str(three / "n2")]) == 1
    printed = capsys.readouterr().out
    for found in facts["damaged"].group_verdicts[:-2]:
        assert found.answer[1:].rstrip(".") in printed


def test_the_verdict_on_a_group_in_controller_mode_answers_in_the_same_order(facts: dict[str, Facts]) -> None:
    found = {each.question: (each.level, each.answer) for each in facts["controller"].group_verdicts}
    assert list(found) == [
        "What is it?",
        "Is anything lost for good?",
        *(f"May {name} start?" for name in ("b1", "b2", "b3")),
        "What to do?",
        "Do the CommitLogs agree?",
    ]
    assert found["Is anything lost for good?"] == (
        "warning",
        "Nothing yet; b1 would lose 159059 confirmed bytes as slave of b2.",
    )
    level, text = found["May b1 start?"]
    assert level == "error"
    assert "RocketMQ 5.3.3 would not start: load() does not know the message in " in text
    names = [row["version"] for row in facts["controller"].recoveries if not row["starts"]]
    assert names == ["5.3.1", "5.3.3", "5.4.0", "5.5.0"]
    assert found["May b2 start?"][1].startswith("May start and be the master: b1 would lose positions 57140 to ")
    assert found["Do the CommitLogs agree?"] == (
        "error",
        "The replicas differ from byte 57,143 on (diverged); none is behind.",
    )
    tables = {table.caption: len(table.rows) for table in replica_tables(facts["controller"])}
    assert tables == {
        "CommitLog of each replica": 3,
        "Bytes of each master epoch": 3,
        "Where Java would truncate a slave": 4,
        "Where CommitLogs agree and differ": 4,
    }


def test_a_damaged_master_and_slave_have_a_verdict(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    stores = [copy_tree(case_folder("mq-plain"), tmp_path / name) for name in ("master", "slave")]
    write_at(stores[0] / "commitlog" / f"{131072:020}", 90, b"?")
    (stores[1] / "commitlog" / f"{262144:020}").unlink()
    facts = facts_of(*stores)
    assert facts.is_trouble
    found = {each.question: (each.level, each.answer) for each in facts.group_verdicts}
    assert found["Is anything lost for good?"] == ("good", "Nothing.")
    assert found["May master start?"][0] == "error"
    assert "intact on slave" in found["May master start?"][1]
    assert "which it does not notice" in answers(facts)[RESTART][1]
    worst = next(row for row in page._recoveries(facts) if row["starts"])
    assert (worst["droppedMessages"], worst["lostPositions"]) == (532, ["131,072 to 430,336"])
    assert found["May slave start?"][0] == "error"
    paths = " ".join(map(str, stores))
    assert found["What to do?"][1].startswith(f"dledger salvage {paths} --plan: ")


@pytest.mark.slow
def test_a_wrong_checksum_is_never_called_intact(case_folder: Callable[[str], Path], tmp_path: Path) -> None:
    paths = [copy_tree(case_folder("mq-53-three") / node, tmp_path / node) for node in ("n0", "n1", "n2")]
    write_at(paths[1] / "dledger-n1" / "data" / f"{0:020}", 48 + 100, b"\xff")
    found = facts_of(*paths)
    text = unescape(render(found, ""))
    assert "nothing is corrupt" in store_figures.bytes_title(found.segments)
    assert "nothing is corrupt" not in store_figures.bytes_title(found.others[0].segments)
    assert "1 warning or error" in store_figures.bytes_title(found.others[0].segments)
    assert answers(found)["May n1 start?"][0] == "error"
    assert "messageCrc" in text
    assert found.is_trouble


def test_a_log_that_lost_its_end_is_not_committed_to_its_end(
    case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = copy_tree(case_folder("mq-53-three") / "n1", tmp_path / "n1")
    (path / "dledger-n1" / "data" / f"{524288:020}").unlink()
    level, answer = answers(facts_of(path))["May n1 start?"]
    assert level == "error"
    assert "its end is lost: checkpoint, index or a ConsumeQueue shows entries 548 to 610" in answer


def test_queues_rebuilt_with_fillers_are_a_warning(damaged: Path, tmp_path: Path) -> None:
    path = copy_tree(damaged, tmp_path / "store")
    rebuild(str(path), "consumequeue")
    found = facts_of(path)
    fillers = sum(row["kind"] == "filler" for row in table(path, "consumeQueue"))
    assert (found.fillers, found.audit.counts) == (fillers, Counter())
    said = "Nothing; 12 units are fillers for messages missing from the log."
    assert answers(found)["What do consumers miss?"] == ("warning", said)
    assert answers(redacted(found))["What do consumers miss?"] == ("warning", said)
    assert "every unit but 12 fillers points to its message" in unescape(render(found, ""))


def test_a_killed_broker_is_recognized_by_its_abort_file(facts: dict[str, Facts]) -> None:
    found = facts["killed"]
    state = dict(page._state(found))
    assert (state["Abort file"], state["Committed index"], state["Proof"]) == ("exists", "661", "consumeQueue")
    restart = answers(found)["What would a restart with RocketMQ 5.3.3 (assumed) do?"]
    assert restart == ("good", "Would cut 6 ConsumeQueue units.")


def test_questions_about_missing_parts_of_a_store_are_left_out(facts: dict[str, Facts]) -> None:
    assert "What do consumers miss?" not in answers(facts["raw"])
    assert "committed" not in answers(facts["plain"])["What is it?"][1]
    assert "Do consumers lag?" not in answers(facts["upgrade"])
    assert facts["upgrade"].consumers.reason is not None
    assert "no broker's store" in (facts["raw"].audit.reason or "")
    assert answers(facts["hostile"])["What do consumers miss?"][1] == "9 messages that are in no queue."
    assert facts["plain"].no_recovery is None


def test_a_raw_log_of_0_4_is_judged_by_its_own_software(facts: dict[str, Facts]) -> None:
    question = "What would a restart with DLedger 0.4 (its files are those of 0.4.0) do?"
    assert answers(facts["raw"])[question] == ("good", "Would change nothing.")


def test_an_empty_log_loses_nothing_on_a_restart(case_folder: Callable[[str], Path]) -> None:
    found = answers(facts_of(case_folder("raw-040-snapshot-blank") / "dledger-n2"))
    assert found["What is in the store?"] == ("info", "Nothing.")
    assert found["What is it?"] == ("info", "DLedger log; no entries.")
    question = "What would a restart with DLedger 0.4 (its files are those of 0.4.0) do?"
    assert found[question] == ("good", "Would change nothing.")


def test_consumers_lag_by_group(facts: dict[str, Facts]) -> None:
    found = facts["live"]
    rows = [row for row in table(found.path, "consumers") if row["topic"] is not None]
    lags: Counter[str] = Counter()
    for row in rows:
        lags[row["consumerGroup"]] += max(row["lag"] or 0, 0)
    assert {row["consumerGroup"]: row["lag"] for row in found.consumers.groups if row["queues"]} == lags
    assert [row["lag"] for row in found.consumers.furthest[:3]] == sorted(
        (row["lag"] or 0 for row in rows), reverse=True
    )[:3]
    assert answers(found)["Do consumers lag?"][1].startswith(f"analytics lags by {lags['analytics']} messages; all")


def test_replicas_that_diverged_are_compared_and_not_refused(case_folder: Callable[[str], Path]) -> None:
    nodes = [case_folder("mq-498-three-diverged") / name for name in ("n2", "n0", "n1")]
    found = facts_of(*nodes)
    assert answers(found)["Do the replicas agree?"] == (
        "error",
        "The replicas differ from index 178 on (diverged); n2 is 170 entries behind n0.",
    )
    assert found.comparison is not None
    assert found.comparison.first_divergence is not None


@pytest.mark.parametrize("segments", [0, 1])
def test_an_empty_store_has_a_page(tmp_path: Path, segments: int) -> None:
    write_dledger(tmp_path / "s", [])
    data = tmp_path / "s" / "dledger-n0" / "data"
    data.mkdir(exist_ok=True)
    for number in range(segments):
        (data / f"{4096 * number:020}").write_bytes(bytes(4096))
    found = facts_of(tmp_path / "s")
    assert answers(found)["What is in the store?"] == ("info", "Nothing.")
    assert "<h1>" in render(found, "")


def test_topics_and_terms_above_the_limit_are_counted_together(
    facts: dict[str, Facts], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = facts["live"]
    monkeypatch.setattr(statistics, "_MAX_TOPICS", 2)
    monkeypatch.setattr(statistics, "_MAX_TERMS", 1)
    found = facts_of(whole.path)
    assert found.total == whole.total
    assert [row["topic"] is None for row in found.topics] == [False, False, True]
    assert [row["term"] for row in found.terms] == [1, None]
    for name in ("messages", "bytes"):
        assert sum(row[name] for row in found.topics) == sum(row[name] for row in whole.topics)
    assert sum(row["entries"] for row in found.terms) == sum(row["entries"] for row in whole.terms)
    assert "<h1>" in render(found, "")


# Time


def batch_of(
    stored: Sequence[int | None], born: Sequence[int | None] | None = None, term: int | None = 1
) -> pa.RecordBatch:
    """Rows with times in milliseconds since 1970."""

    def times(values: Sequence[int | None]) -> pa.Array:
        return pa.array([None if value is None else value * 1000 for value in values], pa.int64()).cast(TIMESTAMP)

    return pa.RecordBatch.from_arrays(
        [
            pa.array([term] * len(stored), pa.int64()),
            times(stored),
            times(stored if born is None else born),
            pa.array([100] * len(stored), pa.int32()),
        ],
        list(Timeline.COLUMNS),
    )


def timeline_of(*batches: pa.RecordBatch) -> Timeline:
    found = Timeline()
    for batch in batches:
        found.add(batch)
    return found


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.integers(1_700_000_000_000, 1_700_000_500_000), min_size=1, max_size=60),
    st.integers(1, 300),
    st.integers(1, 59),
)
def test_every_message_is_in_one_bin(times: list[int], most: int, cut: int) -> None:
    times = sorted(times)
    found = timeline_of(*(batch_of(part) for part in (times[:cut], times[cut:]) if part)).counts(most)
    assert len(found.messages) <= most
    assert found.outside == 0
    edges = found.start + found.width * np.arange(len(found.messages) + 1)
    assert found.messages.tolist() == np.histogram(times, [*edges[:-1], edges[-1] - 0.5])[0].tolist()
    assert found.size.tolist() == (found.messages * 100).tolist()


def test_memory_is_bounded_for_any_number_of_times() -> None:
    found = Timeline()
    for number in range(20):
        found.add(batch_of(list(range(number * 10_000_000, number * 10_000_000 + 20_000_000, 2_000))))
    assert len(found._stored._keys) <= timeline._MAX_BINS
    assert found.counts().messages.sum() == found.messages == 200_000


def test_a_time_far_from_all_others_does_not_stretch_the_axis() -> None:
    times = list(range(1_700_000_000_000, 1_700_000_010_000))
    found = timeline_of(batch_of([YEAR_1, *times, YEAR_10000 - 1])).counts()
    assert (found.start, found.end, found.outside) == (times[0], times[-1] + 1, 2)


def test_gaps_are_exact_and_the_longest_come_first() -> None:
    found = timeline_of(batch_of([1000, 1010, 4000]), batch_of([4001, 9000]))
    assert [(gap.start, gap.end) for gap in found.gaps] == [(4001, 9000), (1010, 4000), (1000, 1010), (4000, 4001)]


def test_a_title_mentions_the_gap_before_a_term() -> None:
    first, second = list(range(0, 60_000, 100)), list(range(68_000, 120_000, 100))
    later = list(range(130_000, 160_000, 100))
    found = timeline_of(batch_of(first), batch_of(second, term=2), batch_of(later, term=2))
    assert time_figures.throughput_title(found) == (
        "The peak is 10 messages/s at 00:00:00; nothing was stored for 10.1 s from 00:01:59.900 on, "
        "and for 8.1 s from 00:00:59.900 on, until term 2 began."
    )


@pytest.mark.parametrize(
    ("times", "title"),
    [
        ([5], "The peak is 1 message within 1 ms from 00:00:00.005."),
        (list(range(0, 10_000, 25)), "The peak is 4 messages within 100 ms from 00:00:00.000."),
        (list(range(0, 10**6, 1_000)), "The peak is 10 messages within 10 s from 00:00:00."),
        (list(range(0, 10**6, 500)), "The peak is 2 messages/s at 00:00:00."),
        (
            [0, 0, 10**11],
            (
                "The peak is 2 messages within 10 days from 1970-01-01; "
                "nothing was stored for 3.2 years from 1970-01-01 00:00:00.000 on."
            ),
        ),
        (
            [*range(0, 10**6, 500), 10**12],
            "The peak is 2 messages/s at 00:00:00. 1 message is not drawn: stored at times far from all others.",
        ),
    ],
    ids=["one", "in_a_moment", "one_a_second", "two_a_second", "rare", "one_far_away"],
)
def test_a_title_has_only_observed_rates_and_drawn_gaps(times: list[int | None], title: str) -> None:
    assert time_figures.throughput_title(timeline_of(batch_of(times))) == title


def test_rare_messages_are_counted_by_the_day() -> None:
    drawn = time_figures.throughput(timeline_of(batch_of([0, 1, 10**11])))
    assert drawn.axes[0].get_ylabel() == "messages per day"


@pytest.mark.parametrize(("size", "ticks"), [(32, [0, 8, 16, 24, 32]), (64, [0, 16, 32, 48, 64]), (4, [0, 1, 2, 3, 4])])
def test_ticks_of_sizes_are_powers_of_two(facts: dict[str, Facts], size: int, ticks: list[int]) -> None:
    row = {**facts["raw"].segments[0], "usedBytes": size << 10, "blankBytes": 0, "unwrittenBytes": 0}
    axes = store_figures.bytes_by_file([row]).axes[0]
    assert [tick for tick in axes.get_yticks() if 0 <= tick <= size] == ticks


def test_percentiles_of_latencies_are_right_within_a_bucket() -> None:
    latencies = np.random.default_rng(7).lognormal(4, 2, 5000).astype(int)
    stored = [1_700_000_000_000] * len(latencies)
    found = timeline_of(batch_of(stored, [at - int(late) for at, late in zip(stored, latencies, strict=True)]))
    for part in (0.5, 0.9, 0.99, 1.0):
        exact = np.quantile(latencies, part, method="inverted_cdf")
        assert found.latency_percentile(part) == pytest.approx(exact, rel=0.01, abs=1)


def test_rows_of_the_latency_map_match_their_labels() -> None:
    for late in (0, 1, 9, 10, 999, 1000, 1001, 86_400_000, 10**14):
        bins = timeline_of(batch_of([1_700_000_000_000], [1_700_000_000_000 - late])).latencies()
        (row,) = np.flatnonzero(bins.messages.any(axis=1))
        assert int(row) == int(latency_row(late) + 1e-9)


def test_messages_born_after_they_were_stored_are_counted_separately() -> None:
    found = timeline_of(batch_of([1000, 2000], [1500, 1990]))
    assert (found.born_later, found.timed) == (1, 1)
    assert time_figures.latency_title(found) == (
        "Every message was stored within 10 ms of its birth. 1 message was born after being stored: clocks differ."
    )


OLD_BIRTHS = "Such old births mean that clocks differ, messages were stored again, or times are not real."


@pytest.mark.parametrize(
    ("latencies", "is_explained"),
    [([86_000_000] * 3, False), ([10, 10, 10, 200_000_000], False), ([10, 200_000_000, 200_000_000], True)],
    ids=["a_day", "few", "most"],
)
def test_old_births_of_most_messages_are_explained(latencies: list[int], is_explained: bool) -> None:
    stored = [1_700_000_000_000] * len(latencies)
    found = timeline_of(batch_of(stored, [at - late for at, late in zip(stored, latencies, strict=True)]))
    titles = [time_figures.latency_title(found), " ".join(time_figures.time_axis(found).get_suptitle().split())]
    assert [title.endswith(OLD_BIRTHS) for title in titles] == [is_explained] * 2
    assert [OLD_BIRTHS in title for title in titles] == [is_explained] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "times",
    [[5], [5, 5], [0, 1], [YEAR_1, YEAR_10000 - 1], list(range(0, 10**9, 10**6))],
    ids=["one", "same", "neighbours", "extremes", "many"],
)
def test_every_figure_of_time_can_be_drawn(times: list[int | None]) -> None:
    found = timeline_of(*(batch_of([time], [0], term) for term, time in enumerate(times)))
    for draw in (time_figures.throughput, time_figures.latency_map, time_figures.time_axis):
        if draw is time_figures.throughput or found.timed:
            title, svg = drawing.svg(draw(found), "f")
            assert title
            assert svg.startswith("<svg ")


def test_a_figure_is_the_same_every_time_and_takes_the_colours_of_its_page(facts: dict[str, Facts]) -> None:
    first, second = (drawing.svg(time_figures.time_axis(facts["live"].timeline), "f") for _ in range(2))
    assert first == second
    assert "currentColor" in first[1]
    assert drawing.INK not in first[1]
    assert drawing.png(store_figures.retention(facts["live"].segments)).startswith(b"\x89PNG")


# Units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number_text(1234567), "1,234,567"),
        (number_text(0.4753), "0.475"),
        (bytes_text(0), "0 bytes"),
        (bytes_text(1), "1 byte"),
        (bytes_text(1023), "1023 bytes"),
        (bytes_text(1024), "1.0 KiB"),
        (bytes_text(65536), "64.0 KiB"),
        (bytes_text(1023 * 1024), "1023 KiB"),
        (bytes_text(2**30 - 963), "1.0 GiB"),
        (bytes_text(2**63 - 1), "8.0 EiB"),
        (percent_text(0, 5), "0 %"),
        (percent_text(1, 10**6), "under 0.1 %"),
        (percent_text(10**6 - 1, 10**6), "over 99.9 %"),
        (percent_text(5, 5), "100 %"),
        (percent_text(0, 0), "0 %"),
        (duration_text(0), "0 ms"),
        (duration_text(250), "250 ms"),
        (duration_text(6400), "6.4 s"),
        (duration_text(3_600_000), "1 h"),
        (duration_text(86_400_000), "1 day"),
        (duration_text(31_557_600_000 * 3), "3 years"),
        (time_text(0), "1970-01-01 00:00:00.000"),
        (time_text(-1, 1000), "1969-12-31 23:59:59"),
        (time_text(YEAR_1, 86_400_000), "0001-01-01"),
        (time_text(YEAR_10000 * 2, 60_000), "18029-12-31 00:00"),
    ],
)
def test_units(text: str, expected: str) -> None:
    assert text == expected


# The page


class Page(HTMLParser):
    """The elements of a page: each with its attributes and the text right in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


@pytest.mark.slow
@pytest.mark.parametrize("store", PAGES)
def test_a_page_loads_nothing(pages: dict[str, str], store: str) -> None:
    page = Page(pages[store])
    assert page.all("script", "iframe", "object", "embed", "link", "base", "form", "img") == []
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert (value or "").startswith(("#", "data:image/png;base64,")), (tag, name, value)
    style = " ".join(text for tag, text in page.texts if tag == "style")
    style += " ".join(attributes.get("style") or "" for _, attributes in page.elements)
    assert set(re.findall(r"url\(\s*['\"]?(.)", pages[store])) <= {"#"}
    assert "@import" not in style
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@pytest.mark.slow
@pytest.mark.parametrize("store", PAGES)
def test_a_page_is_well_formed_and_labelled(pages: dict[str, str], store: str) -> None:
    page = Page(pages[store])
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    targets = {(link["href"] or "").removeprefix("#") for link in page.all("a")}
    assert targets <= set(ids)
    assert all(head.get("scope") == "col" for head in page.all("th"))
    drawings = page.all("svg")
    labels = [drawing["aria-labelledby"] for drawing in drawings]
    assert all(drawing["role"] == "img" for drawing in drawings)
    assert set(labels) <= {title.get("id") for title in page.all("title")}
    assert len(page.all("figcaption")) == len(drawings)
    assert page.all("html") == [{"lang": "en"}]


def test_names_of_a_store_are_shown_as_text(pages: dict[str, str]) -> None:
    page = Page(pages["hostile"])
    cells = {text for tag, text in page.texts if tag == "td"}
    assert set(HOSTILE) - cells == {"a\u202eb", "\x01\x1b[31m\x00"}
    assert {"a\\u202eb", "\\u0001\\u001b[31m\\u0000"} <= cells
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", pages["hostile"])
    labels = [text for tag, text in page.texts if tag == "text"]
    assert "<script>alert(1)</script>" in labels
    assert {r"$\frac{1}{2}$", "#1c2126 #d3d9df", 'id="y href="#x url(#z'} <= set(labels)
    (name,) = [text for tag, text in page.texts if tag == "h1"]
    assert name.endswith("<b>store &amp; more")


def test_pages_of_the_same_facts_differ_only_in_their_time(facts: dict[str, Facts], pages: dict[str, str]) -> None:
    again = render(facts_of(facts["raw"].path), " at 2030-01-01 00:00:00 UTC")
    differing = [
        line for line, other in zip(pages["raw"].splitlines(), again.splitlines(), strict=True) if line != other
    ]
    assert len(differing) == 1
    assert "Made by dledger report" in differing[0]


@pytest.mark.slow
def test_a_page_stays_small_for_a_large_store(facts: dict[str, Facts]) -> None:
    from dataclasses import replace

    segments = [{**facts["live"].segments[0], "baseOffset": number << 30} for number in range(20_000)]
    topics = [{**facts["live"].topics[0], "topic": f"topic {number}"} for number in range(20_000)]
    text = render(replace(facts["raw"], segments=segments, topics=topics), "")
    assert len(text) < 2_000_000
    assert "The first 500 of 20,000" in text


@pytest.mark.slow
def test_a_redacted_page_names_no_topic_group_or_path(facts: dict[str, Facts]) -> None:
    for store in ("live", "damaged"):
        found = redacted(facts[store])
        texts = render(found, ""), json.dumps(found.as_json())
        names = {row["topic"] for row in facts[store].topics}
        names |= {row["consumerGroup"] for row in facts[store].consumers.groups}
        names.add(str(Path(facts[store].path).parent))
        for text in texts:
            assert [name for name in names if name in text] == []
        assert [row["messages"] for row in found.topics] == [row["messages"] for row in facts[store].topics]
        assert [verdict.level for verdict in found.verdicts] == [verdict.level for verdict in facts[store].verdicts]


@pytest.mark.parametrize("given", [".", "n0", "./n0", "n0/dledger-n0"])
def test_a_redacted_page_names_no_parent_folder_of_the_store(
    case_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    folder = case_folder("mq-498-three-diverged")
    monkeypatch.chdir(folder / "n0" if given == "." else folder)
    found = facts_of(given)
    assert str(folder) in (found.consumers.reason or "")
    hidden = redacted(found)
    assert re.fullmatch(r"redacted:[0-9a-f]{16}:\d+/config: expected topics\.json, .*", hidden.consumers.reason or "")
    assert folder.name not in json.dumps(hidden.as_json())


def test_notes_about_a_restart_name_their_versions(facts: dict[str, Facts]) -> None:
    notes = page._recovery_notes(facts["killed"])
    assert [note.partition(": Java starts with ")[0::2] for note in notes if "Java starts with" in note] == [
        ("DLedger 0.1, 0.2, 0.3 and 0.3.2, RocketMQ 4.9.8 and 5.3.3", ANY),
        ("DLedger 0.4", ANY),
    ]
    assert any(note.startswith("RocketMQ 4.9.8: abort exists, but this version recovers as after") for note in notes)
    of_all = [note for note in page._recovery_notes(facts["damaged"]) if note.startswith("the scan stops in data/")]
    assert len(of_all) == 1


# The command


def run(*arguments: object) -> int:
    return main(["report", *map(str, arguments)])


@pytest.mark.slow
def test_a_report_replaces_only_an_earlier_one_and_is_never_partial(
    case_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, page = case_folder("raw-single-040") / "dledger-n0", tmp_path / "report.html"
    assert run(store, "-o", page) == 0
    assert page.stat().st_mode & 0o777 == 0o666 & ~report._umask()
    first = page.read_text("utf-8")
    assert f"<h1>{store}</h1>" in first

    def fails(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        assert run(store, "-o", page) == 2
    assert page.read_text("utf-8") == first
    assert os.listdir(tmp_path) == ["report.html"]

    assert run(store, "-o", page) == 0
    page.write_text("<p>my notes</p>")
    capsys.readouterr()
    assert run(store, "-o", page) == 2
    assert "exists and is not an earlier report" in capsys.readouterr().err
    assert page.read_text() == "<p>my notes</p>"


@pytest.mark.parametrize("place", ["", "commitlog", "consumequeue"])
def test_nothing_is_written_into_the_store(
    case_folder: Callable[[str], Path], place: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = case_folder("mq-plain")
    (tmp_path / "link").symlink_to(store / place)
    for folder in (store / place, tmp_path / "link"):
        assert run(store, "-o", folder / "report.html") == 2
        assert "is in the store " in capsys.readouterr().err


def test_nothing_is_written_into_a_replica(case_folder: Callable[[str], Path]) -> None:
    three = case_folder("mq-53-three")
    assert run(three / "n0", three / "n1", "-o", three / "n1" / "report.html") == 2


def test_a_missing_folder_is_named(
    case_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(case_folder("mq-plain"), "-o", tmp_path / "none" / "r.html") == 2
    assert "make it first" in capsys.readouterr().err


def test_the_page_goes_to_standard_output(
    case_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(case_folder("raw-single-040") / "dledger-n0", "-o", "-") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("<!DOCTYPE html>")
    assert printed.endswith("</html>\n")


def test_the_facts_are_printed_as_one_json_object(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(damaged, "--json", "--redact") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["findings"]["counts"]["consumeQueueUnit"] == 11
    assert found["path"].startswith("redacted:")
    assert run(damaged, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == str(damaged)
    assert {row["dropped"] for row in found["recovery"]} == {108}


def test_replicas_can_be_given_as_an_option_too(
    case_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [str(case_folder("mq-498-three-diverged") / name) for name in ("n0", "n1", "n2")]
    assert run(nodes[0], "--json", "--option", f"replicas={json.dumps(nodes[1:])}", "--option", "groupSize=3") == 1
    by_option = json.loads(capsys.readouterr().out)
    assert run(*nodes, "--json", "--option", "groupSize=3") == 1
    assert json.loads(capsys.readouterr().out) == by_option
    assert by_option["replicas"]["firstDivergence"]["index"] == 178


def test_missing_packages_are_named_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> Any:
        return None if name == "matplotlib" else known(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert run("/no/such/store", "-o", "x.html") == 2
    error = capsys.readouterr().err
    assert "found no matplotlib: pip install matplotlib," in error
    assert run("/no/such/store", "--json") == 2
    assert "/no/such/store" in capsys.readouterr().err


def test_an_option_that_selects_rows_is_rejected(
    case_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(case_folder("mq-plain"), "--json", "--option", "topic=OrderTopic") == 2
    assert "option topic has no effect on dledger report" in capsys.readouterr().err


def test_the_documentation_names_every_key_of_the_json(facts: dict[str, Facts]) -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "report.md").read_text()
    cells = re.findall(r"^- (`[\w`, ]+`):", text, re.MULTILINE)
    assert re.findall(r"\w+", " ".join(cells)) == list(facts["live"].as_json())


def test_the_exit_code_is_1_for_trouble_only(facts: dict[str, Facts]) -> None:
    """The messages of the hostile store are in no queue."""
    troubled = {name for name in STORES if facts[name].is_trouble}
    assert troubled == {"damaged", "extreme", "hostile"}


# In a browser

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb"),
)

# The lowest contrast of a text with its background, by WCAG 2, with that text.
LOWEST_CONTRAST = """
const luminance = color => {
  const [r, g, b] = color.match(/[0-9.]+/g).slice(0, 3)
    .map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = element => {
  for (; element; element = element.parentElement) {
    const color = getComputedStyle(element).backgroundColor;
    if (!/rgba\\(.*, 0\\)/.test(color)) return color;
  }
  return "rgb(255, 255, 255)";
};
let lowest = [100, ""];
const texts = "h1, h2, h3, p, a, span, li, td, th, dt, dd, caption, summary, code, text, figcaption";
for (const element of document.querySelectorAll(texts)) {
  if (!element.checkVisibility() || !element.textContent.trim()) continue;
  const style = getComputedStyle(element);
  const pair = [luminance(element.tagName === "text" ? style.fill : style.color), luminance(background(element))];
  const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (contrast < lowest[0]) lowest = [contrast, `${element.tagName} ${element.className} ${element.textContent}`];
}
return lowest;
"""

# Letters of a drawing that lie outside of it.
CUT_OFF = """
const cut = [];
for (const drawing of document.querySelectorAll("svg")) {
  const edge = drawing.getBoundingClientRect();
  for (const text of drawing.querySelectorAll("text")) {
    const box = text.getBoundingClientRect();
    const isWide = box.left < edge.left - 2 || box.right > edge.right + 2;
    if (isWide || box.top < edge.top - 2 || box.bottom > edge.bottom + 2) cut.push(text.textContent);
  }
}
return cut;
"""


class Browser:
    """A browser without a window; `open` gives it a page, a width in pixels and a colour scheme."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))

    def open(self, page: Path, width: int = 1280, scheme: str = "light") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(page.as_uri())

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The requests since the page was opened."""
        events = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if os.environ.get("DLEDGER_BROWSER_TESTS") == "0":
        pytest.skip("DLEDGER_BROWSER_TESTS=0: no browser is wanted")
    if not (CHROMIUM.exists() and DRIVER.exists()):
        pytest.skip(
            f"needs Debian's chromium and chromium-driver ({CHROMIUM}, {DRIVER}): tools/browser.sh installs them"
        )
    # Not below pytest's folder: a socket's path must not be long.
    with tempfile.TemporaryDirectory(prefix="dledger-browser-", ignore_cleanup_errors=True) as folder:
        found = Browser(Path(folder))
        try:
            yield found
        finally:
            found.driver.quit()


@pytest.fixture(scope="module")
def files(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each page as a file."""
    folder = tmp_path_factory.mktemp("pages")
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, "utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.mark.slow
@pytest.mark.parametrize("store", PAGES)
def test_a_browser_opens_the_page_and_requests_nothing_else(
    browser: Browser, files: dict[str, Path], store: str
) -> None:
    browser.open(files[store])
    assert browser.complaints() == []
    assert {url for url in browser.requests() if not url.startswith("data:")} == {files[store].as_uri()}


@pytest.mark.slow
@pytest.mark.parametrize("store", PAGES)
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_its_width_and_drawings_are_whole(
    browser: Browser, files: dict[str, Path], store: str, width: int
) -> None:
    browser.open(files[store], width)
    window, page, shown = browser.run(
        "const e = document.documentElement; return [innerWidth, e.scrollWidth, e.clientWidth]"
    )
    assert window == width
    assert page == shown
    sizes = browser.run(
        "return [...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"
    )
    assert sizes
    assert all(wide > 500 and high > 100 for wide, high in sizes)
    assert browser.run(CUT_OFF) == []


@pytest.mark.parametrize("width", [1280, 360])
def test_links_of_the_contents_lead_to_headings(browser: Browser, files: dict[str, Path], width: int) -> None:
    browser.open(files["live"], width)
    links = browser.run("return [...document.querySelectorAll('nav a')].map(link => link.hash)")
    assert len(links) == 8
    for link in links:
        browser.run(f"document.querySelector('nav a[href=\"{link}\"]').click()")
        top, nav_end, window = browser.run(
            f"const heading = document.querySelector('{link} h2').getBoundingClientRect();"
            "const nav = document.querySelector('nav').getBoundingClientRect();"
            "return [heading.top, nav.right < heading.left ? 0 : nav.bottom, innerHeight]"
        )
        assert nav_end <= top < window, link


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("store", ["live", "damaged"])
def test_text_can_be_read_in_either_scheme(browser: Browser, files: dict[str, Path], store: str, scheme: str) -> None:
    browser.open(files[store], scheme=scheme)
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[scheme]
    contrast, text = browser.run(LOWEST_CONTRAST)
    assert contrast >= 4.5, text


def test_a_browser_shows_hostile_names_as_they_are(browser: Browser, files: dict[str, Path]) -> None:
    browser.open(files["hostile"])
    shown = browser.run("return [...document.querySelectorAll('td, text')].map(element => element.textContent)")
    assert {"<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "]]></svg></title>"} <= set(shown)
    assert browser.run("return document.scripts.length + document.images.length") == 0
