"""A short run of `make simulate`, and broken cores that the simulation must detect."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation import disk_mutations, membership_mutations, mutations
from tests.simulation.disk import SimStore
from tests.simulation.run import Outcome, run, run_scenario
from tests.simulation.scenario import make_with_changes
from tests.simulation.summary import missing_events

SEEDS = range(100, 220)
PROCESSES = 2
MUTANT_SEEDS = 400
FOUND = (
    *(103607, 103935, 104519, 200091, 306002, 307828, 310575, 323618, 414530, 704216, 713324, 803645, 810495),
    *(1016759, 1016847, 1017381, 95004260, 95005663),
)
"""Seeds that showed defects of changes of members (with a full disk, a new member, a leader that left), of new
disks, of a leader with damage, of clocks that go back, of members without the list or that forgot it, and of liars."""


def test_members_that_can_fetch_no_state_wait_for_an_operator() -> None:
    """Two of three got new disks and speak Java's protocol, which does not carry the state of expired messages."""
    outcome = run(904051)
    assert (outcome.violation, outcome.counts["lost state"]) == (None, 1)


@pytest.mark.slow
def test_no_seed_violates_a_rule() -> None:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        outcomes = pool.map(run, [*FOUND, *SEEDS], chunksize=10)
    failed = [outcome for outcome in outcomes if outcome.violation]
    assert not failed, _report(failed)
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    assert not missing_events(counts)


@pytest.mark.slow
def test_members_that_change_all_the_time_settle() -> None:
    """The first seeds: leaders that nobody told, a restore while no leader knows the majority, and a list of the file
    whose append failed, and that outlived the entry of its index; one of two voters that an operator would restore."""
    found = (7400114, 7300153, 869, 1016, 2469, 42807, 42949)
    outcomes = [run_scenario(make_with_changes(seed)) for seed in (*found, *range(12))]
    assert [outcome for outcome in outcomes if outcome.violation] == []
    assert sum(outcome.counts["resets"] for outcome in outcomes) > 20


def _report(failed: list[Outcome]) -> str:
    """Every failure, the end of the first one's transcript, and the command that repeats it."""
    lines: list[str] = []
    run(failed[0].seed, lines=lines)
    named = [f"seed {outcome.seed}: {outcome.violation}" for outcome in failed]
    again = f"python -m tests.simulation --only {failed[0].seed}"
    return "\n".join([*lines[-200:], *named, f"again: {again}"])


@pytest.mark.slow
def test_logs_whose_old_entries_are_on_disk_only_violate_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core gets most entries later, when its role and log may be others."""
    monkeypatch.setattr(SimStore, "is_recent", lambda _, index: index % 4 == 0)
    outcomes = [run(seed) for seed in range(500, 508)]
    assert [outcome.violation for outcome in outcomes if outcome.violation is not None] == []
    assert sum(outcome.counts["loads"] for outcome in outcomes) > 100


def test_a_seed_is_deterministic_across_processes() -> None:
    """Strings hash differently in every process; nothing may depend on the hashes."""
    code = (
        "from tests.simulation.run import run\n"
        "for seed in range(8):\n"
        "    lines = []\n"
        "    print(seed, run(seed, lines=lines).steps)\n"
        "    print(*lines, sep='\\n')"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        assert len(done.stdout) > 100_000
        digests.add(hashlib.sha256(done.stdout).hexdigest())
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [*mutations.MUTANTS, *membership_mutations.MUTANTS, *disk_mutations.MUTANTS],
    ids=lambda mutant: mutant.__name__,
)
def test_a_broken_core_is_caught(mutant: type[mutations.Mutant]) -> None:
    seeds = range(mutant.first_seed, mutant.first_seed + MUTANT_SEEDS)
    found = (mutations.run_mutant(mutant, seed).violation or "" for seed in seeds)
    # A core that raises an exception is broken in another way than intended.
    assert any(text and "raised" not in text and mutant.caught_by in text for text in found)
