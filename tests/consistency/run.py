"""Checks one group by seed."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tests.consistency.damages import damage
from tests.consistency.rules import Contradiction, Group, check
from tests.consistency.worlds import World, world


class Checked(NamedTuple):
    """One seed: what the group is, and its contradictions."""

    seed: int
    name: str
    damages: list[str]
    problems: list[Contradiction]


def make(folder: Path, seed: int) -> Group:
    """The damaged group of a seed, of which some replicas are given in some order."""
    made: World = world(folder, seed)
    damage(made)
    draw = random.Random(f"given {seed}")
    given = draw.sample(made.replicas, draw.choices((1, 2, 3), (1, 2, 7))[0])
    return Group(made, given, given[0].path.parent)


def check_seed(seed: int, kept: str | None = None) -> Checked:
    """Make and check the group of a seed; `kept` is a new folder for its files."""
    root = Path("/dev/shm") if kept is None and Path("/dev/shm").is_dir() else None
    folder = Path(kept or tempfile.mkdtemp(prefix=f"consistency-{seed}-", dir=root))
    folder.mkdir(exist_ok=True)
    try:
        with patch.object(os, "fsync", lambda _: None):  # many small files
            group = make(folder, seed)
            problems = check(group, seed)
        given = "+".join(group.stores)
        damages = [f"{each.name}: {text}" for each in group.world.replicas for text in each.damages]
        return Checked(seed, f"{group.world.name} given {given}", damages, problems)
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)
