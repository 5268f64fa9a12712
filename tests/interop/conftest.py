"""Java programs that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.plain_stores import ByVersion, PlainStores


@pytest.fixture(scope="module")
def plain_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByVersion]:
    """Gives the process of a version, which opens one store after the other."""
    folder = tmp_path_factory.mktemp("plain_stores")
    processes: dict[str, PlainStores] = {}

    def process(version: str) -> PlainStores:
        if version not in processes or processes[version].has_ended:
            processes[version] = PlainStores(version, folder)
        return processes[version]

    yield process
    for each in processes.values():
        each.close()
