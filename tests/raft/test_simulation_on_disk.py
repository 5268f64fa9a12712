"""Groups with the real store on disks that lose power, and broken stores that this must detect."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import mutations, power_mutations
from tests.simulation.run import run_on_disk
from tests.support.long_runs import some

COUNT = 16
COMMON = ("appends acknowledged", "crashes", "elections won", "power losses that lost some entries", "resets")


@pytest.mark.slow
def test_no_seed_on_disk_violates_a_rule() -> None:
    counts: Counter[str] = Counter()
    for seed in some(range(500), COUNT):
        outcome = run_on_disk(seed)
        assert not outcome.violation, f"python -m tests.simulation --on-disk --seed {seed}: {outcome.violation}"
        counts.update(outcome.counts)
    assert all(counts[event] for event in COMMON)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", power_mutations.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_store_is_caught(mutant: type[mutations.Mutant]) -> None:
    found = (mutations.run_mutant(mutant, seed).violation or "" for seed in range(20, 80))
    assert any(text and "raised" not in text and mutant.caught_by in text for text in found)
