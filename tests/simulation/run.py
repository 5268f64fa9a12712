"""One seed: a phase with faults, then one without, in which the group must recover."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import NamedTuple

from pyspark_dledger.raft.core import Core
from tests.simulation.checker import Violation
from tests.simulation.clients import Client
from tests.simulation.faults import Faults
from tests.simulation.node import SimNode
from tests.simulation.putters import Putter
from tests.simulation.reads import check_answered
from tests.simulation.scenario import HOSTILE, Scenario, make, make_on_disk
from tests.simulation.world import World


class Outcome(NamedTuple):
    """The result of a seed: the violation, or None, and counts of events."""

    seed: int
    violation: str | None
    counts: Counter[str]
    steps: int
    time: int


def run(seed: int, core_class: type[Core] = Core, lines: list[str] | None = None) -> Outcome:
    """Run a seed; with `lines` its transcript is added to it."""
    return run_scenario(make(seed), core_class, lines)


def run_on_disk(seed: int, core_class: type[Core] = Core, lines: list[str] | None = None) -> Outcome:
    """Run a seed with the real store, on disks that lose power."""
    return run_scenario(make_on_disk(seed), core_class, lines)


def run_scenario(scenario: Scenario, core_class: type[Core] = Core, lines: list[str] | None = None) -> Outcome:
    world = World(scenario, core_class, lines)
    try:
        with world.disks or nullcontext():
            _run(world)
    except Violation as violation:
        world.trace("", "VIOLATION: %s", violation)
        return Outcome(scenario.seed, str(violation), world.checker.counts, world.steps, world.now)
    return Outcome(scenario.seed, None, world.checker.counts, world.steps, world.now)


def _run(world: World) -> None:
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
    """Liveness: without faults, appends and puts are acknowledged and all logs become identical in bounded time."""
    scenario = world.scenario
    world.blocked.clear()
    faults.end()
    limit = world.now + scenario.recovery_time
    acknowledged = len(world.checker.acknowledged)
    pause = scenario.client_pause
    while len(world.checker.acknowledged) == acknowledged or any(putter.open for putter in putters):
        if world.now >= limit:
            if _needs_operator(world):
                world.checker.counts["lost state"] += 1
                return
            if all(node.needs_summary for node in world.checker.last_members()):
                raise Violation("no member has the state of expired messages: each waits for another one's")
            raise Violation(
                f"not all appends and puts were acknowledged within {scenario.recovery_time} ms without faults"
            )
        leader = world.leader
        if leader is not None:
            if len(world.checker.acknowledged) == acknowledged:
                client.append(leader, 1)
            for putter in putters:
                putter.settle(leader)
        # With growing pauses: older entries have to be replicated first.
        world.run(pause)
        pause = min(2 * pause, scenario.recovery_time // 8)
    while not all(
        _is_complete(world, node.store.ledger_end_index, node.store.committed_index)
        for node in world.checker.last_members()
    ):
        faults.start_members()
        if world.now >= limit:
            ends = ", ".join(f"{n.id} {n.store.committed_index} of {n.store.ledger_end_index}" for n in world.nodes)
            raise Violation(
                f"the logs did not become identical within {scenario.recovery_time} ms without faults: {ends}"
            )
        world.run(scenario.tick)
    world.checker.check_identical_logs()
    check_answered(world)
    world.checker.check_terms(is_hostile=bool(set(scenario.faults) & set(HOSTILE)))
    while any(node.store.damage or node.refuses for node in world.checker.last_members()):
        if world.now >= limit:
            found = {node.id: sorted(node.store.damage) for node in world.nodes}
            raise Violation(f"damage was not repaired within {scenario.recovery_time} ms without faults: {found}")
        world.run(scenario.tick)
    while any(_can_fetch_summary(world, node) for node in world.checker.last_members()):
        if world.now >= limit:
            raise Violation(f"a member got no summary within {scenario.recovery_time} ms without faults")
        world.run(scenario.tick)


def _can_fetch_summary(world: World, node: SimNode) -> bool:
    """Whether a node needs a summary, and another one has it."""
    peers = [other for other in world.nodes if other is not node and not world.is_java(node, other)]
    return node.needs_summary and not all(other.needs_summary for other in peers)


def _needs_operator(world: World) -> bool:
    """Whether all who could win an election need a summary that no link carries: links as of Java carry none."""
    if not world.scenario.java_pairs:
        return False
    nodes = world.checker.last_members()
    stuck = [
        node
        for node in nodes
        if node.needs_summary and all(world.is_java(node, other) for other in nodes if other is not node)
    ]
    ends = {node.id: (node.store.ledger_end_term, node.store.ledger_end_index) for node in nodes}
    winners = [node for node in nodes if 2 * sum(end <= ends[node.id] for end in ends.values()) > len(nodes)]
    return bool(winners) and all(node in stuck for node in winners)


def _is_complete(world: World, end: int, committed: int) -> bool:
    return end == committed == len(world.checker.history) - 1
