"""Groups with the real store on disks that lose power, and broken stores that this must detect."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation import mutations, power_mutations
from tests.simulation.clients import Client
from tests.simulation.run import run_on_disk
from tests.simulation.scenario import Scenario
from tests.simulation.world import World
from tests.support.long_runs import some

COUNT = 16
COMMON = ("appends acknowledged", "crashes", "elections won", "power losses that lost some entries", "resets")


@pytest.mark.slow
def test_no_seed_on_disk_violates_a_rule() -> None:
    counts: Counter[str] = Counter()
    for seed in some(range(500), COUNT):
        outcome = run_on_disk(seed)
        assert not outcome.violation, f"python -m tests.simulation --on-disk --only {seed}: {outcome.violation}"
        counts.update(outcome.counts)
    assert all(counts[event] for event in COMMON)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", power_mutations.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_store_is_caught(mutant: type[mutations.Mutant]) -> None:
    first = mutant.first_seed or 20
    found = (mutations.run_mutant(mutant, seed).violation or "" for seed in range(first, first + 60))
    assert any(text and "raised" not in text and mutant.caught_by in text for text in found)


def test_a_member_with_a_new_disk_that_loses_power_when_it_has_joined_keeps_its_log_or_joins_again() -> None:
    """With flush=async, its log would else be lost and its vote would count."""
    world = World(Scenario(seed=1, is_on_disk=True, data_file_size=16 * 1024))
    assert world.disks is not None
    with world.disks:
        for node in world.nodes:
            node.start()
        assert world.run_until(60_000, lambda: world.leader is not None)
        client, leader = Client(world, 0), world.leader
        assert leader is not None
        for _ in range(5):
            client.append(leader, 3)
            world.run(1000)
        node = next(each for each in world.nodes if each is not leader)
        node.replace_disk()
        node.joins = True
        node.start()
        assert not node.votes
        had = node.had_committed
        assert had > 0
        client.append(leader, 1)
        assert world.run_until(world.now + 60_000, lambda: node.votes)
        world.disks.random.random = lambda: 0.95  # type: ignore[method-assign]  # what is not synced is lost
        node.store.lose_power()
        node.lose_power("an operation")
        node.start()
        assert not node.votes or node.store.ledger_end_index >= had
