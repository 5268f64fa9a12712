"""Faults of the processes, links and disks of a group.

What they destroy never includes the last intact copy of an entry. Disks are replaced and bits are flipped only in one
member at a time, and only if all others have every entry. Earlier damage must be repaired first.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.log.verify.findings import INFO
from pyspark_dledger.raft.client import Client, MemberStatus
from tests.chaos.damage import KINDS, Damage, flip, units
from tests.chaos.group import GROUP, Group

# A group without faults has hung if it does nothing for so long. A busy machine needs seconds.
HUNG_SECONDS = 300.0


class Faults:
    """Each method of `choose` causes one fault; `heal` ends all.

    ``counts`` has the faults, and what became of damage. ``violations``: what members must not do.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rng = random.Random(0)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._damage: Damage | None = None

    def begin_round(self, seed: str) -> None:
        """Repeat the choices of that seed."""
        self.rng = random.Random(seed)

    def choose(self) -> Callable[[], None]:
        kills = (self.kill_leader, self.kill_one, self.kill_two, self.kill_all)
        restarts = (self.restart_all, self.restart_in_turn)
        partitions = (self.disconnect, self.drop_all, self.drop_incoming, self.drop_outgoing)
        disks = (self.replace_disk, *[self.flip_stopped] * 4, *[self.flip_running] * 3)
        return self.rng.choice((*kills, *restarts, self.pause, *partitions, self.transfer, *disks))

    def leader(self) -> str:
        """The leader if one is known, else any node."""
        try:
            with self.connect() as client:
                return client.metadata().leader_id or self.any()
        except DLedgerError:
            return self.any()

    def connect(self, timeout_ms: int = 1_000, max_retries: int = 0) -> Client:
        return dl.connect(group=GROUP, peers=self.group.peers, timeout_ms=timeout_ms, max_retries=max_retries)

    def any(self) -> str:
        return self.rng.choice(self.group.ids)

    # Processes

    def kill_leader(self) -> None:
        self.group.kill(self.leader())

    def kill_one(self) -> None:
        self.group.kill(self.any())

    def kill_two(self) -> None:
        for node in self.rng.sample(self.group.ids, 2):
            self.group.kill(node)

    def kill_all(self) -> None:
        for node in list(self.group.ids):
            self.group.kill(node)

    def restart_all(self) -> None:
        self.group.terminate(*self.group.ids)

    def restart_in_turn(self) -> None:
        for node in self.rng.sample(self.group.ids, len(self.group.ids)):
            self.group.terminate(node)
            self.group.start(node)
            time.sleep(self.rng.choice((0.0, 0.5, 2.0)))

    def pause(self) -> None:
        self.group.pause(self.rng.choice((self.leader(), self.any())))

    def transfer(self) -> None:
        with suppress(DLedgerError), self.connect() as client:
            client.transfer(self.any())

    # Links

    def disconnect(self) -> None:
        self.group.network.isolate(self.leader(), "closed")

    def drop_all(self) -> None:
        self.group.network.isolate(self.rng.choice((self.leader(), self.any())), "stopped")

    def drop_incoming(self) -> None:
        self.group.network.isolate(self.leader(), "stopped", "in")

    def drop_outgoing(self) -> None:
        self.group.network.isolate(self.leader(), "stopped", "out")

    # Disks

    def replace_disk(self) -> None:
        """A follower loses its disk, and begins empty as docs/operations.md says; `heal` starts it."""
        node = self._kill_spare()
        if node is not None:
            self.group.lose_disk(node)

    def flip_stopped(self) -> None:
        """A bit of a follower that is down; `dledger verify` must name it, and nothing else.

        The last entry of a log may be one that was truncated: what is wrong with it is only an info.
        """
        node, kind = self._kill_spare(), self.rng.choice(KINDS)
        if node is None or not units(self.group.store(node)):
            return
        root, store = self.group.root(node), self.group.store(node)
        before = dl.open_log(root).findings()
        damage = self._flipped(node, flip(node, store, kind, 2**62, self.rng))
        if damage is None:
            return
        new = [finding for finding in dl.open_log(root).findings() if finding not in before]
        is_named = any(map(damage.is_named, new))
        others = [finding for finding in new if finding.severity != INFO and not damage.is_named(finding)]
        if kind != "checkpoint" and (others or not is_named):
            self.violations.append(f"verify of {damage}: {new or 'nothing'}")
        self.counts["named by verify"] += is_named

    def flip_running(self) -> None:
        """A bit of a committed entry of a running member, which has to find and repair it."""
        statuses = self._statuses() if self.settle() else None
        last = min((status.committed_index for status in statuses or ()), default=-1)
        node = self.any()
        self._flipped(node, flip(node, self.group.store(node), self.rng.choice(KINDS[:3]), last, self.rng))

    def _flipped(self, node: str, damage: Damage | None) -> Damage | None:
        self._damage = damage
        if damage is not None:
            state = "running" if node in self.group.processes else "stopped"
            self.counts[f"flip {damage.kind} {state}"] += 1
        return damage

    def _kill_spare(self) -> str | None:
        """Kill a follower, and wait until all others have every entry; None if that cannot be said."""
        if not self.settle():
            return None
        leader = self.leader()
        node = self.rng.choice([node for node in self.group.ids if node != leader])
        self.group.kill(node)
        return node if self._await_copies(node) else None

    def _await_copies(self, node: str) -> bool:
        """Wait until all other members have what their leader has. `node` is down, so they keep it from then on."""
        self.group.wake()
        deadline = time.monotonic() + HUNG_SECONDS
        others = [other for other in self.group.ids if other != node]
        while time.monotonic() < deadline:
            leader = self.leader()
            # The leader first: its log grows meanwhile.
            found = self._statuses(sorted(others, key=lambda other: other != leader))
            if found is not None:
                first = found[0]
                is_led = all((each.leader_id, each.term) == (first.node_id, first.term) for each in found)
                if is_led and min(each.end_index for each in found) >= first.end_index:
                    return True
            time.sleep(0.1)
        self.violations.append(f"{others} did not reach the same end within {HUNG_SECONDS:.0f} s without {node}")
        return False

    def _statuses(self, nodes: list[str] | None = None) -> list[MemberStatus] | None:
        try:
            with self.connect() as client:
                return [client.status(node) for node in nodes or self.group.ids]
        except DLedgerError:
            return None

    # Ending faults

    def heal(self) -> None:
        self.group.network.heal()
        self.group.resume()
        self.group.start_all()

    def tend(self) -> None:
        """Do what an operator does: a member that refuses its damaged store begins with an empty disk."""
        for node in self.group.crashed():
            error = self.group.output(node).strip().rpartition("\n")[2]
            damage = self._damage
            if damage is None or damage.node != node or not re.search("copy|replace this member", error):
                self.violations.append(f"{node} ended by itself: {error}")
                self.group.kill(node)
                return
            self.counts[f"refused {damage.kind}"] += 1
            self.group.kill(node)
            if self._await_copies(node):
                self.group.lose_disk(node)
                self.group.start(node)
                self._damage = None

    def settle(self) -> bool:
        """Wait until earlier damage is repaired, and no member is behind: one with an empty disk does not vote."""
        self.group.wake()
        deadline, target = time.monotonic() + HUNG_SECONDS, 2**62
        while not self.violations:
            self.tend()
            is_settled = self.is_settled()
            if self._damage is not None and (self._damage.is_repaired or self._damage.node not in self.group.ids):
                self.counts[f"repaired {self._damage.kind}"] += 1
                self._damage = None
            found = self._statuses()
            committed = [status.committed_index for status in found or () if not status.problem]
            if is_settled and self._damage is None and len(committed) == len(self.group.ids):
                if min(committed) >= target:
                    return True
                target = min(target, max(committed))
            if time.monotonic() > deadline:
                text = [status.problem for status in found or ()]
                self.violations.append(
                    f"not settled within {HUNG_SECONDS:.0f} s: {self._damage}, {self.group.ids}, {text}"
                )
            time.sleep(0.1)
        return False

    def is_settled(self) -> bool:
        """Whether the members are known, and do not change."""
        return True
