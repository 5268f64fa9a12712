"""Fixtures of the tests of raft."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.groups import Nodes, nodes


@pytest.fixture
def one_node(tmp_path: Path) -> Iterator[Nodes]:
    """A group of one, which leads."""
    with nodes(tmp_path, 1, core_options={}) as group:
        group.leader()
        yield group
