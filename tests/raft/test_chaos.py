"""Real nodes under load and faults: acknowledged entries and their order are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.rounds import run


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_group_keeps_its_guarantees_under_faults(tmp_path: Path, flush: str) -> None:
    """The long form is `make chaos`."""
    report = run(tmp_path, rounds=4, seed=20 + len(flush), flush=flush)
    assert report.violations == []
    assert report.outcomes["acknowledged"] > 100, report
    assert report.reads > 10, report
