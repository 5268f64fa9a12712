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


@pytest.mark.slow
def test_changes_of_members_settle_under_faults(tmp_path: Path) -> None:
    """Replaced members, one that sleeps through it, and one restored; the long form is `make chaos ARGS=--changes`."""
    report = run(tmp_path, rounds=5, seed=1104, changes=True)
    assert report.violations == []
    assert report.outcomes["acknowledged"] > 100, report
    assert report.faults["changes"] >= 1, report
    assert report.faults["restored"] + report.faults["restore rejected"] == 1, report
