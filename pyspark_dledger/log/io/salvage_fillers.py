"""Tells the fillers of a salvage from other rows: they stand for entries that no source had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.spec import DLEDGER
from pyspark_dledger.log.io.files import is_remote_path, read_start
from pyspark_dledger.log.io.store_paths import StorePaths

TOPIC = "DLEDGER_LOST"
"""The topic of fillers, which are rolled-back messages."""
LOST_FILE = "lost.jsonl"
"""The list of what no source has, in the target of a salvage."""
DECIDED_FILE = "decided.jsonl"
"""The list of the entries of which no check shows that the copy is right, in the target of a salvage."""
TIE, UNCONFIRMED = "tie", "unconfirmed"
"""Why a copy was taken that may be wrong, in this list: copies differ, and nothing shows which one is right; or it is
the only copy left, and no checksum covers it.
"""
SOURCE_POS = "sourcePos"
"""The name of a position in these lists where they were copied: in the log that a CommitLog was exported from."""
_MAX_LIST = 16 * 1024 * 1024
PROBLEM = "a filler of a salvage: no source had the entry"


class SalvageFillers:
    """The fillers of one store: by their topic, and by the list of its salvage, which also has what was known."""

    def __init__(self, paths: StorePaths) -> None:
        self._listed = {row["pos"]: row for row in _listed(paths, LOST_FILE)}

    @property
    def positions(self) -> frozenset[int]:
        """Where listed fillers begin."""
        return frozenset(self._listed)

    def numbers(self, batch: pa.RecordBatch) -> list[int]:
        """The numbers of the rows that are fillers; the batch has the columns pos and topic."""
        found: npt.NDArray[np.bool_] = np.asarray(pc.fill_null(pc.equal(batch["topic"], TOPIC), False))
        if self._listed:
            is_listed = np.isin(np.asarray(batch["pos"]), list(self._listed))
            found = found | (is_listed & np.asarray(pc.invert(pc.is_in(batch["kind"], pa.array(["corrupt", "blank"])))))
        numbers: list[int] = np.flatnonzero(found).tolist()
        return numbers

    def known_at(self, pos: int) -> dict[str, Any]:
        """What queues knew of the message whose filler is at a position."""
        messages: Sequence[dict[str, Any]] = self._listed.get(pos, {}).get("messages", [])
        known = messages[0] if len(messages) == 1 else {}
        return {name: known.get(name) for name in ("topic", "queueId", "queueOffset")}

    def is_of_many(self, pos: int) -> bool:
        """Whether the filler at a position stands for several messages."""
        return len(self._listed.get(pos, {}).get("messages", ())) > 1

    def messages(self) -> Iterator[dict[str, Any]]:
        """What was known of each message of the fillers that stand for several ones."""
        for row in self._listed.values():
            yield from row["messages"] if self.is_of_many(row["pos"]) else ()

    def queue_offsets(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
        """Topic, queue id and queue offset of the messages for which entries in ranges of indexes stand."""
        indexed = [row for row in self._listed.values() if isinstance(row.get("index"), int)]
        for first, last in ranges:
            for row in (row for row in indexed if first <= row["index"] <= last):
                found = ((each["topic"], each["queueId"], each["queueOffset"]) for each in row["messages"])
                yield from (place for place in found if None not in place)


def decided_positions(paths: StorePaths, source: str) -> frozenset[int]:
    """The positions of the entries about which the salvage that wrote a store decided, and not by chance."""
    return frozenset(row["pos"] for row in _decided(paths, source) if row.get("why") not in (TIE, UNCONFIRMED))


def unproven_entries(paths: StorePaths, source: str) -> list[dict[str, Any]]:
    """The rows of the list for entries that may be damaged: nobody knows if the copy is right, or its checks fail."""
    return [row for row in _decided(paths, source) if _is_unproven(row)]


def _is_unproven(row: dict[str, Any]) -> bool:
    return row.get("why") in (TIE, UNCONFIRMED) or bool(row.get("isSuspect"))


def exported_doubts(paths: StorePaths) -> list[dict[str, Any]]:
    """As `unproven_entries`, of the store that a CommitLog was exported from: nothing tells where they are now."""
    return [row for row in _rows(paths, DECIDED_FILE) if isinstance(row.get(SOURCE_POS), int) and _is_unproven(row)]


def exported_list(paths: StorePaths, name: str) -> list[dict[str, Any]]:
    """The rows of a list for the CommitLog that a store is exported to, where messages have other positions."""
    return [{(SOURCE_POS if key == "pos" else key): row[key] for key in row} for row in _rows(paths, name)]


def decided_offsets(paths: StorePaths) -> frozenset[int]:
    """Where the messages begin whose copy the request chose: nothing shows that their queueOffset is right."""
    rows = [row for row in _listed(paths, DECIDED_FILE) if row.get("why") != UNCONFIRMED]
    return frozenset(row["pos"] + (ENTRY_HEADER_SIZE if row.get("source") == DLEDGER else 0) for row in rows)


def _decided(paths: StorePaths, source: str) -> list[dict[str, Any]]:
    return [row for row in _listed(paths, DECIDED_FILE) if row.get("source") == source]


def _listed(paths: StorePaths, name: str) -> list[dict[str, Any]]:
    """The rows of a list that say where something is in the store."""
    return [row for row in _rows(paths, name) if isinstance(row.get("pos"), int)]


def _rows(paths: StorePaths, name: str) -> list[dict[str, Any]]:
    """The rows of a list; none without one, or if it is damaged."""
    if paths.root is None or is_remote_path(paths.root):
        return []
    try:
        rows = [json.loads(line) for line in read_start(paths.root / name, _MAX_LIST).splitlines()]
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict)]
