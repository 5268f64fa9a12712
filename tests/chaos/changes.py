"""Faults, and changes of the members meanwhile: an operator who adds, removes and replaces members all the time."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.raft.client import Client
from tests.chaos.faults import Faults
from tests.chaos.group import Group

MIN_MEMBERS, MAX_MEMBERS = 3, 5
# A client that knows only former members first learns the others from them, and may be slow.
_PATIENT_MS = 5_000


class Changes(Faults):
    """Four of five rounds change the members, most of them under one more fault."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._wakes_in = 0
        self._last_joining = ""
        # The index of the list that the operator knows: a former leader may still tell an older one.
        self._known = -1

    def choose(self) -> Callable[[], None]:
        changes = (self.add, self.remove, *[self.replace] * 4, self.fall_asleep)
        disks = (self.replace_disk, self.restore, self.restore)
        return self.rng.choice((*changes, *changes, *disks, *disks, super().choose()))

    # Changes

    def add(self) -> None:
        if len(self.group.ids) < MAX_MEMBERS and (node := self._joining()) is not None:
            self._change(lambda client: client.add_member(node, self.group.network.addresses[node]))

    def remove(self) -> None:
        if len(self.group.ids) > MIN_MEMBERS:
            node = self.any()
            self._change(lambda client: client.remove_member(node))

    def replace(self) -> None:
        if (node := self._joining()) is not None:
            gone = self.any()
            self._change(lambda client: client.replace_member(gone, node, self.group.network.addresses[node]))

    def fall_asleep(self) -> None:
        """A member is down for some rounds, and starts with the peers that it had.

        All others vote: a member that was restored does not before it has an entry of a later term.
        """
        if self.group.asleep is None and self.settle():
            self.group.asleep, self._wakes_in = self.any(), self.rng.randint(2, 8)
            self.group.kill(self.group.asleep)

    def restore(self) -> None:
        """A member is restored from a backup of any; what was appended since comes from the others."""
        if not self.settle():
            return
        source = self.any()
        if not self.group.back_up(source):
            self.violations.append(f"the backup of {source} failed")
            return
        time.sleep(self.rng.choice((0.0, 1.0)))
        node = self._kill_spare()
        if node is not None:
            is_restored = self.group.restore(node, source)
            self.counts["restored" if is_restored else "restore rejected"] += 1

    def _joining(self) -> str | None:
        """A node with an empty disk that may become a member; None if all are members, or run still."""
        spares = self.group.spares
        if not spares:
            return None
        self._last_joining = self.rng.choice(spares)
        self.group.join(self._last_joining)
        return self._last_joining

    def _change(self, ask: Callable[[Client], object]) -> None:
        """Ask the leader, and let another fault meet what follows."""
        try:
            with self.connect(_PATIENT_MS, max_retries=2) as client:
                ask(client)
            self.counts["changes"] += 1
        except DLedgerError:
            self.counts["changes rejected"] += 1
        time.sleep(self.rng.choice((0.0, 0.05, 0.3, 1.0)))
        kills = (self.kill_leader, self.kill_one, self.kill_all, self.kill_joining)
        partitions = (self.disconnect, self.drop_all, self.drop_incoming, self.drop_outgoing)
        fault = self.rng.choice((*kills, *partitions, self.pause, self.transfer))
        self.counts[f"{fault.__name__} in a change"] += 1
        fault()

    def kill_joining(self) -> None:
        self.group.kill(self._last_joining)

    # Ending faults

    def heal(self) -> None:
        self._wakes_in -= 1
        if self._wakes_in <= 0:
            self.group.wake()
        super().heal()
        self._learn()

    def is_settled(self) -> bool:
        return self._learn()

    def _learn(self) -> bool:
        """Learn the members from the group; whether they do not change. Learners run until they are members."""
        try:
            with self.connect(_PATIENT_MS) as client:
                found = client.members()
        except DLedgerError:
            return False
        is_final = found.is_final and found.is_committed and found.index >= self._known
        if is_final:
            self._known = found.index
            self.group.learn(found.voters)
        for node in found.learners:
            if node not in self.group.processes:
                self.group.start(node)
        return is_final
