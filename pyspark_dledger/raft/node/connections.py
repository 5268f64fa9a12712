"""All connections from clients and peers: how many there may be, and which one gives way."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from pyspark_dledger.raft.node.access import Rejections, Roles
from pyspark_dledger.raft.node.inbound import Inbound, Timeouts
from pyspark_dledger.raft.node.limits import MemoryBudget, Quotas
from pyspark_dledger.raft.node.node_config import NodeConfig
from pyspark_dledger.raft.peers import Address

# Seconds between two checks of all connections.
_CHECK_SECONDS = 0.5
# Connections in addition to the clients' maximum: of one member, and of its address before the first request.
_PER_MEMBER = 4
# Idle connections that are found at a time.
_FOUND = 32


class Connections:
    """Admits connections, and closes those that wait too long.

    If there are too many, the one that was silent the longest gives way: first of those that never completed a request,
    then of the idle ones. A connection whose first request is of a member, as `Roles` decides, has room of its own.
    """

    def __init__(self, config: NodeConfig, hosts_of: Callable[[str], Collection[str]] = lambda _: ()) -> None:
        self.memory = MemoryBudget(config.max_connection_memory)
        self._config = config
        self._timeouts = Timeouts(
            config.handshake_timeout_ms / 1000, config.idle_timeout_ms / 1000, config.transfer_timeout_ms / 1000
        )
        self._hosts_of = hosts_of
        self.quotas = Quotas(config.max_requests_per_second, config.max_bytes_per_second)
        self._member_ids: dict[Inbound, str] = {}
        self._clients: dict[Inbound, None] = {}
        self._judged: tuple[Mapping[str, Address], bool] | None = None
        self.set_members({}, is_present=False)
        self.rejected = Rejections()
        self._per_host: Counter[str | None] = Counter()
        # Clients without a request, of each host and of all, the one that was silent the longest last.
        self._idle: dict[str | None, list[tuple[float, Inbound]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set_members(self, found: Mapping[str, Address], *, is_present: bool) -> None:
        """Requests of members are accepted from these only, if they are known to be the group's present ones.

        Until then also from those that this member was started with, and from strangers, see `Roles`.
        """
        config = self._config
        members = found if is_present else {**config.members(), **found}
        if (members, is_present) == self._judged:
            return
        self._judged = members, is_present
        self._others = members.keys() - {config.self_id}
        self.roles = Roles(
            *(members, config.self_id),
            uses_secret=config.member_secret is not None,
            uses_tls=config.tls is not None,
            hosts_of=self._hosts_of,
            takes_strangers=not is_present,
        )
        for inbound in self.all():
            inbound.access.forget()
            member_id = self._member_ids.get(inbound)
            is_stranger = member_id is not None and member_id not in members
            if is_stranger and self.roles.rejection(member_id, inbound.access.shown) is not None:
                inbound.abort()

    def all(self) -> list[Inbound]:
        return [*self._clients, *self._member_ids]

    def counts(self) -> dict[str, int]:
        """The number of connections of clients and of members."""
        return {"client": len(self._clients), "member": len(self._member_ids)}

    def start(self) -> None:
        self._check_later()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def opened(self, inbound: Inbound) -> str | None:
        """Add a connection. Returns the reason to reject it."""
        self._clients[inbound] = None
        self._per_host[inbound.host] += 1
        if inbound.base_bytes and not self.memory.allows(0, inbound.base_bytes) and not self._close_idle(inbound):
            return "no memory for more connections"
        return self._surplus(inbound, _PER_MEMBER * len(self._others) if self.is_member_host(inbound.host) else 0)

    def identified(self, inbound: Inbound, member_id: str | None) -> str | None:
        """The first request names that member as its sender. Returns the reason to close the connection."""
        is_member = member_id is not None and self.roles.rejection(member_id, inbound.access.shown) is None
        if member_id is not None and is_member and self._has_place(member_id):
            self._forget_client(inbound)
            self._member_ids[inbound] = member_id
            inbound.is_member = True
            return None
        # Until here it may have used the room for members.
        return self._surplus(inbound, 0)

    def _has_place(self, member_id: str) -> bool:
        """Whether a member has fewer connections than it may. All strangers together count as one member."""
        ids = {member_id} if member_id in self._others else {*self._member_ids.values()} - self._others
        return sum(each in ids for each in self._member_ids.values()) < _PER_MEMBER

    def closed(self, inbound: Inbound) -> None:
        """The connection is lost."""
        if self._member_ids.pop(inbound, None) is None:
            self._forget_client(inbound)

    def _forget_client(self, inbound: Inbound) -> None:
        if inbound in self._clients:
            del self._clients[inbound]
            self._per_host[inbound.host] -= 1
            if not self._per_host[inbound.host]:
                del self._per_host[inbound.host]

    def is_member_host(self, host: str | None) -> bool:
        """Whether a member has this network address."""
        return self.roles.is_member_host(host)

    def _surplus(self, inbound: Inbound, extra: int) -> str | None:
        """Make room for a client's connection. Returns the reason to close it if no other is idle."""
        config, host = self._config, inbound.host
        if self._per_host[host] > config.max_connections_per_address + extra and not self._close_idle(inbound, host):
            return f"too many connections from {host}"
        if len(self._clients) > config.max_connections + extra and not self._close_idle(inbound):
            return "too many connections"
        return None

    def _close_idle(self, new: Inbound, host: str | None = None) -> bool:
        """Close the idle client that was silent the longest, of one host if given. Returns False if there is none."""
        found = self._idle.pop(host, [])
        if not (found := self._still_idle(found, new)):
            clients = (each for each in self._clients if each is not new and host in (None, each.host))
            idle = heapq.nsmallest(
                _FOUND,
                ((each.is_identified, each.active_at, id(each), each) for each in clients if each.gives_way),
            )
            first = [each for each in idle if each[0] == idle[0][0]]
            found = self._still_idle([(at, each) for _, at, _, each in reversed(first)], new)
        if not found:
            return False
        _, oldest = found.pop()
        if not oldest.is_identified:
            self._idle[host] = found
        self._forget_client(oldest)
        oldest.abort()
        return True

    def _still_idle(self, found: list[tuple[float, Inbound]], new: Inbound) -> list[tuple[float, Inbound]]:
        return [
            (at, each)
            for at, each in found
            if each is not new and each in self._clients and each.gives_way and each.active_at == at
        ]

    def _check_later(self) -> None:
        seconds = min(_CHECK_SECONDS, *self._timeouts)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._check_later()
        now = asyncio.get_running_loop().time()
        for inbound in self.all():
            inbound.check(now, self._timeouts)
        self.memory.wake_later()
