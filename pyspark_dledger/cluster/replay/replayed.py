"""Chooses the messages of a log that are sent to a cluster again, and gives them the form in which they are sent."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_dledger.cluster.producer import BatchMessage
from pyspark_dledger.cluster.replay.replay_options import ReplayOptions
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format import layout
from pyspark_dledger.format.spec import COMMITLOG, DLEDGER
from pyspark_dledger.log.io.salvage_fillers import PROBLEM, SalvageFillers, unproven_entries
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.jobs.store_files import SYSTEM_TOPICS
from pyspark_dledger.rocketmq.lives.topics import CHECKED_TOO_OFTEN_TOPIC, DEAD_PREFIX, RETRY_PREFIX

COLUMNS = (
    *("kind", "source", "index", "pos", "size", "problem", "topic", "queueId", "queueOffset", "flag", "bornTimestamp"),
    *("transaction", "keys", "uniqKey", "properties", "body"),
)
PROPERTY_BORN = "BORN_TIMESTAMP"
REPLAYED_PREFIX = "REPLAYED_"
"""Goes before the name of a property with which a broker would delay or hide a message, or acknowledge it early."""

# Why a row is left out. The user has to look at these: each is named, with its position.
DAMAGED = "damaged"
UNPROVEN = "copies of a salvage that no check proves"
FILLERS = "fillers of a salvage"
NO_MESSAGE = "entries that are no messages"
NO_ORIGIN = "retries and dead letters without their original topic"
TOO_LONG = "properties too long to be sent"
# These are only counted.
SYSTEM = "messages of system topics"
ROLLED_BACK = "messages of transactions without a commit"
RETRIED = "retries and dead letters, unless option topic names theirs"

_RETRY_TOPIC = "RETRY_TOPIC"
_HIDING = frozenset({
    layout.PROPERTY_DELAY,
    layout.PROPERTY_REAL_TOPIC,
    layout.PROPERTY_REAL_QUEUE_ID,
    "TRAN_MSG",
    "TIMER_DELIVER_MS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "__STARTDELIVERTIME",
})  # fmt: skip
# With it, a broker does not wait for its disk and its slave.
_NO_WAIT = ("WAIT", "false")
# Brokers write it.
_DROPPED = layout.PROPERTY_CRC
_NO_MESSAGES = ("noop", "config", "blank")


class Origin(NamedTuple):
    """Where a message is in the log that it comes from."""

    pos: int
    topic: str
    queue_id: int
    queue_offset: int
    uniq_key: str


class Replayed(NamedTuple):
    """A message that is sent, and its topic in the cluster."""

    origin: Origin
    topic: str
    message: BatchMessage


class LeftOut(NamedTuple):
    """A row that is not sent. `place` says where it is and what is wrong with it; empty if that is no problem."""

    reason: str
    place: str = ""


@dataclass(frozen=True)
class Chooser:
    """Decides about the rows of a log; `salt` makes new uniqKeys, the same ones for the same salt."""

    log: StoreView
    topics: tuple[str, ...]
    options: ReplayOptions
    salt: str

    def choose(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Replayed | LeftOut]:
        """The rows that are sent or left out; not those that the options do not select. Batches can be without body.

        Raises StoreError.
        """
        listed = None if self.options.lost_list is None else _Places(_listed(self.options.lost_list))
        sources = (DLEDGER, COMMITLOG)
        unproven = {source: _Places(unproven_entries(self.log.paths, source)) for source in sources}
        fillers = SalvageFillers(self.log.paths)
        for batch in batches:
            filled = set(fillers.numbers(batch))
            born = batch["bornTimestamp"].cast(pa.int64()).to_pylist()
            others = batch.drop_columns(["bornTimestamp"]).to_pylist()
            for number, (row, microseconds) in enumerate(zip(others, born, strict=True)):
                if row["kind"] in _NO_MESSAGES or (listed is not None and row["pos"] not in listed):
                    continue
                if row["problem"] is not None:
                    yield _left_out(DAMAGED, row, row["problem"])
                elif row["kind"] != "message":
                    yield _left_out(NO_MESSAGE, row, "expected a message, found another entry")
                elif not self._is_wanted(row):
                    continue
                elif number in filled:
                    yield _left_out(FILLERS, row, PROBLEM)
                elif row["pos"] in unproven[row["source"]]:
                    yield _left_out(UNPROVEN, row, UNPROVEN)
                else:
                    yield self._decided(row, microseconds)

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        wanted = self.options.keys
        return wanted is None or not {row["uniqKey"], *(row["keys"] or "").split(" ")}.isdisjoint(wanted)

    def _decided(self, row: Mapping[str, Any], born: int | None) -> Replayed | LeftOut:
        topic: str | None = row["topic"]
        assert topic is not None  # of a message without a problem
        if SYSTEM_TOPICS.fullmatch(topic) or topic == CHECKED_TOO_OFTEN_TOPIC:
            return LeftOut(SYSTEM)
        if row["transaction"] in ("prepared", "rollback"):
            return LeftOut(ROLLED_BACK)
        properties = dict(row["properties"] or ())
        if topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):
            if topic not in self.topics:
                return LeftOut(RETRIED)
            topic = properties.get(_RETRY_TOPIC)
            if not topic:
                return _left_out(NO_ORIGIN, row, f"expected property {_RETRY_TOPIC}, found none")
        uniq_key = row["uniqKey"] if self.options.keep_uniq_key else None
        uniq_key = uniq_key or hashlib.sha256(f"{self.salt} {row['pos']}".encode()).hexdigest()[:32].upper()
        encoded = _encoded(properties, uniq_key, born)
        if len(encoded) > layout.MAX_PROPERTIES_SIZE:
            most = layout.MAX_PROPERTIES_SIZE
            return _left_out(TOO_LONG, row, f"expected properties of at most {most} bytes, found {len(encoded)}")
        origin = Origin(row["pos"], row["topic"], row["queueId"], row["queueOffset"], uniq_key)
        return Replayed(origin, topic, BatchMessage(row.get("body") or b"", encoded, 0, row["flag"]))


def _left_out(reason: str, row: Mapping[str, Any], why: str) -> LeftOut:
    index = "" if row["index"] is None else f" index={row['index']}"
    return LeftOut(reason, f"pos={row['pos']}{index}: {why}")


def _encoded(properties: Mapping[str, str], uniq_key: str, born: int | None) -> bytes:
    """Properties as they are sent; those that a broker would act on have other names."""
    found = {
        REPLAYED_PREFIX + name if name in _HIDING or (name, value) == _NO_WAIT else name: value
        for name, value in properties.items()
    }
    found.pop(_DROPPED, None)
    found[layout.PROPERTY_UNIQ_KEY] = uniq_key
    if born is not None:
        found.setdefault(PROPERTY_BORN, str(born // 1000))
    text = "".join(f"{name}{_NAME_END}{value}{_VALUE_END}" for name, value in found.items())
    return text.encode()


_NAME_END, _VALUE_END = chr(layout.NAME_VALUE_SEPARATOR), chr(layout.PROPERTY_SEPARATOR)


class _Places:
    """Ranges of positions, which do not overlap."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._ranges = sorted((row["pos"], row["pos"] + (row.get("size") or 1)) for row in rows)

    def __contains__(self, pos: int) -> bool:
        number = bisect_right(self._ranges, pos, key=lambda each: each[0]) - 1
        return number >= 0 and pos < self._ranges[number][1]


def _listed(file: str) -> list[dict[str, Any]]:
    """The rows of a list of what is lost. Raises OptionError."""
    try:
        with open(file, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        for row in rows:
            if type(row["pos"]) is not int or type(row.get("size") or 1) is not int:
                raise ValueError
    except OSError as error:
        raise OptionError(f"option lostList: {file} cannot be read ({error.strerror}): check the path") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise OptionError(
            f"option lostList: expected lines of JSON with pos and size in {file}, found others: give the lost.jsonl "
            "of a salvage, or the output of dledger lost --json"
        ) from None
    return rows
