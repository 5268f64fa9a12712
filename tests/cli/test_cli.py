"""The command line: what each verb prints, its exit codes, and what it never loads, leaks or leaves half done."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_dledger.cli.main import build_parser, main
from pyspark_dledger.cli.output.stream import Output
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.cli.stores.row_printer import RowPrinter
from pyspark_dledger.cli.verbs.find import kinds_of
from pyspark_dledger.cli.verbs.follow import _Tail
from pyspark_dledger.rocketmq.tables.registry import TABLES
from tests.support.generate import (
    Store,
    mq_message,
    raw,
    write_commitlog,
    write_consume_queue,
    write_dledger,
)

Json = dict[str, Any]

ESCAPE = "\x1b"


class Ran:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[Json]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command in this process."""

    def run_here(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run_here


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A command as a process of its own."""
    line = [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_dledger(tmp_path, [mq_message("Orders", b"body"), raw(b"raw body")] * 5, committed=6)


@pytest.fixture
def damaged(store: Store) -> Store:
    with Path(store.segments[0].path).open("r+b") as file:
        file.seek(store.rows[3]["pos"])
        file.write(b"\xff\xee")
    return store


@pytest.fixture
def broker(tmp_path: Path) -> Store:
    """A broker's root with ConsumeQueue and config, in which a group is behind and has lost nothing."""
    payloads = [
        mq_message("Orders", b"body %d" % i, queue_offset=i, properties=[("KEYS", f"k{i} all"), ("UNIQ_KEY", f"U{i}")],
                   store_timestamp=1700000000000 + 1000 * i)
        for i in range(8)
    ]  # fmt: skip
    store = write_dledger(tmp_path / "root", payloads, file_size=600)
    write_consume_queue(tmp_path / "root", store.rows)
    config = tmp_path / "root" / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text('{"offsetTable":{"Orders@billing":{0:5}}}')
    return store


def root_of(store: Store) -> Path:
    return store.path


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
    by_table = run("dump", root_of(broker), "--table", name, "--json").rows
    assert all(list(row) == TABLES[name].schema.names for row in by_table)
    verb = {"findings": "verify"}.get(name, name)
    if verb in ("segments", "state", "verify", "audit"):
        assert run(verb, root_of(broker), "--json").rows == by_table


def test_json_of_the_log_has_all_its_columns(store: Store, run: Callable[..., Ran]) -> None:
    rows = run("dump", store.path, "--json").rows
    assert [row["index"] for row in rows] == list(range(10))
    assert rows[1]["topic"] is None
    assert base64.b64decode(rows[1]["body"]) == b"raw body"
    assert rows[0]["storeTimestamp"] == "2023-11-14T22:13:20.137Z"


# dump


def test_dump_prints_a_line_a_row(store: Store, run: Callable[..., Ran]) -> None:
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
def test_dump_prints_what_was_asked_for(
    store: Store, arguments: list[str], indexes: list[int], run: Callable[..., Ran]
) -> None:
    assert [row["index"] for row in run("dump", store.path, "--json", *arguments).rows] == indexes


BODIES = {
    "text": {b"plain": "plain", b"\xff\n": "\\xff\n", "é".encode(): "é"},
    "hex": {b"plain": "706c61696e", b"\xff\n": "ff0a", "é".encode(): "c3a9"},
    "base64": {b"plain": "cGxhaW4=", b"\xff\n": "/wo=", "é".encode(): "w6k="},
}


@pytest.mark.parametrize("form", BODIES)
def test_bodies_are_printed_as_asked(form: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    path = write_dledger(tmp_path, [raw(body) for body in BODIES[form]]).path
    assert [row["body"] for row in run("dump", path, "--json", "--body", form).rows] == list(BODIES[form].values())
    assert "body=" in run("dump", path, "--body", form).out


def test_a_line_of_text_shows_bytes_that_are_no_text_as_such(tmp_path: Path, run: Callable[..., Ran]) -> None:
    path = write_dledger(tmp_path, [raw(b'\xff \x1b[31m\\ "')]).path
    assert run("dump", path, "--columns", "body").out == 'body="\\xff \\u001b[31m\\\\ \\""\n'


def test_bodies_can_be_left_out(store: Store, run: Callable[..., Ran]) -> None:
    assert "body" not in run("dump", store.path, "--json", "--body", "none").rows[0]


def test_a_row_with_a_problem_is_exit_code_1_whatever_is_printed(damaged: Store, run: Callable[..., Ran]) -> None:
    done = run("dump", damaged.path)
    assert done.code == 1
    assert "kind=corrupt" in done.out
    assert run("dump", damaged.path, "--columns", "pos").code == 1


# What is wrong


def test_findings_are_printed_with_what_they_mean(damaged: Store, run: Callable[..., Ran]) -> None:
    done = run("verify", damaged.path)
    assert done.code == 1
    assert re.search(
        r"^error corruptBytes: .+\n  Java: .+\n  dledger-n0/data/0{20} at byte \d+.*expected", done.out, re.MULTILINE
    )
    assert re.search(r": error [1-9]\d*, warning \d+, info \d+\n$", done.out)
    rows = run("verify", damaged.path, "--json").rows
    assert {"severity", "code", "javaDoes", "offset"} <= set(rows[0])
    assert {row["severity"] for row in run("verify", damaged.path, "--json", "--least", "error").rows} == {"error"}


def test_damage_is_exit_code_1_in_every_verb_that_sees_it(damaged: Store, run: Callable[..., Ran]) -> None:
    for verb in ("dump", "segments", "stats", "verify"):
        assert run(verb, damaged.path).code == 1, verb
        assert run(verb, damaged.path, "--json").code == 1, verb
    assert run("state", damaged.path).code == 0


def test_recovery_says_what_would_be_lost(damaged: Store, run: Callable[..., Ran]) -> None:
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


def test_a_replica_that_is_only_behind_is_no_finding(tmp_path: Path, run: Callable[..., Ran]) -> None:
    paths = [write_dledger(tmp_path, [raw(b"x")] * n, node=f"n{n}").path / f"dledger-n{n}" for n in (3, 5)]
    assert run("diff", *paths).code == 0


def test_digests_are_a_column_for_each_replica(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    paths = [case_folder("raw-three-diverged") / node for node in THREE]
    header, *lines = run("diff", *paths, "--md5").out.splitlines()
    assert header.split() == ["source", "file", "start", "end", "whole", "equal", "n0", "n1", "n2"]
    assert len(lines) == len(run("diff", *paths, "--md5", "--json").rows) > 0


def test_an_audit_row_is_exit_code_1(broker: Store, run: Callable[..., Ran]) -> None:
    assert run("audit", root_of(broker)).out == "log and ConsumeQueue agree\n"
    queue = root_of(broker) / "consumequeue" / "Orders" / "0" / f"{0:020}"
    with queue.open("r+b") as file:
        file.seek(3 * 20)
        file.write(bytes(7) + b"\x01")
    done = run("audit", root_of(broker), "--json")
    assert done.code == 1
    assert {row["code"] for row in done.rows} >= {"unitWithoutMessage"}
    assert run("audit", root_of(broker)).code == 1


def test_an_audit_tells_of_fillers_behind_the_first_unit_of_a_queue(broker: Store, run: Callable[..., Ran]) -> None:
    queue = root_of(broker) / "consumequeue" / "Orders" / "0" / f"{0:020}"
    filler = struct.pack(">qiq", 0, 0x7FFFFFFF, 0)
    units = queue.read_bytes()
    for others, told in (
        ({}, ""),
        ({0}, ""),
        ({2}, "1 unit is a filler for messages missing from the log"),
        ({0, 1, 3, 4}, "2 units are fillers for messages missing from the log"),
    ):
        places = range(len(units) // 20)
        queue.write_bytes(b"".join(filler if at in others else units[20 * at : 20 * at + 20] for at in places))
        assert run("audit", root_of(broker)).err == (f"dledger: {root_of(broker)}: {told}\n" if told else "")
        assert run("audit", root_of(broker), "--json").err == ""


def test_an_audit_says_that_there_are_no_queues(broker: Store, run: Callable[..., Ran]) -> None:
    shutil.rmtree(root_of(broker) / "consumequeue")
    rows = run("audit", root_of(broker), "--json")
    done = run("audit", root_of(broker))
    assert (rows.code, rows.err, done.code) == (1, "", 1)
    assert {row["code"] for row in rows.rows} == {"messageNotInQueue"}
    assert len(done.out.splitlines()) == len(rows.rows) + 1
    told = "there is no consumequeue folder: every message is missing from its queue"
    assert done.err == f"dledger: {root_of(broker)}: {told}\n"


def test_a_consumer_that_lost_messages_is_exit_code_1(broker: Store, run: Callable[..., Ran]) -> None:
    done = run("consumers", root_of(broker), "--json")
    assert done.code == 0
    assert (done.rows[0]["consumerGroup"], done.rows[0]["lag"], done.rows[0]["lost"]) == ("billing", 3, 0)
    config = root_of(broker) / "config" / "consumerOffset.json"
    config.write_text('{"offsetTable":{"Orders@billing":{0:0}}}')
    Path(broker.segments[0].path).unlink()
    done = run("consumers", root_of(broker))
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


def test_stats_tell_rates_and_latencies(tmp_path: Path, run: Callable[..., Ran]) -> None:
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


# find


@pytest.mark.parametrize(
    ("what", "kinds"),
    [
        ("17", ["index"]),
        ("126204270130", ["index"]),
        ("1700000000000", ["time"]),
        ("2023-11-14", ["time"]),
        ("2023-11-14T22:13:20Z", ["time"]),
        ("order-17", ["key"]),
        ("7F00000100002A9F0000000000000030", ["offsetMsgId", "key"]),
        ("7F0000010A2B3C4D5E6F000000000030", ["key"]),
        ("20010DB8F2F9EDCE2F47B319586B00810000F2B50000000000000261", ["offsetMsgId", "key"]),
    ],
)
def test_what_is_looked_for_shows_by_its_form(what: str, kinds: list[str]) -> None:
    assert kinds_of(what) == kinds


def test_each_message_is_found_by_all_that_is_known_of_it(
    case_folder: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    path = case_folder("mq-53-upgrade")
    rows = run("dump", path, "--json").rows
    picked = [row for row in rows[::97] if row["index"] is not None] + [
        row for row in rows[::211] if row["index"] is None
    ]
    assert {row["source"] for row in picked} == {"commitlog", "dledger"}
    for row in picked:
        assert run("find", path, row["offsetMsgId"], "--json").rows == [row]
        assert run("find", path, row["offsetMsgId"].lower(), "--json").rows == [row]
        if row["index"] is not None:
            assert run("find", path, row["index"], "--json").rows == [row]
        for key in (row["keys"] or "").split():
            found = run("find", path, "--by", "key", key, "--json").rows
            assert found == [other for other in rows if key in (other["keys"] or "").split()]
        after = run("find", path, row["storeTimestamp"], "--json").rows
        assert after == [next(other for other in rows if other["storeTimestamp"] >= row["storeTimestamp"])]


def test_a_unique_key_is_found(broker: Store, run: Callable[..., Ran]) -> None:
    path = root_of(broker)
    assert [row["index"] for row in run("find", path, "U3", "--json").rows] == [3]
    assert [row["index"] for row in run("find", path, "--by", "uniqKey", "U3", "--json").rows] == [3]
    assert run("find", path, "--by", "key", "U3").code == 1
    assert len(run("find", path, "all", "--json").rows) == 8
    assert run("find", path, "al").code == 1, "a part of a key is none"


def test_a_time_between_two_messages_finds_the_later(broker: Store, run: Callable[..., Ran]) -> None:
    assert [row["index"] for row in run("find", root_of(broker), "1700000002001", "--json").rows] == [3]
    assert run("find", root_of(broker), "1700000009000").code == 1


def test_a_time_is_found_where_an_earlier_segment_was_stored_later(tmp_path: Path, run: Callable[..., Ran]) -> None:
    start = 1700000000000
    seconds = [*range(60), 30, *range(31, 90)]
    payloads = [mq_message("T", b"x" * 200, store_timestamp=start + 1000 * second) for second in seconds]
    path = write_dledger(tmp_path, payloads, file_size=2048).path
    for second in (0, 29, 31, 45, 60, 89):
        (found,) = run("find", path, start + 1000 * second, "--json").rows
        assert found["index"] == next(i for i, other in enumerate(seconds) if other >= second)


def test_what_is_not_there_is_said_and_exit_code_1(store: Store, run: Callable[..., Ran]) -> None:
    for what in ("10", "2099-01-01", "no-such-key", "7F00000100002A9F0000000000000031"):
        done = run("find", store.path, what)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), what
        assert "expected" in done.err


def test_an_id_of_another_message_at_that_offset_is_shown_where_it_was_asked_for(
    broker: Store, run: Callable[..., Ran]
) -> None:
    done = run("find", root_of(broker), "--by", "offsetMsgId", "0A00000100002A9F0000000000000030", "--json")
    assert (done.code, done.rows[0]["index"]) == (0, 0)
    assert "has the offsetMsgId 7F00000100002A9F0000000000000030" in done.err


# follow


def follower(path: Path, *arguments: str) -> tuple[_Tail, Callable[[], None]]:
    """A tail of a store, and the call that looks at it once."""
    args = build_parser().parse_args(["follow", str(path), "--json", *arguments])
    out = Output()
    tail = _Tail(args, RowPrinter(args, out, open_store(args)))

    def look() -> None:
        tail.print_new(open_store(args))
        out.flush()

    return tail, look


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[int]]:
    """The indexes that were printed since the last call."""
    return lambda: [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()]


def test_follow_prints_what_is_committed_as_the_log_grows(tmp_path: Path, printed: Callable[[], list[int]]) -> None:
    entries = [raw(b"x" * 300)] * 40
    path = write_dledger(tmp_path, entries[:3], committed=1).path
    _, look = follower(path, "--from", "earliest")
    for count, committed, new in ((3, 1, [0, 1]), (3, 1, []), (5, 3, [2, 3]), (40, 37, list(range(4, 38)))):
        write_dledger(tmp_path, entries[:count], committed=committed)
        look()
        assert printed() == new


def test_follow_begins_at_the_end(tmp_path: Path, printed: Callable[[], list[int]]) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 3).path
    _, look = follower(path)
    look()
    write_dledger(tmp_path, [raw(b"x")] * 5)
    look()
    assert printed() == [3, 4]


def test_follow_goes_on_where_a_new_leader_rewrote_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 8, terms=[1, 1, 1, 1, 2, 2, 2, 2], committed=3).path
    _, look = follower(path, "--from", "2", "--uncommitted")
    look()
    write_dledger(tmp_path, [raw(b"y")] * 6, terms=[1, 1, 1, 1, 1, 3], committed=3)
    look()
    look()
    done = capsys.readouterr()
    assert [(row["index"], row["term"]) for row in map(json.loads, done.out.splitlines())] == [
        *[(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 2)],
        *[(4, 1), (5, 3)],
    ]
    assert done.err.count("truncated: the printed entries from index 4 on are no longer in it") == 1


def test_follow_goes_on_where_the_log_became_shorter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of it was printed yet, but what comes instead has to be."""
    path = write_dledger(tmp_path, [raw(b"x")] * 8).path
    _, look = follower(path, "--uncommitted")
    look()
    shutil.rmtree(tmp_path / "dledger-n0")
    write_dledger(tmp_path, [raw(b"x")] * 5)
    look()
    write_dledger(tmp_path, [raw(b"x")] * 7, terms=[1] * 5 + [2] * 2)
    look()
    done = capsys.readouterr()
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [5, 6]
    assert "the printed entries from index 5 on are no longer in it" in done.err


def test_follow_notices_what_was_rewritten_in_the_same_term(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a one-node group, which never raises its term."""
    path = write_dledger(tmp_path, [raw(b"x")] * 8).path
    _, look = follower(path, "--from", "5")
    look()
    rewritten = [raw(b"x")] * 6 + [raw(b"longer")] * 5
    write_dledger(tmp_path, rewritten[:9])
    look()
    write_dledger(tmp_path, rewritten)
    look()
    done = capsys.readouterr()
    assert [json.loads(line)["index"] for line in done.out.splitlines()] == [5, 6, 7, 8, 9, 10]
    assert done.err.count("the entry of index 7, and perhaps earlier ones, was overwritten in the same term") == 1


def test_follow_says_what_was_deleted_before_it_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [raw(b"x" * 300)] * 40
    path = write_dledger(tmp_path, entries[:2]).path
    _, look = follower(path)
    look()
    store = write_dledger(tmp_path, entries)
    Path(store.segments[0].path).unlink()
    look()
    done = capsys.readouterr()
    assert "were deleted before they were printed" in done.err
    assert json.loads(done.out.splitlines()[0])["pos"] == store.segments[1].base


def test_follow_of_a_plain_commitlog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_commitlog(tmp_path, [mq_message("T", b"x")] * 3).path
    _, look = follower(path)
    look()
    write_commitlog(tmp_path, [mq_message("T", b"x")] * 5)
    look()
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_follow_waits_for_a_bound_that_is_not_known_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_dledger(tmp_path, [raw(b"x")] * 3, checkpoint=False).path
    _, look = follower(path, "--from", "earliest")
    look()
    look()
    assert capsys.readouterr().err.count("waiting for it") == 1
    write_dledger(tmp_path, [raw(b"x")] * 3)
    look()
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_follow_of_a_store_without_a_bound_fails(case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    folder = case_folder("raw-040-snapshot-keep") / "dledger-n0"
    done = run("follow", folder)
    assert done.code == 2
    assert "--uncommitted" in done.err


# Sharing


def secrets_of(rows: list[Json]) -> set[str]:
    """Texts in which an application or a network would be recognized."""
    found: set[str] = set()
    for row in rows:
        body = base64.b64decode(row["body"] or "")
        found |= {row["body"] or "", body.hex(), body.decode(errors="replace"), str(row["messageCrc"])}
        for name in ("topic", "tags", "keys", "uniqKey", "offsetMsgId", "bornHost", "storeHost"):
            found.add(row[name] or "")
        for name, value in (row["properties"] or {}).items():
            found |= {value, name if not name.isupper() else ""}
        found |= {host.rpartition(":")[0] for host in (row["bornHost"] or "", row["storeHost"] or "")}
    return {text for text in found if len(text) > 5 and text not in ("default", "message")}


@pytest.mark.parametrize(
    "form", ["--json", "--body=text", "--body=hex", "--columns=properties,body,topic,storeHost,problem"]
)
def test_nothing_leaks_from_what_is_redacted(
    form: str, case_folder: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    path = case_folder("mq-53-single")
    secrets = secrets_of(run("dump", path, "--json").rows)
    assert len(secrets) > 2000
    redacted = run("dump", path, "--redact", form).out
    # A digest may by chance hold the digits of a short number.
    rest, replaced = re.subn(r"redacted:[0-9a-f]{16}:\d+", "redacted", redacted)
    assert replaced > 200
    assert [text for text in secrets if text in rest] == []


def test_redacted_values_can_be_matched_within_a_run_only(broker: Store, run: Callable[..., Ran]) -> None:
    first, second = (run("dump", root_of(broker), "--json", "--redact").rows for _ in range(2))
    assert len({row["topic"] for row in first}) == 1
    assert len({row["body"] for row in first}) == 8
    assert first[0]["topic"] != second[0]["topic"]
    assert first[0]["body"].endswith(":6")
    assert first[0]["properties"]["KEYS"] == first[0]["keys"]
    assert (first[3]["queueOffset"], first[3]["storeTimestamp"]) == (3, "2023-11-14T22:13:23.000Z")


def test_columns_can_be_kept(broker: Store, run: Callable[..., Ran]) -> None:
    row = run("dump", root_of(broker), "--json", "--redact", "--keep", "topic,tags").rows[0]
    assert row["topic"] == "Orders"
    assert row["keys"].startswith("redacted:")


def test_a_crc_in_a_problem_is_redacted_too(tmp_path: Path, run: Callable[..., Ran]) -> None:
    store = write_dledger(tmp_path, [mq_message("T", b"body")])
    with Path(store.segments[0].path).open("r+b") as file:
        file.seek(store.rows[0]["pos"] + 48 + 8)
        file.write(b"\x01")
    plain, redacted = (run("dump", store.path, "--json", *more).rows[0]["problem"] for more in ([], ["--redact"]))
    assert re.search(r"message CRC \d+", plain)
    assert not re.search(r"\d{5}", redacted)


@pytest.mark.parametrize("table", ["consumeQueue", "indexFile", "findings", "segments"])
def test_names_of_topics_do_not_leak_from_other_tables(
    table: str, case_folder: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    out = run("dump", case_folder("mq-53-single"), "--table", table, "--redact").out
    assert "Topic" not in out
    assert "consumequeue" not in out


# Terminals and pipes


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store whose texts would paint a terminal."""
    messages = [mq_message(f"evil{ESCAPE}[31m", b"\x1b]0;title\x07", properties=[("KEYS", "a\x9b1m\u202eb\u2028")])]
    return write_dledger(tmp_path, messages).path


VERBS = ("dump", "segments", "state", "stats", "verify", "recovery", "audit", "find")


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_piped_has_no_escape_codes(verb: str, hostile: Path) -> None:
    (hostile / "consumequeue").mkdir()
    for more in ([], ["--json"]):
        child = process(verb, hostile, *(["0"] if verb == "find" else []), *more)
        out, err = child.communicate(timeout=60)
        assert child.returncode in (0, 1), err
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", out + err)


def on_terminal(*arguments: object, width: int = 100) -> tuple[int, str]:
    """A command whose output and errors are a terminal: exit code and what it showed."""
    master, slave = pty.openpty()
    line = [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width)}
    child = subprocess.Popen(line, stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:
        pass  # Linux reports the end of a terminal so
    os.close(master)
    return child.wait(timeout=60), shown.decode()


@pytest.mark.parametrize("verb", VERBS)
def test_a_terminal_gets_tables_and_nothing_of_the_store_to_obey(verb: str, hostile: Path) -> None:
    (hostile / "consumequeue").mkdir()
    code, shown = on_terminal(verb, hostile, *(["0"] if verb == "find" else []))
    assert code in (0, 1)
    assert f"{ESCAPE}[31m" not in shown
    assert f"{ESCAPE}]0" not in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("width", [40, 400])
def test_a_narrow_terminal_loses_nothing(width: int, store: Store, run: Callable[..., Ran]) -> None:
    _, shown = on_terminal("segments", store.path, width=width)
    words = re.sub(rf"{ESCAPE}\[[0-9;?]*[A-Za-z]", "", shown).split()
    assert [word for word in run("segments", store.path).out.split() if word not in words] == []


def test_progress_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from pyspark_dledger.cli.output import progress

    monkeypatch.setattr(progress, "_FIRST_SHOWN", 0)
    shown = progress.ProgressBar()
    shown(1, 2)
    shown.clear()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    shown = progress.ProgressBar()
    shown(1, 2)
    shown.clear()
    assert "50%" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(case_folder: Callable[[str], Path]) -> None:
    for more in ("", "--json"):
        line = f"{sys.executable} -m pyspark_dledger dump {case_folder('mq-498-single')} {more} | head -n 1"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)


def test_output_that_cannot_be_written_is_said(store: Store) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "pyspark_dledger", "dump", str(store.path)]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("dledger: the output: ")


def test_ctrl_c_ends_a_follower_with_whole_lines(store: Store) -> None:
    child = process("follow", store.path, "--from", "earliest", "--interval", "0.01", "--json")
    assert child.stdout is not None
    lines = [json.loads(child.stdout.readline()) for _ in range(7)]
    assert [row["index"] for row in lines] == list(range(7))
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_ctrl_c_leaves_no_half_line_where_the_reader_is_slow(
    unbuffered: str, case_folder: Callable[[str], Path]
) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    child = process("dump", case_folder("mq-498-single"), "--json", env=environment)
    assert child.stdout is not None
    first = os.read(child.stdout.fileno(), 10)  # it writes now, and its pipe fills up
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")
    lines = (first.decode() + out).splitlines(keepends=True)
    assert all(line.endswith("\n") and json.loads(line) for line in lines)
    assert len(lines) < 2080, "it ended before all was printed"


def test_a_second_ctrl_c_does_not_wait_for_the_reader(case_folder: Callable[[str], Path]) -> None:
    child = process("dump", case_folder("mq-498-single"), "--json")
    assert child.stdout is not None
    os.read(child.stdout.fileno(), 10)
    time.sleep(0.3)
    for _ in range(2):
        child.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert child.wait(timeout=60) == 130


# Errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "no/such/store"],
        ["dump", "{store}", "-o", "topik=a"],
        ["dump", "{store}", "-o", "topic"],
        ["dump", "{store}", "-o", "topic=a", "--topic", "b"],
        ["dump", "{store}", "--columns", "indx"],
        ["dump", "{store}", "--redact", "--keep", "topc"],
        ["dump", "{store}", "--keep", "topic"],
        ["dump", "{store}", "--from", "yesterday"],
        ["dump", "{store}", "--table", "sgments"],
        ["segments", "no/such/store"],
        ["segments", "{store}", "-o", "table=state"],
        ["state", "no/such/store"],
        ["stats", "no/such/store"],
        ["verify", "no/such/store"],
        ["recovery", "{store}", "--java", "1.0"],
        ["recovery", "{store}", "--rocketmq", "3.2.6"],
        ["diff", "{store}"],
        ["diff", "{store}", "no/such/store"],
        ["audit", "no/such/store"],
        ["consumers", "{store}"],
        ["find", "{store}", "--by", "index", "abc"],
        ["find", "{store}", "--by", "offsetMsgId", "abc"],
        ["find", "{store}", "--by", "time", "abc"],
        ["follow", "no/such/store"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    store: Store, arguments: list[str], run: Callable[..., Ran]
) -> None:
    done = run(*(argument.format(store=store.path) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("dledger: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["nosuchverb"], ["dump"], ["dump", "x", "--limit", "-1"], ["find", "x"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--help" in error


def test_an_error_of_the_system_is_one_line(
    store: Store, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error", "/disk/file")

    monkeypatch.setattr("pyspark_dledger.cli.verbs.state.run", fails)
    assert run("state", store.path).err == "dledger: /disk/file: Input/output error\n"


def test_what_was_found_before_an_error_is_printed(store: Store, run: Callable[..., Ran]) -> None:
    done = run("verify", store.path, "no/such/store")
    assert done.code == 2
    assert f"{store.path}: error 0" in done.out


# What it loads

LISTED = ("dump", "segments", "state", "stats", "verify", "recovery", "diff", "audit", "consumers", "find", "follow")


def test_help_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    listed = re.findall(r"^    (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert tuple(name for name in listed if name in LISTED) == LISTED
    for verb in LISTED:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert "exit codes: 0 clean" in capsys.readouterr().out


def test_no_verb_loads_spark_or_pandas(broker: Store) -> None:
    path = root_of(broker)
    lines = [[verb, str(path)] for verb in LISTED if verb not in ("diff", "find", "follow")]
    lines += [["find", str(path), what] for what in ("3", "U3", "2023-11-14", "7F00000100002A9F0000000000000030")]
    lines += [["diff", f"{path}/dledger-n0", str(path)], ["dump", str(path), "--table", "consumeQueue"]]
    code = (
        "import sys\n"
        "from pyspark_dledger.cli.main import main\n"
        f"for line in {lines!r}:\n"
        "    sys.argv[1:] = line\n"
        "    assert main() in (0, 1), line\n"
        "    assert not {'pyspark', 'py4j', 'pandas'} & set(sys.modules), line\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from pyspark_dledger.cli.main import main\n"
        "try:\n    main(['dump', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'numpy', 'pyarrow', 'rich', 'asyncio', 'pyspark'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command() -> None:
    child = process("--help")
    assert child.communicate()[0].startswith("usage: dledger")
    assert child.returncode == 0


def test_follow_ends_when_its_reader_goes(store: Store) -> None:
    child = process("follow", store.path, "--from", "earliest", "--interval", "0.1")
    assert child.stdout is not None
    assert child.stdout.readline()
    child.stdout.close()
    assert child.wait(timeout=60) == 0
    assert child.stderr is not None
    assert child.stderr.read() == ""


def test_a_log_that_lost_its_end_is_no_clean_comparison(tmp_path: Path, run: Callable[..., Ran]) -> None:
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
    found = run("audit", root_of(broker), "--json")
    assert found.code == 1
    assert [row["code"] for row in found.rows] == ["unitWithoutMessage"] * len(broker.rows)
