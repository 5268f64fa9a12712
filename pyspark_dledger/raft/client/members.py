"""The members of a group as a client sees them: connections to them, and which of them leads."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, OptionError
from pyspark_dledger.raft.client.member_connection import LostError, MemberConnection
from pyspark_dledger.raft.client.outcomes import STRANGERS, AnyResponse, code_name, leader_named
from pyspark_dledger.raft.messages import MetadataRequest, MetadataResponse
from pyspark_dledger.raft.peers import Address, parse_address
from pyspark_dledger.raft.wire import NO_PERMISSION, Refusal

# Between two rounds of asking who leads, in seconds.
_FIRST_PAUSE, _MAX_PAUSE = 0.02, 0.25


class _NoLeaderError(GroupError):
    """None was found. ``reasons`` is what was found at each member instead."""

    reasons = ""


class _Search:
    """What members say while a leader is looked for: by their ids why they do not lead, and who they are."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.strangers: dict[str, GroupError] = {}
        self.known: set[str] = set()

    @property
    def is_in_vain(self) -> bool:
        """Whether all that answered so far are of another group, or have other ids."""
        return bool(self.strangers) and not self.known

    def failed(self, member_id: str, error: Exception) -> None:
        self.reasons[member_id] = str(error)
        if isinstance(error, GroupError) and error.code in STRANGERS:
            self.strangers[member_id] = error
        elif isinstance(error, GroupError):
            self.known.add(member_id)

    def answered(self, member_id: str, leader_id: str | None) -> None:
        self.reasons[member_id] = f"names {leader_id or 'nobody'}"
        self.known.add(member_id)


class Members:
    """To be used by the thread of its event loop only. Times are seconds."""

    def __init__(
        self,
        group: str,
        addresses: Mapping[str, Address],
        tls: ssl.SSLContext | None,
        timeout: float,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self.timeout = timeout
        self.addresses = dict(addresses)
        self._tls = tls
        self._secret = secret
        self._leader_id: str | None = None
        self._connections: dict[str, MemberConnection] = {}
        self._connecting: dict[str, asyncio.Task[MemberConnection]] = {}

    async def leader(self) -> MemberConnection:
        """A connection to the member that says of itself that it leads.

        Raises GroupError if none does in time, and at once, with a code of `STRANGERS`, if all that can be reached say
        that they are of another group or have other ids.
        """
        known = self._connections.get(self._leader_id or "")
        if known is not None and not known.is_lost:
            return known
        search = _Search()
        begun = asyncio.get_running_loop().time()
        try:
            found = await asyncio.wait_for(self._search(search), self.timeout)
        except asyncio.TimeoutError:
            if search.is_in_vain:
                raise self._all_strange(search) from None
            found_instead = "; ".join(f"{member_id}: {reason}" for member_id, reason in search.reasons.items())
            raise self._no_leader(found_instead, asyncio.get_running_loop().time() - begun) from None
        self._leader_id = found.member_id
        return found

    def in_all(self, error: GroupError, seconds: float) -> GroupError:
        """The same error, with how long was looked for a leader in all attempts together, if it is about that."""
        return self._no_leader(error.reasons, seconds) if isinstance(error, _NoLeaderError) else error

    def not_leader(self, member_id: str) -> None:
        """That member refused what only a leader does, or does not answer: who leads is to be asked anew."""
        if self._leader_id == member_id:
            self._leader_id = None

    def ids_leader_first(self) -> list[str]:
        """All members, the leader that is known before the others."""
        return sorted(self.addresses, key=lambda member_id: member_id != self._leader_id)

    async def connection(self, member_id: str) -> MemberConnection:
        """A connection to a member that said who it is. Raises LostError, TimeoutError, GroupError for a stranger."""
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
        # Whoever waits may give up, the others go on waiting.
        return await asyncio.shield(task)

    async def metadata(self, member_id: str) -> MetadataResponse:
        """What a member says of its group. Raises LostError, TimeoutError and GroupError."""
        connection = await self.connection(member_id)
        return await self._metadata(connection)

    def close(self) -> None:
        for task in self._connecting.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()

    # Connecting.

    async def _connect(self, member_id: str) -> MemberConnection:
        address = self.addresses[member_id]
        loop = asyncio.get_running_loop()
        named = address.host if self._tls is not None else None
        opening = loop.create_connection(
            lambda: MemberConnection(member_id, self._secret),
            *(address.host, address.port),
            ssl=self._tls,
            server_hostname=named,
        )
        try:
            _, connection = await asyncio.wait_for(opening, self.timeout)
        except asyncio.TimeoutError:
            raise LostError(f"{address} took no connection in {self.timeout * 1000:.0f} ms") from None
        except OSError as error:
            raise LostError(f"{address}: {_reason(error)}{self._hint(error)}") from None
        try:
            await self._metadata(connection)
        except LostError as error:
            raise LostError(f"{address}: {error}{self._hint()}") from None
        except BaseException:
            connection.abort()
            raise
        return connection

    def _hint(self, error: OSError | None = None) -> str:
        """What may be wrong where a connection ends before it was of any use."""
        if self._tls is None:
            return "" if error is not None else " (does that node expect TLS?)"
        if error is None:
            return " (does that node take this certificate?)"
        is_cut = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
        is_strange = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError)
        return " (does that node expect TLS?)" if is_cut or is_strange else ""

    def _connected(self, member_id: str, task: asyncio.Task[MemberConnection]) -> None:
        del self._connecting[member_id]
        # Asking for the exception also says that it was seen, if nobody waits any longer.
        if not task.cancelled() and task.exception() is None:
            self._connections[member_id] = task.result()

    async def _metadata(self, connection: MemberConnection) -> MetadataResponse:
        """The hello of a connection, and later who leads."""
        request = MetadataRequest(group=self.group, remote_id=connection.member_id)
        response = await connection.ask(request, self.timeout)
        if not isinstance(response, MetadataResponse) or response.code != ResponseCode.SUCCESS:
            raise self._stranger(connection.member_id, response)
        self._learn(response.peers)
        return response

    def _stranger(self, member_id: str, response: AnyResponse) -> GroupError:
        if isinstance(response, Refusal) and response.code == NO_PERMISSION:
            return GroupError(
                f"expected member {member_id} of group {self.group} at {self.addresses[member_id]} to let this client "
                f"in, found {code_name(response)}: connect with the secret of that node",
                ResponseCode.UNKNOWN_MEMBER,
            )
        return GroupError(
            f"expected member {member_id} of group {self.group} at {self.addresses[member_id]}, found "
            f"{code_name(response)}: give group and peers as that node has them",
            int(response.code),
            leader_named(response),
        )

    def _learn(self, peers: Mapping[str, str]) -> None:
        """Members that were not named. Addresses that were named stay: this side may know them by others."""
        for member_id, text in peers.items():
            if member_id not in self.addresses:
                try:
                    self.addresses[member_id] = parse_address(text, member_id)
                except OptionError:
                    continue

    # Looking for the leader.

    async def _search(self, search: _Search) -> MemberConnection:
        """Asks all members at once, again and again, until one says that it leads itself, or all are strangers."""
        pause = _FIRST_PAUSE
        while True:
            found = await self._ask_all(search)
            if found is not None:
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE)

    async def _ask_all(self, search: _Search) -> MemberConnection | None:
        """The first that says so, without waiting for the others."""
        tasks = [asyncio.ensure_future(self._ask(member_id, search)) for member_id in self.addresses]
        try:
            # One that does not answer is not waited for: the next round may find what has changed meanwhile.
            for asked in asyncio.as_completed(tasks, timeout=max(self.timeout / 4, 0.1)):
                found = await asked
                if found is not None:
                    return found
            if search.is_in_vain:
                raise self._all_strange(search)
        except asyncio.TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
        return None

    async def _ask(self, member_id: str, search: _Search) -> MemberConnection | None:
        search.reasons.setdefault(member_id, "did not answer")
        try:
            connection = await self.connection(member_id)
            response = await self._metadata(connection)
        except (LostError, TimeoutError, GroupError) as error:
            search.failed(member_id, error)
            return None
        search.answered(member_id, response.leader_id)
        return connection if response.leader_id == member_id else None

    def _no_leader(self, reasons: str, seconds: float) -> GroupError:
        error = _NoLeaderError(
            f"group {self.group}: expected a leader within {seconds * 1000:.0f} ms, found none ({reasons}): nothing "
            "was changed, look at its nodes and try again",
            ResponseCode.METADATA_ERROR,
        )
        error.reasons = reasons
        return error

    def _all_strange(self, search: _Search) -> GroupError:
        found = "; ".join(map(str, search.strangers.values()))
        code = next(iter(search.strangers.values())).code
        return GroupError(f"group {self.group}: expected members of it, found none: {found}", code)


def _reason(error: OSError) -> str:
    """Why a connection was not made; asyncio's own text only repeats the address."""
    if error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
