"""What the verbs about a store print, and their exit codes."""

from __future__ import annotations

import base64
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.rocketmq.tables import TABLES
from tests.support.command_line import Ran
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, raw, write_commitlog, write_dledger
from tests.support.sparse_copy import copy_tree

Json = dict[str, Any]
ESCAPE = "\x1b"


# Every verb, on stores that Java wrote: the golden case, the paths in it, further arguments, and the exit code.

THREE = ["dledger-n0", "dledger-n1", "dledger-n2"]
ON_GOLDENS = [
    ("dump", "mq-53-upgrade", ["."], [], 0),
    ("segments", "mq-53-upgrade", ["."], [], 0),
    ("segments", "raw-three", THREE, [], 0),
    ("state", "mq-53-upgrade", ["."], [], 0),
    ("state", "raw-three", THREE, [], 0),
    ("stats", "mq-53-upgrade", ["."], [], 0),
    ("stats", "raw-single", ["."], [], 0),
    ("verify", "raw-truncated-tail", ["dledger-n1"], [], 0),
    ("recovery", "raw-killed", ["."], [], 0),
    ("recovery", "raw-killed", ["."], ["--java", "0.3.1.2"], 0),
    ("recovery", "mq-53-upgrade", ["."], ["--rocketmq", "5.3.3"], 0),
    ("recovery", "mq-plain", ["."], ["--rocketmq", "5.3.3"], 0),
    ("recovery", "mq-plain", ["."], [], 0),
    ("state", "mq-plain", ["."], ["--queues"], 0),
    ("recovery", "mq-53-controller", ["b1", "b2"], [], 1),
    ("diff", "raw-three", THREE, [], 0),
    ("diff", "raw-three", THREE, ["--md5"], 0),
    ("diff", "raw-three-diverged", THREE, [], 1),
    ("diff", "raw-three-diverged", THREE, ["--md5"], 1),
    ("audit", "mq-53-single", ["."], [], 0),
    ("find", "mq-53-single", ["."], ["5"], 0),
    ("find", "mq-53-single", ["."], ["999999"], 1),
    ("dump", "mq-53-upgrade", ["."], ["--table", "consumeQueue"], 0),
    ("dump", "mq-53-upgrade", ["."], ["--table", "indexFile", "--limit", "3"], 0),
    ("dump", "mq-53-upgrade", ["."], ["--table", "indexUnits"], 0),
    ("dump", "raw-killed", ["."], ["-o", "table=findings"], 0),
]


@pytest.mark.parametrize(("verb", "case", "paths", "more", "code"), ON_GOLDENS)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_each_verb_on_stores_that_java_wrote(
    verb: str,
    case: str,
    paths: list[str],
    more: list[str],
    code: int,
    as_json: bool,
    case_folder: Callable[[str], Path],
    run: Callable[..., Ran],
) -> None:
    done = run(verb, *[case_folder(case) / path for path in paths], *more, *(["--json"] if as_json else []))
    assert done.code == code, done.err
    assert ESCAPE not in done.out + done.err
    if as_json:
        assert all(isinstance(row, dict) for row in done.rows)
    else:
        assert done.out or verb == "find"
        assert all(line == line.rstrip() or verb == "dump" for line in done.out.splitlines())


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("diff", "consumers", "indexFile")])
def test_json_rows_are_the_rows_of_the_table(name: str, broker: Store, run: Callable[..., Ran]) -> None:
    """The columns by their names, in their order, nulls kept."""
    by_table = run("dump", broker.path, "--table", name, "--json").rows
    assert all(list(row) == TABLES[name].schema.names for row in by_table)
    verb = {"findings": "verify"}.get(name, name)
    if verb in ("segments", "state", "verify", "audit"):
        assert run(verb, broker.path, "--json").rows == by_table


def test_json_of_the_log_has_all_its_columns(store: Store, run: Callable[..., Ran]) -> None:
    rows = run("dump", store.path, "--json").rows
    assert [row["index"] for row in rows] == list(range(10))
    assert rows[1]["topic"] is None
    assert base64.b64decode(rows[1]["body"]) == b"raw body"
    assert rows[0]["storeTimestamp"] == "2023-11-14T22:13:20.137Z"


# dump


def test_dump_prints_one_line_per_row(store: Store, run: Callable[..., Ran]) -> None:
    done = run("dump", store.path, "--columns", "index,topic", "-o", "startingOffsets=8")
    assert (done.code, done.out) == (0, "index=8 topic=Orders\nindex=9\n")


@pytest.mark.parametrize(
    ("arguments", "indexes"),
    [
        (["--from", "8"], [8, 9]),
        (["--from", "index=2", "--to", "4"], [2, 3]),
        (["--from", "pos=1"], list(range(1, 10))),
        (["--to", "3", "--limit", "2"], [0, 1]),
        (["--limit", "0"], []),
        (["--topic", "Orders"], [0, 2, 4, 6, 8]),
        (["--topic", "Orders", "--from", "3"], [4, 6, 8]),
        (["--queue-id", "1"], []),
        (["--from", "2023-11-14T22:13:20"], [0, 2, 4, 6, 8]),
        (["--from", "1700000000138"], []),
        (["-o", "isolationLevel=read_committed"], list(range(7))),
    ],
)
def test_dump_prints_the_selected_rows(
    store: Store, arguments: list[str], indexes: list[int], run: Callable[..., Ran]
) -> None:
    assert [row["index"] for row in run("dump", store.path, "--json", *arguments).rows] == indexes


BODIES = {
    "text": {b"plain": "plain", b"\xff\n": "\\xff\n", "é".encode(): "é"},
    "hex": {b"plain": "706c61696e", b"\xff\n": "ff0a", "é".encode(): "c3a9"},
    "base64": {b"plain": "cGxhaW4=", b"\xff\n": "/wo=", "é".encode(): "w6k="},
}


@pytest.mark.parametrize("form", BODIES)
def test_bodies_are_printed_in_each_form(form: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    path = write_dledger(tmp_path, [raw(body) for body in BODIES[form]]).path
    assert [row["body"] for row in run("dump", path, "--json", "--body", form).rows] == list(BODIES[form].values())
    assert "body=" in run("dump", path, "--body", form).out


def test_a_line_of_text_escapes_bytes_that_are_not_utf8(tmp_path: Path, run: Callable[..., Ran]) -> None:
    path = write_dledger(tmp_path, [raw(b'\xff \x1b[31m\\ "')]).path
    assert run("dump", path, "--columns", "body").out == 'body="\\xff \\u001b[31m\\\\ \\""\n'


def test_bodies_can_be_left_out(store: Store, run: Callable[..., Ran]) -> None:
    assert "body" not in run("dump", store.path, "--json", "--body", "none").rows[0]


def test_a_row_with_a_problem_is_exit_code_1_for_any_columns(damaged: Store, run: Callable[..., Ran]) -> None:
    done = run("dump", damaged.path)
    assert done.code == 1
    assert "kind=corrupt" in done.out
    assert run("dump", damaged.path, "--columns", "pos").code == 1


# What is wrong


def test_findings_are_printed_with_their_meaning(damaged: Store, run: Callable[..., Ran]) -> None:
    done = run("verify", damaged.path)
    assert done.code == 1
    assert re.search(
        r"^error corruptBytes: .+\n  Java: .+\n  dledger-n0/data/0{20} at byte \d+.*expected", done.out, re.MULTILINE
    )
    assert re.search(
        r": error [1-9]\d*, warning \d+, info \d+\nnext: dledger check .+\n  .+\nnot checked: .+\n$", done.out
    )
    rows = run("verify", damaged.path, "--json").rows
    assert {"severity", "code", "javaDoes", "offset"} <= set(rows[0])
    assert {row["severity"] for row in run("verify", damaged.path, "--json", "--least", "error").rows} == {"error"}


@pytest.fixture
def member(case_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A writable copy of a broker's store, without its index of 160 MiB."""
    source = case_folder("mq-53-three") / "n1"
    copy_tree(source, tmp_path / "n1", ignore=lambda folder, _: ["index"] if "dledger" in folder else [])
    return tmp_path / "n1"


def short(data: Path) -> None:
    os.truncate(data / "00000000000000131072", 9000)


def missing(data: Path) -> None:
    (data / "00000000000000131072").unlink()


def missing_last(data: Path) -> None:
    (data / "00000000000000524288").unlink()


def zeros(data: Path) -> None:
    write_at(data / "00000000000000131072", 8192, bytes(80 * 1024))


def swapped(data: Path) -> None:
    first, second, other = (data / name for name in ("00000000000000131072", "00000000000000262144", "other"))
    first.rename(other)
    second.rename(first)
    other.rename(second)


CASCADES = {
    short: ("shortFile", "consumeQueueUnit"),
    missing: ("fileGap", "consumeQueueUnit"),
    missing_last: ("committedBeyondEnd", "consumeQueueBeyondEnd"),
    zeros: ("corruptBytes", "consumeQueueUnit"),
    swapped: ("fileName", "consumeQueueUnit"),
}


@pytest.mark.parametrize("damage", CASCADES, ids=lambda damage: damage.__name__)
def test_findings_that_follow_from_damage_are_a_line_of_it(
    member: Path, run: Callable[..., Ran], damage: Callable[[Path], None]
) -> None:
    damage(member / "dledger-n1" / "data")
    rows = [
        row for row in run("verify", member, "--json", "--least", "warning").rows if row["code"] != "indexFileMissing"
    ]
    done = run("verify", member, "--least", "warning")
    cause, effect = CASCADES[damage]
    assert len(rows) > 12
    assert len(done.out.splitlines()) <= 20
    effects = sum(row["code"] == effect for row in rows)
    stated = re.findall(rf"^    because of it: .*{effect} (\d+) in ", done.out, re.MULTILINE)
    assert sum(map(int, stated)) == effects
    assert f" {cause}: " in done.out and f"\nerror {effect}:" not in done.out
    follow = re.search(r"^(\d+) findings follow from damage of the log$", done.out, re.MULTILINE)
    assert follow is not None and effects <= int(follow[1]) < len(rows)


def test_consecutive_findings_are_a_line(member: Path, run: Callable[..., Ran]) -> None:
    """Also findings in many places of one file; --json has each of them."""
    file = member / "consumequeue" / "OrderTopic" / "0" / "00000000000000000000"
    with file.open("r+b") as stream:
        for unit in (*range(3, 13), *range(20, 40, 2)):
            stream.seek(20 * unit + 8)
            stream.write(b"\0\0\0\1")
    rows = [row for row in run("verify", member, "--json").rows if row["code"] == "consumeQueueUnit"]
    assert [row["offset"] // 20 for row in rows] == [*range(3, 13), *range(20, 40, 2)]
    lines = [line for line in run("verify", member).out.splitlines() if "OrderTopic" in line]
    assert len(lines) == 1
    assert (
        "at byte 60 to 760 (index 31 to 404): 20 findings, the first: expected a message of 1 bytes at commitLogOffset"
        in lines[0]
    )


def test_damage_is_exit_code_1_in_every_verb_that_reads_it(damaged: Store, run: Callable[..., Ran]) -> None:
    for verb in ("dump", "segments", "stats", "verify"):
        assert run(verb, damaged.path).code == 1, verb
        assert run(verb, damaged.path, "--json").code == 1, verb
    assert run("state", damaged.path).code == 0


def test_recovery_names_the_entries_that_would_be_lost(damaged: Store, run: Callable[..., Ran]) -> None:
    (row,) = run("recovery", damaged.path, "--java", "0.3.1.2", "--json").rows
    assert (row["outcome"], row["endIndex"], row["lost"]) == ("opens", 2, [[3, 6]])
    done = run("recovery", damaged.path)
    assert done.code == 1
    assert done.out.count("3 to 6") == 5, "in every line of versions"
    assert [row["java"] for row in run("recovery", damaged.path, "--json").rows] == [
        "0.1",
        "0.2",
        "0.3",
        "0.3.2",
        "0.4",
    ]


def test_a_diff_of_a_folder_compares_its_nodes(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    folder = case_folder("raw-three-diverged")
    of_folder = run("diff", folder, "--json")
    assert of_folder.code == 1
    assert of_folder.out == run("diff", *(folder / node for node in THREE), "--json").out


def test_a_diff_names_the_path_of_a_member_in_a_folder_of_another_name(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    folder, healthy = case_folder("mq-53-three"), tmp_path / "healthy"
    copy_tree(folder / "n0", healthy)
    out = run("diff", healthy, folder / "n2").out
    assert f"\nn0 ({healthy}) may start and be elected" in out and "\nn2 may start" in out
    done = run("diff", folder / "n0", folder)
    assert done.code == 2 and "give the path of one of them, or to compare, of each" in done.err


def test_a_diff_names_the_divergence(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    paths = [case_folder("raw-three-diverged") / node for node in THREE]
    out = run("diff", *paths).out
    assert "first divergence (diverged) at index 300" in out
    assert "n1 would lose 300 to 359" in out
    rows = run("diff", *paths, "--json").rows
    assert {
        "firstIndex": 300,
        "verdict": "diverged",
        "nodes": ["n1"],
        "terms": {"n0": 2, "n1": 1, "n2": 2},
    }.items() <= (next(row for row in rows if row["verdict"] == "diverged").items())


def test_a_replica_that_only_lags_is_no_finding(tmp_path: Path, run: Callable[..., Ran]) -> None:
    paths = [write_dledger(tmp_path, [raw(b"x")] * n, node=f"n{n}").path / f"dledger-n{n}" for n in (3, 5)]
    assert run("diff", *paths).code == 0


def test_digests_are_a_column_for_each_replica(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    paths = [case_folder("raw-three-diverged") / node for node in THREE]
    header, *lines = run("diff", *paths, "--md5").out.splitlines()
    assert header.split() == ["source", "file", "start", "end", "whole", "equal", "n0", "n1", "n2"]
    assert len(lines) == len(run("diff", *paths, "--md5", "--json").rows) > 0


def test_an_audit_row_is_exit_code_1(broker: Store, run: Callable[..., Ran]) -> None:
    assert run("audit", broker.path).out.startswith("log and ConsumeQueue agree\nnot checked: ")
    queue = broker.path / "consumequeue" / "Orders" / "0" / f"{0:020}"
    write_at(queue, 3 * 20, bytes(7) + b"\x01")
    done = run("audit", broker.path, "--json")
    assert done.code == 1
    assert {row["code"] for row in done.rows} >= {"unitWithoutMessage"}
    assert run("audit", broker.path).code == 1


def test_an_audit_counts_fillers_after_the_first_unit_of_a_queue(broker: Store, run: Callable[..., Ran]) -> None:
    queue = broker.path / "consumequeue" / "Orders" / "0" / f"{0:020}"
    filler = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    units = queue.read_bytes()
    for others, text in (
        ({}, ""),
        ({0}, ""),
        ({2}, "at least 1 message is missing: 1 unit is a filler"),
        ({0, 1, 3, 4}, "at least 2 messages are missing: 2 units are fillers"),
    ):
        places = range(len(units) // 20)
        queue.write_bytes(b"".join(filler if at in others else units[20 * at : 20 * at + 20] for at in places))
        assert run("audit", broker.path).err == (f"dledger: {broker.path}: {text}\n" if text else "")
        assert run("audit", broker.path, "--json").err == ""


def test_an_audit_says_that_there_are_no_queues(broker: Store, run: Callable[..., Ran]) -> None:
    shutil.rmtree(broker.path / "consumequeue")
    rows = run("audit", broker.path, "--json")
    done = run("audit", broker.path)
    assert (rows.code, rows.err, done.code) == (1, "", 1)
    assert {row["code"] for row in rows.rows} == {"messageNotInQueue"}
    assert len(done.out.splitlines()) == len(rows.rows) + 2
    text = "there is no consumequeue folder: each message of the log, if it has any, is missing from its queue"
    assert done.err == f"dledger: {broker.path}: {text}\n"


def test_a_consumer_that_lost_messages_is_exit_code_1(broker: Store, run: Callable[..., Ran]) -> None:
    done = run("consumers", broker.path, "--json")
    assert done.code == 0
    assert (done.rows[0]["consumerGroup"], done.rows[0]["lag"], done.rows[0]["lost"]) == ("billing", 3, 0)
    config = broker.path / "config" / "consumerOffset.json"
    config.write_text('{"offsetTable":{"Orders@billing":{0:0}}}')
    Path(broker.segments[0].path).unlink()
    done = run("consumers", broker.path)
    assert done.code == 1
    assert "billing" in done.out


# stats


def test_stats_count_what_dump_prints(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    path = case_folder("mq-498-single")
    rows = run("dump", path, "--json").rows
    stats = run("stats", path, "--json").rows
    (total,) = [row for row in stats if row["of"] == "total"]
    assert (total["entries"], total["messages"]) == (len(rows), len(rows))
    assert total["bytes"] == sum(row["size"] for row in rows)
    assert (total["firstStoreTimestamp"], total["lastStoreTimestamp"]) == (
        min(row["storeTimestamp"] for row in rows),
        max(row["storeTimestamp"] for row in rows),
    )
    for topic in (row for row in stats if row["of"] == "topic"):
        own = [row for row in rows if row["topic"] == topic["topic"]]
        sizes = sorted(row["storeSize"] for row in own)
        assert (topic["messages"], topic["bytes"], topic["sizeMax"]) == (len(own), sum(sizes), sizes[-1])
        assert topic["queues"] == len({row["queueId"] for row in own})
        assert sum(topic["tags"].values()) == sum(row["tags"] is not None for row in own)
        for part, name in ((0.5, "sizeP50"), (0.99, "sizeP99")):
            exact = sizes[max(-(-len(sizes) * int(part * 100) // 100), 1) - 1]
            assert topic[name] == pytest.approx(exact, rel=0.01)
    terms = {row["term"]: row["entries"] for row in stats if row["of"] == "term"}
    assert terms == {term: sum(row["term"] == term for row in rows) for term in {row["term"] for row in rows}}


def test_stats_have_rates_and_latencies(tmp_path: Path, run: Callable[..., Ran]) -> None:
    stored = 1700000000000
    payloads = [
        mq_message("T", born_timestamp=stored + 100 * i - latency, store_timestamp=stored + 100 * i)
        for i, latency in enumerate([0, 3, 5, -20, 1000])
    ]
    total = run("stats", write_dledger(tmp_path, payloads).path, "--json").rows[0]
    # A clock that is ahead counts as no latency.
    assert (total["bornToStoreP50"], total["bornToStoreMax"]) == (3, 1000)
    assert total["bornToStoreP99"] == pytest.approx(1000, rel=0.01)
    assert total["messagesPerSecond"] == 12.5


def test_stats_count_the_problems_that_dump_prints(tmp_path: Path, run: Callable[..., Ran]) -> None:
    store = write_dledger(tmp_path, [mq_message("T", b"body %d" % i, queue_offset=i) for i in range(5)])
    file = Path(store.segments[0].path)
    data = file.read_bytes()
    file.write_bytes(data.replace(b"body 3", b"body 4"))
    printed = run("dump", tmp_path, "--json")
    stats = run("stats", tmp_path, "--json")
    assert (printed.code, stats.code) == (1, 1)
    assert stats.rows[0]["problems"] == sum(row["problem"] is not None for row in printed.rows) == 1


def test_verify_says_what_it_does_not_check(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = run("verify", case_folder("mq-53-single")).out.splitlines()[-1]
    assert last.startswith("not checked: ")
    assert last.endswith("; if the index of keys has all keys (dledger rebuild index --dry-run)")
    assert run("verify", case_folder("raw-single")).out.splitlines()[-2].endswith("error 0, warning 0, info 2")
    write_commitlog(tmp_path, [mq_message("T", b"x")])
    (tmp_path / "checkpoint").write_bytes(bytes(4096))
    found = run("verify", tmp_path)
    expected = "; queues, because there are none: a broker builds them when it starts"
    assert found.code == 0 and found.out.splitlines()[-1].endswith(expected)
    (tmp_path / "consumequeue").mkdir()
    (tmp_path / "consumequeue" / "CURRENT").write_text("MANIFEST-000005")
    monkeypatch.setattr("pyspark_dledger.log.io.rocks_database.find_spec", lambda _: None)
    expected = "; queues in RocksDB: reading RocksDB needs rocksdict: pip install 'pyspark_dledger[rocksdb]'"
    assert run("verify", tmp_path).out.splitlines()[-1].endswith(expected)


def test_a_log_that_lost_its_end_makes_a_comparison_exit_with_1(tmp_path: Path, run: Callable[..., Ran]) -> None:
    whole, short = (write_dledger(tmp_path / name, [raw(b"x" * 500)] * 20).path / "dledger-n0" for name in "ab")
    assert run("diff", whole, short).code == 0
    max((short / "data").iterdir()).unlink()
    found = run("diff", whole, short)
    assert found.code == 1
    assert "the checkpoint says that 19 is committed" in found.out
    assert run("diff", whole, short, "--json").code == 1


def test_a_last_file_that_is_too_short_is_a_corrupt_row(tmp_path: Path, run: Callable[..., Ran]) -> None:
    store = write_dledger(tmp_path, [raw(b"x" * 500)] * 20)
    last = store.segments[-1]
    os.truncate(last.path, 100)
    row = run("dump", store.path, "--json").rows[-1]
    assert (row["kind"], row["pos"], row["size"]) == ("corrupt", last.base, last.size)


def test_an_audit_of_a_broker_without_data_names_every_unit(broker: Store, run: Callable[..., Ran]) -> None:
    for segment in broker.segments:
        Path(segment.path).unlink()
    found = run("audit", broker.path, "--json")
    assert found.code == 1
    assert [row["code"] for row in found.rows] == ["unitWithoutMessage"] * len(broker.rows)


def test_a_diff_of_commit_logs_names_the_damage(tmp_path: Path, run: Callable[..., Ran]) -> None:
    stores = [write_commitlog(tmp_path / name, [mq_message("T", b"x" * 500)] * 20) for name in "ab"]
    paths = [store.path for store in stores]
    assert run("diff", *paths).code == 0
    last = stores[0].segments[-1]
    write_at(last.path, 120, b"?")
    done = run("diff", *paths)
    assert done.code == 1
    assert done.out.splitlines()[0] == "lost for good: nothing"
    assert f"first difference (damaged) in the message at {last.base}, topic T, queue 0, offset 0" in done.out
    assert "a must not start as it is: " in done.out
    assert ", intact on b; dledger recovery says if a restart truncates its log there" in done.out
    assert "b may start and be the master: no replica would lose anything" in done.out
    assert f"next: dledger salvage {paths[0]} {paths[1]} --plan\n" in done.out
    row = next(row for row in run("diff", *paths, "--json").rows if row["verdict"] == "damaged")
    assert (row["firstIndex"], row["firstPos"], row["nodes"], row["terms"]) == (None, last.base, ["a"], {"b": None})
    assert run("diff", *paths, "--json").code == 1


def test_a_slave_that_cannot_follow_makes_a_comparison_exit_with_1(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Its master has expired what it needs; no row says so."""
    stores = [write_commitlog(tmp_path / name, [mq_message("T", b"x" * 500)] * n) for name, n in (("a", 20), ("b", 4))]
    assert run("diff", *(store.path for store in stores), "--json").code == 0
    for segment in stores[0].segments[:2]:
        Path(segment.path).unlink()
    done = run("diff", *(store.path for store in stores))
    assert done.code == 1
    assert "b must not start as it is: it cannot follow a, which no longer has positions " in done.out
    assert run("diff", *(store.path for store in stores), "--json").code == 1


def test_a_commit_log_that_lost_its_end_makes_a_comparison_exit_with_1(tmp_path: Path, run: Callable[..., Ran]) -> None:
    stores = [write_commitlog(tmp_path / name, [mq_message("T", b"x" * 500)] * 20) for name in "ab"]
    Path(stores[1].segments[-1].path).unlink()
    done = run("diff", *(store.path for store in stores))
    assert done.code == 1
    assert "note: b: its last file ends with a blank, so a later one existed: its end is lost" in done.out
    assert run("diff", *(store.path for store in stores), "--json").code == 1


def test_a_diff_of_upgraded_stores_begins_with_the_old_commit_log(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    original = case_folder("mq-53-upgrade")
    copy = copy_tree(original, tmp_path / "copy")
    out = run("diff", original, copy).out.splitlines()
    assert out[0] == "lost for good in the old CommitLog: nothing"
    assert "lost for good: nothing" in out
    assert not any("be the master" in line for line in out)
    write_at(copy / "commitlog" / f"{131072:020}", 120, b"?")
    done = run("diff", original, copy)
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("copy must not start as it is: ")


def test_a_diff_of_controller_mode_has_epochs(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    done = run("diff", *[case_folder("mq-53-controller") / name for name in ("b1", "b2", "b3")])
    assert done.code == 1
    assert (
        "b1 may start, and must not be the master: b2 is of a later epoch; as its slave, Java truncates it at 57140, "
        "and it loses 174682 bytes, 159059 of them confirmed"
    ) in done.out
    assert "b2 as slave of b1: Java truncates it at 57140, and it loses 51211 bytes" in done.out
    assert run("diff", *[case_folder("mq-53-controller") / name for name in ("b2", "b3")]).code == 0


def test_the_state_of_controller_mode_has_epochs(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    (state,) = run("state", case_folder("mq-53-controller") / "b1", "--json").rows
    assert (state["epochs"], state["confirmOffset"], state["maxOffset"]) == ({"1": 0, "3": 216199}, 216199, 231822)
    assert state["physicMsgTimestamp"] == "2026-11-22T10:33:32.565Z"


def test_state_prints_where_queues_begin_and_end(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    root = copy_tree(case_folder("mq-plain"), tmp_path / "store")
    (state,) = run("state", root, "--queues", "--json").rows
    ends = {f"{each['topic']}/{each['queueId']}": each["maxOffset"] for each in state["queues"]}
    (recovery,) = run("recovery", root, "--rocketmq", "5.3.3", "--json").rows
    assert ends == recovery["consumeQueueMaxOffsets"]
    assert {each["minOffset"] for each in state["queues"]} == {0}
    (root / "commitlog" / f"{0:020}").unlink()
    (state,) = run("state", root, "--queues", "--json").rows
    assert max(each["minOffset"] for each in state["queues"]) > 0, "the first messages are gone"
    assert "queues" not in run("state", root, "--json").rows[0]
    text = run("state", root, "--queues").out
    assert "topic" in text
    assert "OrderTopic" in text
    queue = next((root / "consumequeue" / "OrderTopic" / "0").iterdir())
    queue.unlink()
    queue.mkdir()
    assert run("state", root, "--queues").code == 1
    shutil.rmtree(root / "consumequeue")
    assert "no ConsumeQueue" in run("state", root, "--queues").out


@pytest.mark.parametrize("is_missing", [False, True])
def test_recovery_finds_what_a_broker_does_not_look_at(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran], is_missing: bool
) -> None:
    root = copy_tree(case_folder("mq-plain"), tmp_path / "store")
    file = root / "commitlog" / f"{131072:020}"
    file.unlink() if is_missing else file.write_bytes(bytes(131072))
    found = run("recovery", root, "--rocketmq", "5.3.3")
    assert found.code == 1
    assert "1 damaged or missing place stays in the log: a start does not look there" in found.out
    (row,) = run("recovery", root, "--rocketmq", "5.3.3", "--json").rows
    assert row["outcome"] == "loads"
    assert [each["pos"] for each in row["silentDamage"]] == [131072]


def test_recovery_of_a_plain_store_names_what_a_broker_loses(
    case_folder: Callable[[str], Path], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    root = copy_tree(case_folder("mq-plain"), tmp_path / "store")
    (row,) = run("recovery", root, "--rocketmq", "5.3.3", "--json").rows
    assert (row["outcome"], row["recovery"], row["lost"], row["reason"]) == ("loads", "normal", [], "")
    text = run("recovery", root).out
    assert "too old for this store: RocketMQ 4.9.8, 5.0.0, which would truncate it at 131944" in text
    assert ": all versions do the same\n" in text
    write_at(root / "commitlog" / f"{131072:020}", 90, b"?")
    kept = run("recovery", root, "--rocketmq", "5.3.3")
    assert kept.code == 1
    assert "damaged messages that a broker keeps: 1" in kept.out, "the file is not checked"
    (row,) = run("recovery", root, "--rocketmq", "5.3.3", "--json").rows
    assert [(each["pos"], each["code"]) for each in row["silentDamage"]] == [(131072, "messageCrc")]
    done = run("recovery", root, "--rocketmq", "5.3.1", "--json")
    (row,) = done.rows
    assert done.code == 1
    assert (row["maxPhyOffset"], row["lost"], row["silentDamage"]) == (131072, [[131072, 430336]], [])
    assert row["filesDeleted"] == [f"{base:020}" for base in (262144, 393216)]
    assert row["reason"].startswith(f"the scan stops in commitlog/{131072:020} at byte 0: message CRC is ")
    assert sum(row["lostTopics"].values()) > 300
    text = run("recovery", root).out
    assert "131072 to 430336" in text
    assert "RocketMQ 4.9.8, 5.0.0, 5.1.4, 5.3.1\n" in text
    assert "RocketMQ 5.3.3, 5.4.0, 5.5.0\n" in text
    assert "note: files before" in text
    os.truncate(root / "commitlog" / f"{0:020}", 1000)
    (row,) = run("recovery", root, "--rocketmq", "5.3.3", "--data-file-size", "128k", "--json").rows
    assert (row["outcome"], row["maxPhyOffset"]) == ("fails", None)
    assert row["reason"] == f"commitlog/{0:020} has 1000 bytes, not 131072"
    assert run("recovery", root, "--index-file-size", "1m").code == 2
    assert run("recovery", root, "--rocketmq", "3.2.6").code == 2
