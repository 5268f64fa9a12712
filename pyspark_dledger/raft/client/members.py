"""A client's connections to the members of a group, and the search for the leader."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.raft.client.member_connection import LostError, MemberConnection
from pyspark_dledger.raft.client.outcomes import WRONG_MEMBER, AnyResponse, code_name, leader_named
from pyspark_dledger.raft.messages import MetadataRequest, MetadataResponse
from pyspark_dledger.raft.peers import PEER_ID, Address, parse_address
from pyspark_dledger.raft.tls import TlsContext
from pyspark_dledger.raft.wire import NO_PERMISSION, Rejection

# Seconds between two rounds of the search for the leader.
_MIN_PAUSE, _MAX_PAUSE = 0.02, 0.25
# With more members, others that a member names are not added: each search connects to all.
_MAX_MEMBERS = 64
# Searches for the leader while no member has ever responded: its addresses are wrong, or no node runs.
_MAX_UNREACHED = 3
CHECK_NODES = "check that its nodes run, and at these addresses"
"""The advice if no member responds."""


class NoLeaderError(GroupError):
    """No leader was found. ``reasons`` has the reason of each member."""

    reasons = ""


class _Search:
    """The results of a search for the leader, by member id."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.wrong_members: dict[str, GroupError] = {}
        # Members whose group and id are right.
        self.members: set[str] = set()

    @property
    def has_only_wrong_members(self) -> bool:
        """Whether all members that responded are of another group, or have other ids."""
        return bool(self.wrong_members) and not self.members

    def failed(self, member_id: str, error: Exception) -> None:
        self.reasons[member_id] = str(error)
        if isinstance(error, GroupError) and error.code in WRONG_MEMBER:
            self.wrong_members[member_id] = error
        elif isinstance(error, GroupError):
            self.members.add(member_id)

    def responded(self, member_id: str, leader_id: str | None) -> None:
        self.reasons[member_id] = f"names {leader_id or 'nobody'}"
        self.members.add(member_id)


class Members:
    """Used only by the thread of its event loop. Times are seconds."""

    def __init__(
        self,
        group: str,
        addresses: Mapping[str, Address],
        tls: TlsContext | None,
        timeout: float,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self.timeout = timeout
        self.addresses = dict(addresses)
        self._tls = tls
        self._secret = secret
        self._was_reached = False
        self._leader_id: str | None = None
        self._connections: dict[str, MemberConnection] = {}
        self._connecting: dict[str, asyncio.Task[MemberConnection]] = {}

    async def leader(self) -> MemberConnection:
        """A connection to the leader: the member that names itself.

        Raises GroupError if none is found in time. Raises it at once, with a code of `WRONG_MEMBER`, if all reachable
        members are of another group or have other ids.
        """
        known = self._connections.get(self._leader_id or "")
        if known is not None and not known.is_lost:
            return known
        search = _Search()
        begun = asyncio.get_running_loop().time()
        try:
            found = await asyncio.wait_for(self._search(search), self.timeout)
        except asyncio.TimeoutError:
            if search.has_only_wrong_members:
                raise self._wrong_members_error(search) from None
            found_instead = "; ".join(f"{member_id}: {reason}" for member_id, reason in search.reasons.items())
            raise self._no_leader_error(found_instead, asyncio.get_running_loop().time() - begun) from None
        self._leader_id = found.member_id
        return found

    def with_total_time(self, error: GroupError, seconds: float) -> GroupError:
        """The error; if no leader was found, with the time of all attempts."""
        return self._no_leader_error(error.reasons, seconds) if isinstance(error, NoLeaderError) else error

    def is_unreachable(self, attempts: int) -> bool:
        """Whether no member has ever responded, in so many searches for the leader."""
        return not self._was_reached and attempts >= _MAX_UNREACHED

    def forget_leader(self, member_id: str) -> None:
        """The member does not lead, or does not respond: search for the leader again."""
        if self._leader_id == member_id:
            self._leader_id = None

    def ids_leader_first(self) -> list[str]:
        """All member ids, the known leader first."""
        return sorted(self.addresses, key=lambda member_id: member_id != self._leader_id)

    async def connection(self, member_id: str) -> MemberConnection:
        """A connection to a member. Raises LostError, TimeoutError, and GroupError for another group or id."""
        known = self._connections.get(member_id)
        if known is not None and not known.is_lost:
            return known
        if member_id not in self.addresses:
            raise OptionError(f"expected a member of {', '.join(self.addresses)}, found {member_id!r}")
        task = self._connecting.get(member_id)
        if task is None:
            task = asyncio.ensure_future(self._connect(member_id))
            self._connecting[member_id] = task
            task.add_done_callback(lambda done: self._connected(member_id, done))
        # If one caller is cancelled, the others continue to wait.
        return await asyncio.shield(task)

    async def metadata(self, member_id: str) -> MetadataResponse:
        """The metadata of a member. Raises LostError, TimeoutError and GroupError."""
        connection = await self.connection(member_id)
        return await self._metadata(connection)

    def close(self) -> None:
        for task in self._connecting.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()

    # Connecting

    async def _connect(self, member_id: str) -> MemberConnection:
        address = self.addresses[member_id]
        loop = asyncio.get_running_loop()
        named = address.host if self._tls is not None else None
        opening = loop.create_connection(
            lambda: MemberConnection(member_id, self._secret),
            *(address.host, address.port),
            ssl=None if self._tls is None else self._tls(),
            server_hostname=named,
        )
        try:
            _, connection = await asyncio.wait_for(opening, self.timeout)
        except asyncio.TimeoutError:
            raise LostError(f"{address} accepted no connection in {self.timeout * 1000:.0f} ms") from None
        except OSError as error:
            raise LostError(f"{address}: {_connect_error(error)}{self._hint(error)}") from None
        try:
            await self._metadata(connection)
        except LostError as error:
            raise LostError(f"{address}: {error}{self._hint()}") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    def _hint(self, error: OSError | None = None) -> str:
        """A possible cause if a connection fails."""
        if self._tls is None:
            return "" if error is not None else " (does that node expect TLS?)"
        if error is None:
            return " (does that node accept this certificate?)"
        is_reset = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
        is_no_tls = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError)
        return " (does that node expect TLS?)" if is_reset or is_no_tls else ""

    def _connected(self, member_id: str, task: asyncio.Task[MemberConnection]) -> None:
        del self._connecting[member_id]
        # Reading the exception also marks it as retrieved, if no caller waits any more.
        if not task.cancelled() and task.exception() is None:
            self._connections[member_id] = task.result()

    async def _metadata(self, connection: MemberConnection) -> MetadataResponse:
        """Request METADATA: the hello of a connection, and later the leader."""
        request = MetadataRequest(group=self.group, remote_id=connection.member_id)
        response = await connection.request(request, self.timeout)
        self._was_reached = True
        if not isinstance(response, MetadataResponse) or response.code != ResponseCode.SUCCESS:
            raise self._wrong_member_error(connection.member_id, response)
        self.learn(response.peers)
        return response

    def _wrong_member_error(self, member_id: str, response: AnyResponse) -> GroupError:
        if isinstance(response, Rejection) and response.code == NO_PERMISSION:
            return GroupError(
                f"member {member_id} of group {self.group} at {self.addresses[member_id]} rejected this client with "
                f"{code_name(response)}",
                ResponseCode.UNKNOWN_MEMBER,
            )
        return GroupError(
            f"expected member {member_id} of group {self.group} at {self.addresses[member_id]}, found "
            f"{code_name(response)}: use the group and peers of that node",
            int(response.code),
            leader_named(response),
        )

    def learn(self, peers: Mapping[str, str]) -> None:
        """Add unknown members. Given addresses stay: the client may need others than the members."""
        for member_id, text in peers.items():
            is_new = member_id not in self.addresses and PEER_ID.fullmatch(member_id) is not None
            if is_new and len(self.addresses) < _MAX_MEMBERS:
                try:
                    self.addresses[member_id] = parse_address(text, member_id)
                except OptionError:
                    continue

    # Searching for the leader

    async def _search(self, search: _Search) -> MemberConnection:
        """Ask all members, in rounds, until one names itself as leader, or all are wrong members."""
        pause = _MIN_PAUSE
        while True:
            found = await self._probe_all(search)
            if found is not None:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _probe_all(self, search: _Search) -> MemberConnection | None:
        """The first member that names itself, without waiting for the others."""
        tasks = [asyncio.ensure_future(self._probe(member_id, search)) for member_id in self.addresses]
        try:
            # Do not wait for silent members: the next round may find a new leader.
            for probe in asyncio.as_completed(tasks, timeout=max(self.timeout / 4, 0.1)):
                found = await probe
                if found is not None:
                    return found
            if search.has_only_wrong_members:
                raise self._wrong_members_error(search)
        except asyncio.TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
        return None

    async def _probe(self, member_id: str, search: _Search) -> MemberConnection | None:
        search.reasons.setdefault(member_id, "did not respond")
        try:
            connection = await self.connection(member_id)
            response = await self._metadata(connection)
        except (LostError, TimeoutError, GroupError) as error:
            search.failed(member_id, error)
            return None
        search.responded(member_id, response.leader_id)
        return connection if response.leader_id == member_id else None

    def _no_leader_error(self, reasons: str, seconds: float) -> GroupError:
        silent, advice = "", "nothing was changed, look at its nodes and try again"
        if not self._was_reached:
            silent, advice = ", no member responded", CHECK_NODES
        error = NoLeaderError(
            f"group {self.group}: no leader within {seconds * 1000:.0f} ms{silent} ({reasons}): {advice}",
            ResponseCode.METADATA_ERROR,
        )
        error.reasons = reasons
        return error

    def _wrong_members_error(self, search: _Search) -> GroupError:
        found = "; ".join(map(str, search.wrong_members.values()))
        code = next(iter(search.wrong_members.values())).code
        return GroupError(f"group {self.group}: no member of it found: {found}", code)


def _connect_error(error: OSError) -> str:
    """Why a connection failed; asyncio's own text only repeats the address."""
    if error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
