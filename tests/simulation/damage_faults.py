"""Flips bits on the disks of nodes, and mends what the nodes cannot: as an operator does, by docs/incident.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.node import SimNode

# Longer than any log.
END = 1 << 60


class Damage:
    """One node at a time is damaged. Every committed entry stays intact and durable on another member."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.world = faults.world
        self.random = faults.random

    # Flipping

    def flip(self, node: SimNode) -> None:
        """Flip bits of entries that an earlier process wrote: later ones are read from memory."""
        store = node.store
        end = min(store.started_end, store.ledger_end_index)
        begin = max(store.ledger_begin_index, 0)
        if end < begin or not self._may_damage(node):
            return
        for _ in range(self.random.choice((1, 1, 2, 5))):
            index = self.random.choice((end, self.random.randint(begin, end)))
            # A real follower cannot repair an entry that it does not know to be committed next to a damaged one.
            near = {index - 1, index, index + 1} if self.world.scenario.is_on_disk else {index}
            if near.isdisjoint(store.damage) and self._is_elsewhere(node, index):
                what = store.flip_bit(self.random, index)
                if what is not None:
                    self.world.checker.count(f"flipped bits of a {what}")
                    self.world.trace(node.id, "a bit of the %s of entry %s flips", what, index)

    def flip_at_rest(self, node: SimNode, tries: int = 40) -> None:
        """Flip bits while the node is stopped; on disk when the group can do without it."""
        world = self.world
        if node.core is None or not self._may_damage(node) or world.now >= world.scenario.faulty_time:
            if world.scenario.is_on_disk and tries:
                world.at(world.now + world.scenario.tick, self.flip_at_rest, node, tries - 1)
            return
        node.stop("fault")
        node.store.started_end = node.store.ledger_end_index
        self.flip(node)
        self.faults.restart_later(node, self.faults.short())

    def _may_damage(self, node: SimNode) -> bool:
        """Whether the group can do without this node. On disk, nothing that the others need is lost before."""
        others = [other for other in self.world.nodes if other is not node]
        if not self.world.scenario.is_on_disk:
            return not any(other.refuses or other.store.damage or other.may_have_lost_disk for other in others)
        if node.store.power_cut_in:
            return False
        is_able = _can_elect if self.world.scenario.is_sync else self.faults.is_level
        return all(map(is_able, others))

    def _is_elsewhere(self, node: SimNode, index: int) -> bool:
        """Whether another member can give the entry, or nobody needs it."""
        return index >= len(self.world.checker.history) or any(
            other.store.ledger_begin_index <= index <= other.store.durable_index and index not in other.store.damage
            for other in self.world.nodes
            if other is not node and self.world.checker.has_committed(other.store, index)
        )

    def first_needed(self) -> int:
        """The first entry that another member may need intact."""
        return min((min(node.store.damage) for node in self.world.nodes if node.store.damage), default=END)

    # Mending

    def mend(self) -> None:
        """Delete wrong indexes, and replace the disk of a node that does not start."""
        for node in self.world.nodes:
            if node.refuses:
                others = [other for other in self.world.nodes if other is not node]
                if all(map(self.faults.is_level, others)):
                    self.world.checker.count("damaged disks replaced")
                    node.replace_disk()
                    node.start()
            elif node.core is not None and node.store.has_damaged_unit:
                self.world.checker.count("wrong indexes deleted")
                node.stop("its index is deleted")
                node.store.rebuild_index()
                node.start()

    def mend_until_done(self) -> None:
        self.mend()
        if any(node.refuses or node.store.damage for node in self.world.nodes):
            self.world.at(self.world.now + 5 * self.world.scenario.tick, self.mend_until_done)


def _can_elect(node: SimNode) -> bool:
    return node.core is not None and node.votes and not (node.store.damage or node.may_have_lost_disk)
