"""Compares reads with ``heal=true`` of a group with reads of the result of its salvage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark_dledger.log import open_log
from tests.support.generate import rows_of

Row = dict[str, Any]


def healed_rows(members: Sequence[str | Path], columns: list[str] | None = None, **options: Any) -> list[Row]:
    """The rows of a group with heal=true."""
    log = open_log(members[0], replicas=[str(member) for member in members[1:]], heal=True)
    return rows_of(log.scan(columns, **options))


def filled(result: Path) -> list[tuple[int, int]]:
    """The extents that are fillers in the result of a salvage, or that only a choice of the salvage decides."""
    files = (result / name for name in ("lost.jsonl", "decided.jsonl"))
    rows = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    return [(row["pos"], row["pos"] + row["size"]) for row in rows]


def without(rows: Sequence[Row], extents: Sequence[tuple[int, int]]) -> list[Row]:
    """The rows outside of extents, without healedFrom."""
    kept = (row for row in rows if not any(start <= row["pos"] < end for start, end in extents))
    return [{name: value for name, value in row.items() if name != "healedFrom"} for row in kept]


def heal_differences(members: Sequence[str | Path], result: Path, engine: str = "auto") -> Iterator[str]:
    """Where healed rows differ from those of the salvage's result."""
    extents = filled(result)
    expected = without(rows_of(open_log(result, engine=engine).scan(includeEntryBody=True)), extents)
    found = without(healed_rows(members, includeEntryBody=True, engine=engine), extents)
    if len(found) != len(expected):
        yield f"{len(found)} healed rows, expected {len(expected)}"
    for row, other in zip(found, expected, strict=False):
        if row != other:
            names = [name for name in row if row[name] != other[name]]
            yield f"healed row at {row['pos']}: other {', '.join(names)}"
