"""Checks one group by seed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from tests.consistency.damages import damage
from tests.consistency.rules import Contradiction, Group, check
from tests.consistency.worlds import World, world


class Checked(NamedTuple):
    """What the group of a seed is, and its contradictions."""

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


def check_seed(seed: int, folder: Path) -> Checked:
    """Make the group of a seed in an empty folder, and check it."""
    with patch.object(os, "fsync", lambda _: None):  # many small files
        group = make(folder, seed)
        problems = check(group, seed)
    given = "+".join(group.stores)
    damages = [f"{each.name}: {text}" for each in group.world.replicas for text in each.damages]
    return Checked(f"{group.world.name} given {given}", damages, problems)
