"""What goes wrong, drawn from the kinds of a scenario, and how all of it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.clients import Client
from tests.simulation.scenario import Network

if TYPE_CHECKING:
    from tests.simulation.world import SimNode, World

# Where a disk fails or power goes: mostly anywhere, else where it is rare.
OPERATIONS = ("", "", "append", "save_term", "truncate", "truncate", "reset", "reset")


class Faults:
    """Makes one fault about every `fault_pause`. `end` heals the network and the disks and starts every node."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.random = world.random
        self.client = client
        self.kinds: dict[str, Callable[[], None]] = {
            "crash": lambda: self.crash(self.any_node()),
            "crash leader": lambda: self.crash(self.leader()),
            "restart orderly": lambda: self.crash(self.any_node(), is_orderly=True),
            "power cut": lambda: self.cut_power(self.any_node()),
            "power cut of leader": lambda: self.cut_power(self.leader()),
            "isolate": lambda: self.isolate(self.any_node()),
            "isolate leader": lambda: self.isolate(self.leader()),
            "split": self.split,
            "one way": self.cut_one_way,
            "heal": self.heal,
            "pause": lambda: self.pause(self.any_node()),
            "pause leader": lambda: self.pause(self.leader()),
            "transfer": self.transfer,
            "slow disk": self.slow_disk,
            "disk full": self.fill_disk,
            "disk fails": self.break_disk,
            "expire": self.expire,
            "loss": self.lose,
            "long outage": self.long_outage,
            "crash all": self.crash_all,
        }

    def run(self, until: int) -> None:
        """Goes on until that time."""
        world = self.world
        if world.now >= until:
            return
        kind = self.random.choice(world.scenario.faults)
        world.trace("", "fault: %s", kind)
        world.judge.count(f"fault: {kind}")
        self.kinds[kind]()
        world.at(world.now + 1 + self.random.randrange(2 * world.scenario.fault_pause), self.run, until)

    def end(self) -> None:
        world = self.world
        world.trace("", "all faults end")
        self.heal()
        world.network = Network()
        for node in world.nodes:
            node.store.fuse = node.store.full = node.store.broken = 0
            node.fsync = 2
            node.paused_until = 0
            node.start_again()

    # Whom it hits.

    def any_node(self) -> SimNode:
        return self.random.choice(self.world.nodes)

    def leader(self) -> SimNode:
        return self.world.leader or self.any_node()

    def short(self) -> int:
        """A time in which a heartbeat may be missed, or many."""
        return self.random.randrange(1, self.random.choice((2, 10, 20, 60)) * self.world.scenario.tick)

    def long(self) -> int:
        """A time in which others are elected and append, half the time; else a short one."""
        heart_beat = self.world.base_config.heart_beat_time_interval_ms
        return self.short() if self.random.random() < 0.5 else self.random.randrange(3 * heart_beat, 12 * heart_beat)

    # Nodes.

    def crash(self, node: SimNode, is_orderly: bool = False) -> None:
        if node.core is not None:
            self.world.judge.count("restarts in good order" if is_orderly else "crashes")
            node.end("fault", is_orderly)
            self.start_later(node, self.short())

    def start_later(self, node: SimNode, after: int) -> None:
        self.world.at(self.world.now + after, node.start_again)

    def crash_all(self) -> None:
        for node in self.world.nodes:
            self.crash(node)

    def long_outage(self) -> None:
        """A node is down for so long that the others may go far ahead, and let go of what it would need."""
        node = self.any_node()
        if node.core is not None:
            node.end("long outage")
            time = self.world.scenario.faulty_time // self.random.randint(3, 8)
            self.start_later(node, time)
            self.world.at(self.world.now + time * 3 // 4, self.expire, 1.0)

    def cut_power(self, node: SimNode) -> None:
        """The node ends in the middle of one of its next operations on the disk."""
        node.store.fuse_in = self.random.choice(OPERATIONS)
        node.store.fuse = 1 if node.store.fuse_in else self.random.choice((1, 1, 2, 3, 6))
        node.store.is_cut_after = self.random.random() < 0.6

    def pause(self, node: SimNode) -> None:
        """The node stops for a while, as under SIGSTOP; what is sent to it waits."""
        node.paused_until = self.world.now + self.long()

    # The network.

    def isolate(self, node: SimNode) -> None:
        for other in self.world.nodes:
            self.world.cut |= {(node.number, other.number), (other.number, node.number)}
        self.heal_later()

    def split(self) -> None:
        side = {node.number for node in self.world.nodes if self.random.random() < 0.5}
        for a in self.world.nodes:
            for b in self.world.nodes:
                if (a.number in side) != (b.number in side):
                    self.world.cut.add((a.number, b.number))
        self.heal_later()

    def cut_one_way(self) -> None:
        self.world.cut.add((self.any_node().number, self.any_node().number))
        self.heal_later()

    def heal_later(self) -> None:
        self.world.at(self.world.now + self.long(), self.heal)

    def heal(self) -> None:
        self.world.cut.clear()

    def lose(self) -> None:
        """Much is lost for a while."""
        world = self.world
        calm = world.scenario.network
        world.network = replace(calm, loss=0.5)

        def end() -> None:
            if world.network.loss == 0.5:
                world.network = calm

        world.at(world.now + self.short() * 4, end)

    # Disks.

    def slow_disk(self) -> None:
        node = self.any_node()
        node.fsync = self.random.choice((2, 200, 1000, 5000))

    def fill_disk(self) -> None:
        self.any_node().store.full = self.random.randint(1, 4)

    def break_disk(self) -> None:
        store = self.any_node().store
        store.broken = self.random.randint(1, 3)
        store.broken_in = self.random.choice(OPERATIONS)

    def expire(self, share: float | None = None) -> None:
        """Nodes let go of the front of their logs, each of another part of what is committed."""
        for node in self.world.nodes:
            if self.random.random() < 0.7:
                begin, end = node.store.ledger_begin_index, node.store.committed_index
                part = self.random.random() if share is None else share
                if begin >= 0 and end > begin and node.store.expire(begin + int((end - begin) * part)):
                    self.world.judge.count("logs that expired at the front")
                    self.world.trace(node.id, "begins at %s", node.store.ledger_begin_index)

    # The group.

    def transfer(self) -> None:
        node = self.leader()
        if node.core is not None:
            self.client.transfer(node, self.any_node().id)
