"""The native scan in one thread, against the Java DLedger and a bare C++ walk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import peers
from benchmarks.generate import MESSAGES_1K, RAW_1K, RAW_128, Store, ensure
from benchmarks.measure import PeerMissing, Result, alternate, at_least_ratio, timed
from pyspark_dledger.format.columns import DEFAULT_NAMES
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment

HEADER = ("index", "term", "pos", "size", "magic", "channel", "chainCrc", "bodyCrc", "bodySize")
PER_SECOND = "entries/s"
JAVA_GOAL = 2
HEADERS_GOAL = 40e6
MESSAGES_GOAL = 3e6


def request(store: Store, columns: tuple[str, ...]) -> ScanRequest:
    path = store.segment(0)
    segment = Segment(str(path), path.name, 0, store.segment_size, DLEDGER)
    return ScanRequest(segment, 0, store.segment_size, columns)


def scan(wanted: ScanRequest) -> int:
    """Read all of it, batch by batch; the number of rows."""
    return sum(batch.num_rows for batch, _ in get_engine("native").scan(wanted))


def scan_raw(name: str, store: Store) -> Result:
    ensure(store)
    wanted = request(store, (*HEADER, "body"))
    entries = scan(wanted)
    ours = timed(lambda: scan(wanted))
    try:
        java = peers.java(store)
    except PeerMissing as reason:
        value = entries / alternate({"ours": ours})["ours"]
        goal = f"ratio >= {JAVA_GOAL}"
        return Result(name, value, PER_SECOND, goal, None, detail={"skipped": f"no Java side: {reason}"})
    with java:
        if java.entries != entries:
            raise AssertionError(f"{store.name}: we read {entries} entries, Java {java.entries}")
        # The first rounds of Java run before its compiler is done.
        seconds = alternate({"ours": ours, "java": java.seconds}, warm_ups=4)
    return at_least_ratio(
        name, PER_SECOND, entries / seconds["ours"], "Java get(index)", entries / seconds["java"], JAVA_GOAL
    )


def scan_messages(name: str, store: Store) -> Result:
    ensure(store)
    wanted = request(store, DEFAULT_NAMES)
    entries = scan(wanted)
    value = entries / alternate({"ours": timed(lambda: scan(wanted))})["ours"]
    return Result(name, value, "messages/s", f"value >= {MESSAGES_GOAL:g}", value >= MESSAGES_GOAL)


def scan_headers(name: str, store: Store) -> Result:
    ensure(store)
    wanted = request(store, HEADER)
    entries = scan(wanted)
    sides = {"ours": timed(lambda: scan(wanted))}
    goal = f"value >= {HEADERS_GOAL:g}"
    try:
        walk = peers.cpp_walk(store.segment(0))
    except PeerMissing as reason:
        value = entries / alternate(sides)["ours"]
        return Result(
            name, value, PER_SECOND, goal, value >= HEADERS_GOAL, detail={"skipped": f"no C++ side: {reason}"}
        )
    with walk:
        for command in ("walk", "map", "read"):
            sides[command] = lambda command=command: walk.seconds(command)  # type: ignore[misc]
        seconds = alternate(sides)
    value, peer = entries / seconds["ours"], entries / seconds["walk"]
    detail = {
        "walkWithMapping": float(f"{entries / seconds['map']:.4g}"),
        "readBy1MiBGBps": float(f"{store.segment_size / seconds['read'] / 1e9:.4g}"),
    }
    return Result(name, value, PER_SECOND, goal, value >= HEADERS_GOAL, "bare C++ walk", peer, value / peer, detail)


BENCHMARKS: dict[str, Callable[[str], Result]] = {
    "scan-raw-1k": partial(scan_raw, store=RAW_1K),
    "scan-raw-128": partial(scan_raw, store=RAW_128),
    "scan-messages-1k": partial(scan_messages, store=MESSAGES_1K),
    "scan-headers-1k": partial(scan_headers, store=RAW_1K),
    "scan-headers-128": partial(scan_headers, store=RAW_128),
}
