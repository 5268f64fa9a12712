"""The goldens: stores written by the Java DLedger and RocketMQ, and what their own readers say about them."""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import json
import tarfile
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.support.sparse_copy import copy_tree

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
SUFFIX = ".expected.jsonl.gz"

Record = dict[str, Any]

TRANSACTIONS = ("none", "prepared", "commit", "rollback")
CODECS = ("zlib", "lz4", "zstd", "zlib")
# What only a CommitLog message has.
MESSAGE_COLUMNS = (
    *("topic", "queueId", "queueOffset", "commitLogOffset", "storeSize", "messageMagic", "flag", "sysFlag"),
    *("reconsumeTimes", "bornTimestamp", "storeTimestamp", "bornHost", "storeHost", "messageCrc"),
    *(
        "preparedTransactionOffset",
        "transaction",
        "compression",
        "tags",
        "keys",
        "uniqKey",
        "offsetMsgId",
        "properties",
    ),
)


originals: Path | None = None
"""Where tests unpack cases. With it `unpack` copies a case from there, which takes a fifth of the time."""


def unpack(case: str, folder: Path) -> Path:
    """Unpack one case below `folder`; holes stay holes. Returns the folder of the case."""
    if originals is None:
        return _extract(case, folder)
    return copy_tree(original(case, originals)[0], folder / case, dirs_exist_ok=True)


@cache
def original(case: str, folder: Path) -> tuple[Path, dict[str, tuple[int, int, int]]]:
    """A case that is unpacked once, which nobody may change, and its fingerprint."""
    path = _extract(case, folder)
    return path, fingerprint(path)


def _extract(case: str, folder: Path) -> Path:
    with tarfile.open(GOLDENS / f"{case}.tar.gz") as archive:
        # The safe filter, which Python 3.10 and 3.11 have only in their later patch versions.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        archive.extractall(folder)
    return folder / case


def fingerprint(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Name, kind, size and modification time of everything below `folder`: changes when anything is written."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        stat = path.lstat()
        found[str(path.relative_to(folder))] = (stat.st_mode, stat.st_size, stat.st_mtime_ns)
    return found


class Golden(NamedTuple):
    """One replica of one case."""

    case: str
    node: str
    """``n0`` and so on where the case has several replicas, else empty."""

    def __str__(self) -> str:
        return f"{self.case}.{self.node}" if self.node else self.case

    @property
    def is_raw(self) -> bool:
        """Written by DLedger alone: the bodies are no CommitLog messages."""
        return self.case.startswith("raw-")

    @property
    def folder(self) -> str:
        """Where the store lies below the folder of its case: a node's folder, or a storePathRootDir."""
        return f"dledger-{self.node or 'n0'}" if self.is_raw else self.node

    @property
    def meta(self) -> Record:
        return json.loads((GOLDENS / f"{self.case}.meta.json").read_text())

    @property
    def version(self) -> str:
        """Version of DLedger, which decides what is on disk."""
        return self.meta["dledgerVersion"] if self.is_raw else self.meta["versions"].get("dledger", "")

    def expected(self, restarted: bool = False) -> Expected:
        """What Java says; `restarted`: after a real start of a killed store."""
        return read_expected(f"{self}{'.restarted' if restarted else ''}{SUFFIX}")


class Expected:
    """One expected file: Java's summary, and its entries or messages in the order of the log."""

    def __init__(self, lines: list[Record]) -> None:
        self.head = lines[0]
        self.is_raw = "kind" not in self.head
        self.entries = lines[1:] if self.is_raw else [line for line in lines if line.get("kind") == "message"]
        self.queries = [line for line in lines if line.get("kind") == "query"]
        self.queue_offsets = {line["phyOffset"] for line in lines if line.get("kind") == "cq"}

    @property
    def dledger(self) -> Record:
        """Java's begin, end and committed index and so on; empty for a plain CommitLog."""
        return self.head if self.is_raw else self.head.get("dledger", {})

    @property
    def checkpoint(self) -> int | None:
        """The committed index that Java takes from its checkpoint file."""
        index = self.dledger.get("committedIndex", -1)
        return None if index < 0 else index

    @cached_property
    def proven(self) -> int | None:
        """The highest index that the checkpoint or the ConsumeQueue proves committed: brokers dispatch nothing else."""
        dispatched = [
            e["index"] for e in self.entries if "index" in e and e.get("physicalOffset") in self.queue_offsets
        ]
        return max((index for index in (self.checkpoint, *dispatched) if index is not None), default=None)

    @cached_property
    def _converted(self) -> list[Record]:
        convert = entry_row if self.is_raw else message_row
        return [convert(entry) for entry in self.entries]

    def rows(self, committed: int | None, bases: Iterable[int]) -> list[Record]:
        """The rows of the ``log`` table, all columns of them, in the form of `rows_of`."""
        bases = sorted(bases)
        rows = [dict(row) for row in self._converted]
        for row in rows:
            row["segment"] = f"{max(base for base in bases if base <= row['pos']):020d}"
            row["healedFrom"] = None
            if row["source"] == "dledger":
                row["committed"] = None if committed is None else row["index"] <= committed
        return rows


@cache
def read_expected(name: str) -> Expected:
    with gzip.open(GOLDENS / name, "rt", encoding="utf-8") as lines:
        return Expected([json.loads(line) for line in lines])


def header(magic: int, body_size: int) -> Record:
    """The header fields that are the same in every entry of the goldens: no Java version fills them."""
    return {"magic": magic, "channel": 0, "chainCrc": 0, "bodyCrc": 0, "bodySize": body_size}


def entry_row(entry: Record) -> Record:
    return {
        "kind": {1: "entry", 2: "noop"}[entry["magic"]],
        "source": "dledger",
        "index": entry["index"],
        "term": entry["term"],
        # Not `pos`, which is the header's: in a 0.4.0 follower it can be the leader's.
        "pos": entry["indexPos"],
        "size": entry["size"],
        **header(entry["magic"], entry["bodyLen"]),
        "problem": None,
        **dict.fromkeys(MESSAGE_COLUMNS),
        "body": (entry["bodyLen"], entry["bodySha256"]),
    }


def message_row(message: Record) -> Record:
    in_dledger = message["source"] == "dledger"
    sys_flag = message["sysFlag"]
    return {
        "kind": "message",
        "source": message["source"],
        "index": message.get("index"),
        "term": message.get("term"),
        "pos": message["recordOffset"],
        "size": message["recordSize"],
        **(header(1, message["storeSize"]) if in_dledger else dict.fromkeys(header(0, 0))),
        "committed": True,
        "problem": None,
        **{name: message[name] for name in MESSAGE_COLUMNS if name in message},
        "messageMagic": message["magic"],
        "messageCrc": message["bodyCRC"],
        "bornHost": host(message["bornHost"]),
        "storeHost": host(message["storeHost"]),
        "transaction": TRANSACTIONS[sys_flag >> 2 & 3],
        "compression": CODECS[sys_flag >> 8 & 7] if sys_flag & 1 else "none",
        "uniqKey": message["properties"].get("UNIQ_KEY"),
        "offsetMsgId": message["msgId"],
        "body": (message["bodyLength"], message["bodySha256"]),
    }


def host(java: str) -> str:
    """Java's ``ip|port`` as ``ip:port`` or ``[ip]:port``."""
    address, port = java.split("|")
    ip = ipaddress.ip_address(address)
    return f"[{ip.compressed}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def rows_of(table: pa.Table) -> list[Record]:
    """Rows to compare: timestamps in milliseconds, properties as a dict, bodies as length and SHA-256."""
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            microseconds = table.column(i).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            table = table.set_column(i, field.name, microseconds)
    rows = table.to_pylist()
    for row in rows:
        for name in ("bornTimestamp", "storeTimestamp"):
            if row.get(name) is not None:
                row[name], rest = divmod(row[name], 1000)
                assert rest == 0, "whole milliseconds"
        if row.get("properties") is not None:
            pairs = row["properties"]
            row["properties"] = dict(pairs)
            assert len(pairs) == len(row["properties"]), f"a key twice in {pairs}"
        for name in ("body", "entryBody"):
            if row.get(name) is not None:
                row[name] = (len(row[name]), hashlib.sha256(row[name]).hexdigest())
    return rows


def assert_same(actual: list[Record], expected: list[Record]) -> None:
    """Fails with the first row and the columns that differ; two thousand rows side by side would help nobody."""
    for number, (got, want) in enumerate(zip(actual, expected, strict=False)):
        if got != want:
            names = [name for name in {**want, **got} if got.get(name, "absent") != want.get(name, "absent")]
            differences = "\n".join(
                f"  {name}: {got.get(name, 'absent')!r} where Java says {want.get(name, 'absent')!r}" for name in names
            )
            where = f"row {number} (index {want.get('index')}, pos {want.get('pos')})"
            raise AssertionError(f"{where} differs:\n{differences}")
    assert len(actual) == len(expected)


def all_goldens() -> list[Golden]:
    """Every replica of every case that has expected files, in the order of their names."""
    cases = sorted({path.name.partition(".")[0] for path in GOLDENS.glob(f"*{SUFFIX}")})
    goldens = []
    for case in cases:
        nodes = sorted(p.name.removesuffix(SUFFIX).removeprefix(f"{case}.") for p in GOLDENS.glob(f"{case}.n*{SUFFIX}"))
        goldens += [Golden(case, node) for node in nodes or [""]]
    return goldens


ALL = all_goldens()
