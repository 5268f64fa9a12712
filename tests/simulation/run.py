"""One seed from its first election to a group that is well again."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pyspark_dledger.raft.core import Core
from tests.simulation.clients import Client
from tests.simulation.faults import Faults
from tests.simulation.judge import Violation
from tests.simulation.putters import Putter
from tests.simulation.scenario import Scenario, make
from tests.simulation.world import World


class Outcome(NamedTuple):
    """What became of a seed: what was violated, None where nothing was, and what happened how often."""

    seed: int
    violation: str | None
    counts: Counter[str]
    steps: int
    time: int


def run(seed: int, core_class: type[Core] = Core, lines: list[str] | None = None) -> Outcome:
    """Plays a seed; with `lines` everything that happens is written there."""
    return play(make(seed), core_class, lines)


def play(scenario: Scenario, core_class: type[Core] = Core, lines: list[str] | None = None) -> Outcome:
    world = World(scenario, core_class, lines)
    try:
        _play(world)
    except Violation as violation:
        world.trace("", "VIOLATION: %s", violation)
        return Outcome(scenario.seed, str(violation), world.judge.counts, world.steps, world.now)
    return Outcome(scenario.seed, None, world.judge.counts, world.steps, world.now)


def _play(world: World) -> None:
    scenario = world.scenario
    clients = [Client(world, number) for number in range(scenario.clients)]
    putters = [Putter(world, number) for number in range(scenario.putters)]
    faults = Faults(world, clients[0])
    for node in world.nodes:
        node.start()
    for client in (*clients, *putters):
        world.at(scenario.tick, client.run, scenario.faulty_time)
    if scenario.faults:
        world.at(scenario.fault_pause, faults.run, scenario.faulty_time)
    world.run_until(scenario.faulty_time)
    _settle(world, faults, clients[0], putters)


def _settle(world: World, faults: Faults, client: Client, putters: list[Putter]) -> None:
    """Liveness: without faults appends and puts are acknowledged and all logs end alike within bounded time."""
    scenario = world.scenario
    world.cut.clear()
    faults.end()
    limit = world.now + scenario.calm_time
    acknowledged = len(world.judge.acknowledged)
    pause = scenario.client_pause
    while len(world.judge.acknowledged) == acknowledged or any(putter.open for putter in putters):
        if world.now >= limit:
            raise Violation(f"not all was acknowledged within {scenario.calm_time} ms without faults")
        leader = world.leader
        if leader is not None:
            if len(world.judge.acknowledged) == acknowledged:
                client.append(leader, 1)
            for putter in putters:
                putter.settle(leader)
        # Ever more rarely: what was left behind has to be replicated before it.
        world.run(pause)
        pause *= 2
    while not all(_is_level(world, node.store.ledger_end_index, node.store.committed_index) for node in world.nodes):
        if world.now >= limit:
            ends = ", ".join(f"{n.id} {n.store.committed_index} of {n.store.ledger_end_index}" for n in world.nodes)
            raise Violation(f"the logs did not become alike within {scenario.calm_time} ms without faults: {ends}")
        world.run(scenario.tick)
    world.judge.check_alike()


def _is_level(world: World, end: int, committed: int) -> bool:
    return end == committed == len(world.judge.history) - 1
