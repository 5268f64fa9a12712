"""Judges what is read from a damaged store: intact entries are rows, and no row is invented or stale."""

from __future__ import annotations

import random
from typing import NamedTuple

from pyspark_dledger.log import open_log
from tests.support.log_writer import Written
from tests.support.witnesses.damages import Damage, damage_store
from tests.support.witnesses.originals import PLACE, Original
from tests.support.witnesses.other_logs import can_be_log

Place = tuple[str, int, int]


class Verdict(NamedTuple):
    """Positions of intact entries without a row, positions of rows without an entry, and where readings differ.

    ``is_other_log``: another log that has all rows gives the same files, so nobody can know which one was written.
    """

    lost: list[int]
    invented: list[int]
    disagreements: list[str]
    is_other_log: bool = False

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.invented or self.disagreements)

    def __str__(self) -> str:
        parts = [f"lost {len(self.lost)} from {self.lost[0]}"] if self.lost else []
        parts += [f"invented {len(self.invented)} from {self.invented[0]}"] if self.invented else []
        return ", ".join(parts + self.disagreements)


def judge(rng: random.Random, original: Original, index_mode: str, thorough: bool = True) -> Verdict:
    """Damage the store, read it, and undo the damage. With `thorough` also by the Python engine and with splits."""
    with Damage() as damage:
        damage_store(rng, original, damage, index_mode)
        rows = read_places(original, "native")
        intact = damage.intact(original)
        found = {pos for kind, pos, _ in rows if kind != "corrupt"}
        true = {entry.pos for entry in original.entries}
        disagreements = []
        if thorough:
            target = rng.choice([1, 3000, 20000])
            readings = {
                "python": read_places(original, "python"),
                f"split by {target}": read_places(original, "native", maxPartitionBytes=target),
                f"python split by {target}": read_places(original, "python", maxPartitionBytes=target),
            }
            disagreements = [f"{name} differs" for name, others in readings.items() if others != rows]
        lost, invented = sorted(intact - found), sorted(found - true)
        is_other_log = (
            index_mode in ("missing", "damaged")
            and bool(lost or invented)
            and can_be_log(original, damage, rows_of(original))
        )
        return Verdict(lost, invented, disagreements, is_other_log)


def rows_of(original: Original) -> list[Written]:
    """The entries that are read."""
    batches = open_log(original.path, engine="native", **original.options).scan(
        ["kind", "pos", "size", "index", "term"]
    )
    rows = [row for batch in batches for row in batch.to_pylist() if row["kind"] != "corrupt"]
    return [
        Written(row["pos"], row["size"], -1 if row["index"] is None else row["index"], row["term"] or 0) for row in rows
    ]


def read_places(original: Original, engine: str, **options: int) -> list[Place]:
    """Kind, position and size of each row; adjacent corrupt rows are one."""
    places: list[Place] = []
    for batch in open_log(original.path, engine=engine, **original.options).scan(PLACE, **options):
        for row in batch.to_pylist():
            kind, pos, size = row["kind"], row["pos"], row["size"]
            if places and kind == "corrupt" == places[-1][0] and places[-1][1] + places[-1][2] == pos:
                places[-1] = kind, places[-1][1], places[-1][2] + size
            else:
                places.append((kind, pos, size))
    return places
