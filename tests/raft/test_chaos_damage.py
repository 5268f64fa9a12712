"""The judge of `make chaos` sees every flipped bit that is still there at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.damage import KINDS, flip
from tests.chaos.group import Group
from tests.chaos.judge import wrong_stores
from tests.support.stores import bodies, opened


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Three members with equal stores, none of them running."""
    group = Group(tmp_path, 3, "sync")
    for node in group.ids:
        store = opened(group.root(node), self_id=node, data_file_size=64 * 1024)
        store.append_as_leader(bodies(0, 30))
        store.flush()
        store.update_committed_index(0, 29)
        store.shutdown()
    yield group
    group.stop()


def test_equal_stores_are_right(group: Group) -> None:
    assert list(wrong_stores(group, {})) == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS[:3])
def test_damage_that_stays_is_seen(group: Group, kind: str, seed: int) -> None:
    damage = flip("n1", group.store("n1"), kind, 28, random.Random(seed))
    assert damage is not None and not damage.is_repaired
    found = list(wrong_stores(group, {}))
    assert any("the logs differ" in text for text in found)
    assert any(text.startswith("n1: verify finds") for text in found)
