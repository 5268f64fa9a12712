"""What a client asks beside appends: entries, who leads, how members stand. Runs in the client's own event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError
from pyspark_dledger.raft.client.appender import Appender
from pyspark_dledger.raft.client.member_connection import LostError, MemberConnection
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import (
    LEADER_MOVED,
    STRANGERS,
    AnyResponse,
    code_name,
    is_passing,
    leader_named,
    may_transfer,
    no_messages,
    refused,
    serves_no_messages,
    unknown_transfer,
)
from pyspark_dledger.raft.client.results import CommittedRange, MemberStatus, Metadata, Topics
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.messages import (
    ConfigRequest,
    ConfigResponse,
    GetRequest,
    GetResponse,
    MetadataResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StatusRequest,
    StatusResponse,
    TopicsRequest,
    TopicsResponse,
    TransferRequest,
    VoteRequest,
    VoteResponse,
)
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire import EncodeError
from pyspark_dledger.store.dledger_store import Entry

A = TypeVar("A", bound=Response)
N = TypeVar("N", bound="AnyResponse | None")

# As long as Java's client waits for a transfer, in seconds.
_TRANSFER_TIMEOUT = 10.0
_FIRST_PAUSE, _MAX_PAUSE = 0.02, 1.0
_NOT_THERE = frozenset((ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN))
# What stays as it is, however often it is asked.
_NEVER = STRANGERS | {ResponseCode.UNSUPPORTED, ResponseCode.UNEXPECTED_ARGUMENT}
# A candidate that is in no group: it is told the term and changes nothing.
_NO_MEMBER = "client"


class Session:
    """To be made and used in one event loop. Times are seconds."""

    def __init__(
        self,
        group: str,
        addresses: Mapping[str, Address],
        tls: ssl.SSLContext | None,
        timeout: float,
        max_retries: int,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self._attempts = 1 + max_retries
        self._members = Members(group, addresses, tls, timeout, secret)
        self.appender = Appender(self._members, max_retries)

    async def close(self, waits: bool = True) -> None:
        """Lets appends end, for as long as one attempt may last unless told not to, and closes the connections."""
        await self.appender.close(self._members.timeout if waits else 0.0)
        self._members.close()

    async def get(self, index: int) -> Entry:
        """The committed entry of that index. Raises IndexRangeError where there is none."""
        response = await self._ask_leader(
            lambda connection: GetRequest(
                group=self.group,
                remote_id=connection.member_id,
                begin_index=index,
                is_committed=connection.is_binary,
            ),
            f"to get index {index}",
        )
        if isinstance(response, GetResponse) and response.code == ResponseCode.SUCCESS and response.entries:
            return response.entries[0]
        raise self._not_there(index, response)

    def _not_there(self, index: int, response: AnyResponse) -> IndexRangeError | GroupError:
        if response.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            return IndexRangeError(f"group {self.group}: expected index {index}, found it expired")
        if response.code in (ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.SUCCESS):
            return IndexRangeError(f"group {self.group}: expected index {index}, found it not in the log (yet)")
        return refused(self.group, f"a request to get index {index}", "its leader", response)

    async def metadata(self) -> Metadata:
        """Who leads: of the first member that says so of itself, else as others name it; GroupError if none answers."""
        tasks = [asyncio.ensure_future(self._metadata(member_id)) for member_id in self._members.addresses]
        named: str | None = None
        peers: dict[str, str] = {}
        problems: list[str] = []
        try:
            for task in asyncio.as_completed(tasks, timeout=2 * self._members.timeout):
                try:
                    member_id, response = await task
                except (LostError, TimeoutError, GroupError) as error:
                    problems.append(str(error))
                    continue
                peers, named = response.peers, response.leader_id or named
                if named == member_id:
                    break
        except asyncio.TimeoutError:
            problems.append("no answer in time")
        finally:
            for each in tasks:
                each.cancel()
        if not peers:
            text = f"expected metadata of any member, found none ({'; '.join(problems)}): look at its nodes"
            raise GroupError(f"group {self.group}: {text}", ResponseCode.METADATA_ERROR)
        addresses = {member_id: str(address) for member_id, address in self._members.addresses.items()}
        return Metadata(self.group, named, {**peers, **addresses})

    async def _metadata(self, member_id: str) -> tuple[str, MetadataResponse]:
        return member_id, await self._members.metadata(member_id)

    async def status(self, node_id: str) -> MemberStatus:
        """How a member of ours stands. Raises GroupError where it is one of Java's, or not there."""
        connection = await self._of_ours(node_id)
        request = StatusRequest(group=self.group, remote_id=node_id)
        response = await self._ask(connection, request, StatusResponse, "a request for its status")
        return MemberStatus(
            *(node_id, response.role, response.term, response.leader_id),
            *(response.begin_index, response.end_index, response.end_term, response.committed_index),
            response.problem,
            response.serves_messages,
        )

    async def topics(self, names: tuple[str, ...], queue_nums: int) -> Topics:
        """How many queues topics have. Raises GroupError where the leader serves no messages."""
        what = f"for topics {', '.join(names)}"
        response = await self._ask_messages(TopicsRequest(names=names, queue_nums=queue_nums), TopicsResponse, what)
        return Topics(response.queue_counts, response.store_host)

    async def config(self) -> dict[str, bytes]:
        """The metadata of the leader. Raises GroupError where it serves no messages."""
        return (await self._ask_messages(ConfigRequest(), ConfigResponse, "for metadata")).files

    async def _ask_messages(self, request: Request, kind: type[A], what: str) -> A:
        """What a leader answers to what only one that serves messages answers."""

        async def ask() -> tuple[MemberConnection, AnyResponse]:
            connection = await self._members.leader()
            member_id = connection.member_id
            if not connection.is_binary:
                raise no_messages(self.group, member_id, "to be a node of Java, which takes raw entries only")
            response = await self._answer(connection, replace(request, group=self.group, remote_id=member_id))
            if serves_no_messages(response):
                raise no_messages(self.group, member_id, f"to serve none ({code_name(response)})")
            return connection, response

        response = await self._retried(ask, what)
        if isinstance(response, kind) and response.code == ResponseCode.SUCCESS:
            return response
        raise refused(self.group, f"a request {what}", "its leader", response)

    async def read(self, first_index: int, node_id: str | None, max_bytes: int, wait_ms: int) -> CommittedRange:
        """Committed entries of that member, or of the first of ours that answers."""
        problems: list[GroupError] = []
        for member_id in [node_id] if node_id is not None else self._members.ids_leader_first():
            try:
                return await self._read(first_index, member_id, max_bytes, wait_ms)
            except GroupError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        reasons = "; ".join(map(str, problems))
        raise GroupError(
            f"group {self.group}: expected a member to read from, found none ({reasons})", problems[0].code
        )

    async def _read(self, first_index: int, node_id: str, max_bytes: int, wait_ms: int) -> CommittedRange:
        connection = await self._of_ours(node_id)
        request = ReadRequest(
            group=self.group, remote_id=node_id, first_index=first_index, max_bytes=max_bytes, wait_ms=wait_ms
        )
        response = await self._ask(
            connection, request, ReadResponse, f"to read from index {first_index}", wait_ms / 1000
        )
        return CommittedRange(
            first_index, response.count, response.begin_index, response.committed_index, response.data
        )

    async def transfer(self, node_id: str) -> None:
        """Makes a member the leader. Raises GroupError if it was refused, UnknownOutcomeError if it may happen yet."""
        await self._members.leader()
        if node_id not in self._members.addresses:
            raise OptionError(f"expected one of {', '.join(self._members.addresses)} to transfer to, found {node_id!r}")
        response = await self._retried(lambda: self._transfer(node_id), f"a transfer to {node_id}")
        if response is not None and response.code != ResponseCode.SUCCESS:
            raise refused(self.group, f"a transfer of leadership to {node_id}", "its leader", response)

    async def _transfer(self, node_id: str) -> tuple[MemberConnection, AnyResponse | None]:
        connection = await self._members.leader()
        leader_id = connection.member_id
        if leader_id == node_id:
            return connection, None
        request = TransferRequest(
            group=self.group,
            remote_id=leader_id,
            transfer_id=leader_id,
            transferee_id=node_id,
            term=await self._term_of(connection),
        )
        try:
            response = await connection.ask(request, max(_TRANSFER_TIMEOUT, self._members.timeout))
        except (LostError, TimeoutError) as error:
            raise unknown_transfer(self.group, leader_id, node_id, str(error), ResponseCode.TIMEOUT) from None
        except asyncio.CancelledError:
            reason = "the client closed before the answer came"
            raise unknown_transfer(self.group, leader_id, node_id, reason, ResponseCode.NETWORK_ERROR) from None
        finally:
            self._members.not_leader(leader_id)
        if response.code != ResponseCode.SUCCESS and may_transfer(response):
            code, named = int(response.code), leader_named(response)
            raise unknown_transfer(self.group, leader_id, node_id, code_name(response), code, named)
        return connection, response

    async def _term_of(self, connection: MemberConnection) -> int:
        """The term of a leader, which a transfer has to name. Java tells it to whoever asks for a vote in vain."""
        member_id = connection.member_id
        if connection.is_binary:
            request: Request = StatusRequest(group=self.group, remote_id=member_id)
        else:
            request = VoteRequest(group=self.group, remote_id=member_id, local_id=_NO_MEMBER, leader_id=_NO_MEMBER)
        response = await self._answer(connection, request)
        if not isinstance(response, (StatusResponse, VoteResponse)) or response.code != ResponseCode.SUCCESS:
            raise refused(self.group, "a request for its term", member_id, response)
        return response.term

    # Asking.

    async def _ask_leader(self, make: Callable[[MemberConnection], Request], what: str) -> AnyResponse:
        async def ask() -> tuple[MemberConnection, AnyResponse]:
            connection = await self._members.leader()
            return connection, await self._answer(connection, make(connection))

        return await self._retried(ask, what)

    async def _retried(self, ask: Callable[[], Awaitable[tuple[MemberConnection, N]]], what: str) -> N:
        """Asks again for as long as the answer is one that passes, or does not come; for what changes nothing."""
        failure: GroupError | None = None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(backoff(attempt, _FIRST_PAUSE, _MAX_PAUSE))
            try:
                connection, response = await ask()
            except GroupError as error:
                if error.code in _NEVER:
                    raise
                failure = self._members.in_all(error, loop.time() - begun)
                continue
            if response is None or not is_passing(response):
                return response
            if response.code in LEADER_MOVED:
                self._members.not_leader(connection.member_id)
            failure = refused(self.group, f"a request {what}", connection.member_id, response, attempt + 1)
        assert failure is not None
        raise failure

    async def _answer(self, connection: MemberConnection, request: Request, more_time: float = 0.0) -> AnyResponse:
        """What a member answers. Raises GroupError if it does not, or cannot be asked that."""
        try:
            return await connection.ask(request, self._members.timeout + more_time)
        except EncodeError as error:
            raise GroupError(f"group {self.group}: {error}", ResponseCode.UNEXPECTED_ARGUMENT) from None
        except (LostError, TimeoutError) as error:
            self._members.not_leader(connection.member_id)
            text = f"group {self.group}: expected an answer of {connection.member_id}, found none: {error}"
            raise GroupError(text, ResponseCode.NETWORK_ERROR) from None

    async def _ask(
        self, connection: MemberConnection, request: Request, kind: type[A], what: str, more_time: float = 0.0
    ) -> A:
        response = await self._answer(connection, request, more_time)
        if isinstance(response, kind) and response.code == ResponseCode.SUCCESS:
            return response
        if response.code in _NOT_THERE and isinstance(request, ReadRequest):
            raise self._not_there(request.first_index, response)
        raise refused(self.group, what, connection.member_id, response)

    async def _of_ours(self, node_id: str) -> MemberConnection:
        try:
            connection = await self._members.connection(node_id)
        except (LostError, TimeoutError) as error:
            text = f"group {self.group}: expected to reach {node_id}, found {error}"
            raise GroupError(text, ResponseCode.NETWORK_ERROR) from None
        if not connection.is_binary:
            raise GroupError(
                f"group {self.group}: expected a node of pyspark_dledger, found {node_id} to be one of Java, which "
                "tells neither how it stands nor what is committed",
                ResponseCode.UNSUPPORTED,
            )
        return connection
