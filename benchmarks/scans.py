"""The native scan in one thread, compared with Java DLedger and a plain C++ walk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from benchmarks import peers
from benchmarks.generate import MESSAGES_1K, RAW_1K, RAW_128, Store, ensure
from benchmarks.measure import Result, alternate, rounded, timed
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment, SurveyRequest

HEADER = ("index", "term", "pos", "size", "magic", "channel", "chainCrc", "bodyCrc", "bodySize")
JAVA_WARM_UPS = 4  # rounds until its compiler is done


def request(store: Store, columns: tuple[str, ...]) -> ScanRequest:
    """A request for the store's first segment."""
    path = store.segment(0)
    segment = Segment.local(str(path), path.name, 0, store.segment_size, DLEDGER)
    return ScanRequest(segment, 0, store.segment_size, columns)


def scan(wanted: ScanRequest) -> int:
    """Read all batches. Returns the number of rows."""
    return sum(batch.num_rows for batch, _ in get_engine("native").scan(wanted))


def scan_raw(name: str, store: Store) -> Result:
    ensure(store)
    wanted = request(store, (*HEADER, "body"))
    entries = scan(wanted)
    with closing(peers.java(store)) as java:
        if java.entries != entries:
            raise AssertionError(f"{store.name}: we read {entries} entries, Java {java.entries}")
        seconds = alternate({"ours": timed(lambda: scan(wanted)), "java": java.seconds}, warm_ups=JAVA_WARM_UPS)
    value, peer = entries / seconds["ours"], entries / seconds["java"]
    return Result(name, value, "entries/s", "Java get(index)", peer).with_ratio_goal(2)


def scan_messages(name: str, store: Store) -> Result:
    """All columns with CRCs, compared with RocketMQ's decoder; `ofVerify` compares with a survey."""
    ensure(store)
    wanted = request(store, DEFAULT_NAMES)
    entries = scan(wanted)
    checked = SurveyRequest(wanted.segment, 0, store.segment_size)
    sides = {"ours": timed(lambda: scan(wanted)), "verify": timed(lambda: get_engine("native").survey(checked))}
    with closing(peers.message_decoder(store.segment(0))) as java:
        if java.entries != entries:
            raise AssertionError(f"{store.name}: we read {entries} messages, Java {java.entries}")
        seconds = alternate({**sides, "java": java.seconds}, warm_ups=JAVA_WARM_UPS)
    value, peer = entries / seconds["ours"], entries / seconds["java"]
    detail = {"ofVerify": rounded(seconds["verify"] / seconds["ours"]), "ofVerifyGoal": 0.35}
    return Result(name, value, "messages/s", "RocketMQ 5.3.3, MessageDecoder", peer, detail=detail).with_ratio_goal(2)


def scan_headers(name: str, store: Store) -> Result:
    ensure(store)
    wanted = request(store, HEADER)
    entries = scan(wanted)
    with closing(peers.cpp_walk(store.segment(0))) as walk:
        commands = {command: partial(walk.seconds, command) for command in ("walk", "map", "read")}
        seconds = alternate({"ours": timed(lambda: scan(wanted)), **commands})
    detail = {
        "walkWithMapping": rounded(entries / seconds["map"]),
        "readBy1MiBGBps": rounded(store.segment_size / seconds["read"] / 1e9),
    }
    value, peer = entries / seconds["ours"], entries / seconds["walk"]
    return Result(name, value, "entries/s", "bare C++ walk", peer, detail=detail).with_ratio_goal(0.6)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "scan-raw-1k": partial(scan_raw, store=RAW_1K),
    "scan-raw-128": partial(scan_raw, store=RAW_128),
    "scan-messages-1k": partial(scan_messages, store=MESSAGES_1K),
    "scan-headers-1k": partial(scan_headers, store=RAW_1K),
    "scan-headers-128": partial(scan_headers, store=RAW_128),
}
