"""Faults, drawn from the kinds of a scenario, and their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark_dledger.raft.messages import MembersRequest
from tests.simulation.clients import Client
from tests.simulation.damage_faults import Damage
from tests.simulation.disk import OPERATIONS
from tests.simulation.hostile import Hostile
from tests.simulation.scenario import Network

if TYPE_CHECKING:
    from tests.simulation.disk import SimStore
    from tests.simulation.node import SimNode
    from tests.simulation.world import World


class Faults:
    """Causes a fault about every `fault_pause`. `end` repairs the network and the disks, and starts all nodes."""

    def __init__(self, world: World, client: Client) -> None:
        self.world = world
        self.random = world.random
        self.client = client
        self.backups: dict[str, SimStore] = {}
        self.damage = Damage(self)
        self.kinds: dict[str, Callable[[], None]] = {
            "crash": lambda: self.crash(self.any_node()),
            "crash leader": lambda: self.crash(self.leader()),
            "restart orderly": lambda: self.crash(self.any_node(), is_orderly=True),
            "power cut": lambda: self.cut_power(self.any_node()),
            "power cut of leader": lambda: self.cut_power(self.leader()),
            "isolate": lambda: self.isolate(self.any_node()),
            "isolate leader": lambda: self.isolate(self.leader()),
            "split": self.split,
            "one way": self.block_one_way,
            "heal": self.heal,
            "pause": lambda: self.pause(self.any_node()),
            "pause leader": lambda: self.pause(self.leader()),
            "transfer": self.transfer,
            "slow disk": self.slow_disk,
            "disk full": self.fill_disk,
            "disk fails": self.break_disk,
            "expire": self.expire,
            "replace disk": self.replace_disk,
            "restore": self.restore,
            "loss": self.lose,
            "long outage": self.long_outage,
            "crash all": self.crash_all,
            "strangers": Hostile(world).strangers,
            "forgers": Hostile(world).forgers,
            "wrong peers": self.give_wrong_peers,
            "change members": self.change_members,
            "cut off a change": self.cut_off_change,
            "change on two sides": self.change_on_two_sides,
            "sleep through changes": self.sleep_through_changes,
            "members file fails": self.break_members_file,
            "power cut of members file": lambda: self.cut_power(self.any_node(), "save_members"),
            "disk full in an append": self.fill_disk_in_append,
            "fsync fails": self.break_fsync,
            "clock forward": lambda: self.set_clock(1),
            "clock back": lambda: self.set_clock(-1),
            "flip bits": lambda: self.damage.flip(self.any_node()),
            "power losses": self.lose_power_together,
            "flip a bit of state": self.flip_state,
            "flip bits at rest": lambda: self.damage.flip_at_rest(self.any_node()),
        }

    def run(self, until: int) -> None:
        """Run until that time."""
        world = self.world
        if world.now >= until:
            return
        self.damage.mend()
        kind = self.random.choice(world.scenario.faults)
        world.trace("", "fault: %s", kind)
        world.checker.count(f"fault: {kind}")
        self.kinds[kind]()
        world.at(world.now + 1 + self.random.randrange(2 * world.scenario.fault_pause), self.run, until)

    def end(self) -> None:
        world = self.world
        world.trace("", "all faults end")
        self.heal()
        world.network = Network()
        for node in world.nodes:
            node.store.mend()
            node.fsync = 2
            node.pause(world.now)
            self.correct_peers(node)
            node.restart()
        self.start_members()
        self.damage.mend_until_done()

    def start_members(self) -> None:
        """Start the members that were stopped because an earlier list lacked them."""
        for node in self.world.checker.last_members():
            if node.is_retired:
                node.is_retired = False
                node.restart()

    # Random nodes and times

    def any_node(self) -> SimNode:
        return self.random.choice(self.world.nodes)

    def leader(self) -> SimNode:
        return self.world.leader or self.any_node()

    def short(self) -> int:
        """A time in which one or many heartbeats may be missed."""
        return self.random.randrange(1, self.random.choice((2, 10, 20, 60)) * self.world.scenario.tick)

    def long(self) -> int:
        """Half of the times long enough for an election and appends; else a short time."""
        heart_beat = self.world.base_config.heart_beat_time_interval_ms
        return self.short() if self.random.random() < 0.5 else self.random.randrange(3 * heart_beat, 12 * heart_beat)

    # Nodes

    def crash(self, node: SimNode, is_orderly: bool = False) -> None:
        if node.core is not None:
            self.world.checker.count("orderly restarts" if is_orderly else "crashes")
            node.stop("fault", is_orderly)
            self.restart_later(node, self.short())

    def restart_later(self, node: SimNode, after: int) -> None:
        self.world.at(self.world.now + after, node.restart)

    def crash_all(self) -> None:
        for node in self.world.nodes:
            self.crash(node)

    def long_outage(self) -> None:
        """A node is down so long that entries that it lacks expire on the others."""
        node = self.any_node()
        if node.core is not None:
            node.stop("long outage")
            time = self.world.scenario.faulty_time // self.random.randint(3, 8)
            self.restart_later(node, time)
            self.world.at(self.world.now + time * 3 // 4, self.expire, 1.0)

    def give_wrong_peers(self) -> None:
        """Some nodes are restarted with too few members, which are a majority of their own."""
        wrong = self.world.initial[:3]
        for node in self.random.sample(self.world.nodes[:3], min(2, len(self.world.nodes))):
            if node.core is not None and len(self.world.nodes) > 3:
                node.stop("wrong peers")
                node.peers = wrong
                node.start()
                self.world.at(self.world.now + self.long(), self.correct_peers, node)

    def correct_peers(self, node: SimNode) -> None:
        if not node.is_spare and node.peers != self.world.initial:
            if node.core is not None:
                node.stop("its peers are corrected")
            # With a new disk it must join: --change-members would say that the group may go on without what it had.
            node.peers, node.changes_members = self.world.initial, node.had_committed < 0
            node.joins = node.joins or not node.changes_members
            node.restart()
            node.changes_members = False

    def cut_power(self, node: SimNode, operation: str | None = None) -> None:
        """The node loses power in one of its next disk operations."""
        if self.may_lose(node):
            node.store.cut_power(self.random, operation)

    def may_lose(self, node: SimNode) -> bool:
        """Whether the group keeps what it acknowledged if a node loses what is not on its disk."""
        scenario = self.world.scenario
        others = [other for other in self.world.nodes if other is not node]
        return not scenario.is_on_disk or scenario.is_sync or all(map(self.is_level, others))

    def lose_power_together(self) -> None:
        """Some nodes, or all, lose power at once."""
        for node in self.random.sample(self.world.nodes, self.random.randint(2, len(self.world.nodes))):
            if node.core is not None:
                node.store.lose_power()

    def flip_state(self) -> None:
        """Flip a bit of a small file of a node while it is stopped. It is a lost disk if the node does not start."""
        node = self.any_node()
        others = [other for other in self.world.nodes if other is not node]
        if node.core is not None and all(map(self.is_level, others)) and node.store.power_cut_in == 0:
            node.stop("fault", is_orderly=self.random.random() < 0.5)
            what = node.store.flip_bit_of_state(self.random)
            self.world.trace(node.id, "%s", what)
            self.world.checker.count("flipped bits of state files")
            self.restart_later(node, self.short())

    def pause(self, node: SimNode) -> None:
        """The node is stopped for a while, as with SIGSTOP or while its core waits for a disk; messages to it wait."""
        node.pause(self.world.now + self.long())

    # Network

    def isolate(self, node: SimNode) -> None:
        for other in self.world.nodes:
            self.world.blocked |= {(node.number, other.number), (other.number, node.number)}
        self.heal_later()

    def split(self) -> None:
        self._separate([node for node in self.world.nodes if self.random.random() < 0.5])
        self.heal_later()

    def _separate(self, nodes: Sequence[SimNode]) -> None:
        """Block these nodes from all others."""
        side = {node.number for node in nodes}
        for a in self.world.nodes:
            for b in self.world.nodes:
                if (a.number in side) != (b.number in side):
                    self.world.blocked.add((a.number, b.number))

    def block_one_way(self) -> None:
        self.world.blocked.add((self.any_node().number, self.any_node().number))
        self.heal_later()

    def heal_later(self) -> None:
        self.world.at(self.world.now + self.long(), self.heal)

    def heal(self) -> None:
        self.world.blocked.clear()

    def lose(self) -> None:
        """Lose half of all messages for a while."""
        world = self.world
        normal = world.scenario.network
        world.network = replace(normal, loss=0.5)

        def end() -> None:
            if world.network.loss == 0.5:
                world.network = normal

        world.at(world.now + self.short() * 4, end)

    # Disks

    def slow_disk(self) -> None:
        node = self.any_node()
        node.fsync = self.random.choice((2, 200, 1000, 5000))

    def fill_disk(self) -> None:
        self.any_node().store.full = self.random.randint(1, 4)

    def break_disk(self) -> None:
        store = self.any_node().store
        store.successes, store.failures = 0, self.random.randint(1, 3)
        store.failing_operation = self.random.choice(OPERATIONS)

    def break_members_file(self) -> None:
        store = self.leader().store
        store.successes, store.failures = self.random.choice((0, 1)), self.random.randint(1, 3)
        store.failing_operation = "save_members"

    def fill_disk_in_append(self) -> None:
        self.leader().store.fill(self.random)

    def break_fsync(self) -> None:
        self.any_node().store.is_flush_failing = True

    def set_clock(self, direction: int) -> None:
        """A node's clock jumps, as of a virtual machine that was suspended or moved."""
        heart_beat = self.world.base_config.heart_beat_time_interval_ms
        node = self.any_node() if self.random.random() < 0.5 else self.leader()
        node.clock_offset += direction * self.random.choice((heart_beat, 4 * heart_beat, 15 * heart_beat))

    def replace_disk(self, tries: int = 40) -> None:
        """A follower loses its disk when all others have all entries and their state, as docs/operations.md says."""
        world, leader = self.world, self.world.leader
        node = self.any_node()
        others = [other for other in world.checker.last_members() if other is not node]
        if leader in others and self._keeps_majority(node) and all(self.is_level(other) for other in others):
            world.checker.count("replaced disks")
            node.replace_disk()
            self.restart_later(node, self.short())
        elif tries and world.now < world.scenario.faulty_time:
            world.at(world.now + world.scenario.tick, self.replace_disk, tries - 1)

    def restore(self) -> None:
        """Back up a node, or replace its disk by its last backup, as docs/operations.md says.

        All others run without a problem, tell their terms, and none of them is a restored one that waits for its vote.
        A majority, which the leader knows, has all of its entries, or the other one of two. With messages, all others
        have the state of expired ones: the restored member needs it if its backup ends before the leader's log begins.
        """
        world, node = self.world, self.any_node()
        others = [other for other in world.checker.last_members() if other is not node]
        planned = world.checker.members_of(self.leader().store)
        voters = planned.voters.keys() - {planned.leaving}
        able = [other for other in others if other.id in voters and self._votes(other)]
        majority = world.leader is not None and len(able) > len(voters) // 2 and self._keeps_majority(node)
        majority = majority or (world.scenario.is_pair_of_ours and len(able) == 1)
        saved = self.backups.get(node.id)
        if saved is not None and world.checker.members_of(saved).addresses.keys() != planned.addresses.keys():
            saved = None  # the command refuses a backup of other members
        if saved is None or self.random.random() < 0.4:
            if node.store.committed_index >= 0 and not node.store.damage:
                self.backups[node.id] = node.store.backup()
        elif majority and all(map(self.is_level if world.scenario.putters else self._may_vote, others)):
            world.checker.count("restored backups")
            node.restore(saved, max(other.store.curr_term for other in others) + 1)
            self.restart_later(node, self.short())

    def _keeps_majority(self, node: SimNode) -> bool:
        """Whether the others can elect a leader while that member has no vote, as one with a new disk at first.

        They are a majority of the voters, and of those after the change under way. `dledger restore` checks it, too.
        """
        if not self.world.scenario.spares:
            return True
        lists = self.world.checker.last_list(), self.world.checker.members_of(self.leader().store)
        voters = [each for found in lists for each in (found.voters.keys(), found.addresses.keys() - {found.leaving})]
        return all(2 * len(each - {node.id}) > len(each) for each in voters)

    def _may_vote(self, node: SimNode) -> bool:
        return node.core is not None and node.can_vote

    def is_level(self, node: SimNode) -> bool:
        return node.is_level and node.store.power_cut_in == 0 and not node.may_have_lost_disk

    def _votes(self, node: SimNode) -> bool:
        return node.votes

    def expire(self, share: float | None = None) -> None:
        """Expire committed entries of some nodes, of each another part."""
        for node in self.world.nodes:
            # Without its application, a stopped node would expire what it needs.
            is_ready = node.core is not None or not self.world.scenario.putters
            if self.random.random() < 0.7 and is_ready:
                begin, end = node.store.ledger_begin_index, node.store.committed_index
                part = self.random.random() if share is None else share
                first = min(begin + int((end - begin) * part), self.damage.first_needed())
                if begin >= 0 and end > begin and node.store.expire(first):
                    self.world.checker.count("logs with expired entries")
                    self.world.trace(node.id, "now begins at %s", node.store.ledger_begin_index)

    # Group

    def cut_off_change(self) -> None:
        """Isolate the leader while it changes the members, and let the next one change them, too."""
        world, leader = self.world, self.leader()
        self.change_members()
        world.at(world.now + self.random.randrange(1, 12 * world.scenario.tick), self.isolate, leader)
        for _ in range(3):
            world.at(world.now + self.long(), self.change_members)

    def sleep_through_changes(self) -> None:
        """A node is down while others are replaced, one after the other; it starts with what it had."""
        world, node = self.world, self.any_node()
        if node.core is not None:
            node.stop("sleeps through changes")
            pause = 2 * world.base_config.heart_beat_time_interval_ms
            count = self.random.randint(2, 8)
            for number in range(count):
                world.at(world.now + number * pause, self.change_members, "replace")
            self.restart_later(node, count * pause)

    def change_on_two_sides(self) -> None:
        """Let an isolated leader remove a member, and then the next leader, which some of the others do not reach."""
        leader = self.world.leader
        if leader is not None:
            self._separate([leader])
            self.change_members("remove")
            self._change_other_side(leader, 200)

    def _change_other_side(self, former: SimNode, tries: int) -> None:
        world, leader = self.world, self.world.leader
        if leader not in (None, former):
            others = [node for node in world.nodes if node not in (leader, former)]
            self.heal()
            self._separate([former, *self.random.sample(others, len(others) // 2)])
            # Until the first heartbeats are answered, the leader refuses changes.
            for wait in range(6):
                world.at(world.now + wait * world.scenario.tick, self.change_members, "remove")
            world.at(world.now + 12 * world.base_config.heart_beat_time_interval_ms, self.heal)
        elif tries:
            world.at(world.now + max(1, world.scenario.tick // 4), self._change_other_side, former, tries - 1)
        else:
            self.heal()

    def change_members(self, action: str = "") -> None:
        """Ask the leader to add, remove or replace a member. Up to two voters are never removed."""
        world, node, random = self.world, self.leader(), self.random
        found = world.checker.members_of(node.store)
        voters, learners = list(found.voters), list(found.learners)
        # A leader that was removed before it passed its cluster id on returns only with an empty disk.
        ids = ("", node.store.cluster_id)
        spare = [each.id for each in world.nodes if each.id not in found.addresses and each.store.cluster_id in ids]
        new = random.choice(spare) if spare else "n0"
        gone = random.choice(voters)
        # Nobody removes a member while another one is being repaired.
        are_up = all(world.by_id[each].core is not None and self._votes(world.by_id[each]) for each in voters)
        actions = ["add", "replace", "replace", *(["remove"] * 2 if len(voters) > 2 and are_up else [])]
        action = action if action in actions else random.choice(actions)
        request = MembersRequest(group="g", remote_id=node.id, action=action)
        if learners and random.random() < 0.3:
            request.action, gone = "remove", learners[0]
        request.member_id = new if request.action == "add" else gone
        request.new_id, request.address = new, world.addresses[new]
        if node.core is not None:
            if request.action != "remove":
                world.by_id[new].is_retired = False
                world.by_id[new].restart()
            world.trace("", "asks %s to %s %s with %s", node.id, request.action, request.member_id, new)
            world.send_client_request(node, request, self.client.other_response)

    def transfer(self) -> None:
        node = self.leader()
        if node.core is not None:
            self.client.transfer(node, self.any_node().id)
