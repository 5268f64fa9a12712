"""Shared by the tests of reads of a running cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_cluster import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as found:
        yield found
