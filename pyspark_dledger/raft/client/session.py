"""A client's requests other than appends: entries, metadata, status, topics, transfers. Runs in the client's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import GroupError, IndexRangeError, OptionError
from pyspark_dledger.format.codec import decode_entry_header
from pyspark_dledger.format.encode.encoded import ProducerState
from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.client.appender import Appender
from pyspark_dledger.raft.client.java_log import JavaLog
from pyspark_dledger.raft.client.member_connection import LostError, MemberConnection
from pyspark_dledger.raft.client.members import Members
from pyspark_dledger.raft.client.outcomes import (
    JAVA_LEADER,
    LEADER_MOVED,
    WRONG_MEMBER,
    AnyResponse,
    code_name,
    is_temporary,
    leader_named,
    may_transfer,
    no_messages_error,
    rejected_error,
    serves_no_messages,
    unknown_transfer_error,
)
from pyspark_dledger.raft.client.results import CommittedRange, GroupMembers, MemberStatus, Metadata, Topics
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.member_list import read_told
from pyspark_dledger.raft.messages import (
    LIST,
    ConfigRequest,
    ConfigResponse,
    GetRequest,
    GetResponse,
    MembersRequest,
    MembersResponse,
    MetadataResponse,
    ProducerRequest,
    ProducerResponse,
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
from pyspark_dledger.raft.tls import TlsContext
from pyspark_dledger.raft.wire import EncodeError
from pyspark_dledger.store.dledger_store import Entry

AnyKind = TypeVar("AnyKind", bound=Response)
MaybeResponse = TypeVar("MaybeResponse", bound="AnyResponse | None")

# Seconds; Java's client waits as long for a transfer.
_TRANSFER_TIMEOUT = 10.0
_MIN_PAUSE, _MAX_PAUSE = 0.02, 1.0
_ABSENT = frozenset((ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN))
# Errors that a retry cannot change.
_PERMANENT_CODES = WRONG_MEMBER | {ResponseCode.UNSUPPORTED, ResponseCode.UNEXPECTED_ARGUMENT}
# The id of a candidate that is in no group: the response has the term, and the request changes nothing.
_NO_MEMBER_ID = "client"


class Session:
    """Constructed and used in one event loop. Times are seconds."""

    def __init__(
        self,
        group: str,
        addresses: Mapping[str, Address],
        tls: TlsContext | None,
        timeout: float,
        max_retries: int,
        secret: str | None = None,
    ) -> None:
        self.group = group
        self._attempts = 1 + max_retries
        self._members = Members(group, addresses, tls, timeout, secret)
        self.appender = Appender(self._members, max_retries)
        self.java_log = JavaLog(self._members)

    async def close(self, waits: bool = True) -> None:
        """Finish appends, within the time of one attempt if `waits`, and close the connections."""
        await self.appender.close(self._members.timeout if waits else 0.0)
        self._members.close()

    async def get(self, index: int) -> Entry:
        """The committed entry of that index. Raises IndexRangeError if there is none."""
        response = await self._request_leader(
            lambda connection: GetRequest(
                group=self.group,
                remote_id=connection.member_id,
                begin_index=index,
                is_committed=connection.is_binary,
            ),
            f"to get index {index}",
        )
        if isinstance(response, GetResponse) and response.code == ResponseCode.SUCCESS and response.entries:
            if (found := response.entries[0]).index != index:
                raise self._other_entries_error("its leader", f"entry {index}", f"entry {found.index}")
            return found
        raise self._absent_error(index, response)

    def _other_entries_error(self, member: str, expected: str, found: str) -> GroupError:
        text = f"group {self.group}: expected {expected} of {member}, found {found}: verify the store of that member"
        return GroupError(text, ResponseCode.INTERNAL_ERROR)

    def _absent_error(self, index: int, response: AnyResponse) -> IndexRangeError | GroupError:
        if response.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            return IndexRangeError(f"group {self.group}: index {index} has expired")
        if response.code in (ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.SUCCESS):
            return IndexRangeError(f"group {self.group}: index {index} is not in the log (yet)")
        return rejected_error(self.group, f"a request to get index {index}", "its leader", response)

    async def metadata(self) -> Metadata:
        """The metadata of the first member that names itself as leader, else of another. Raises GroupError.

        A leader knows all members. Without one, those count that this client was given, too.
        """
        tasks = [asyncio.ensure_future(self._metadata(member_id)) for member_id in self._members.addresses]
        named, is_leader = None, False
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
                if is_leader := response.leader_id == member_id:
                    break
        except asyncio.TimeoutError:
            problems.append("no response in time")
        finally:
            for each in tasks:
                each.cancel()
        if not peers:
            text = f"no member returned metadata ({'; '.join(problems)}): look at its nodes"
            raise GroupError(f"group {self.group}: {text}", ResponseCode.METADATA_ERROR)
        given = self._members.addresses.items()
        addresses = {each: str(address) for each, address in given if each in peers or not is_leader}
        return Metadata(self.group, named, {**peers, **addresses})

    async def _metadata(self, member_id: str) -> tuple[str, MetadataResponse]:
        return member_id, await self._members.metadata(member_id)

    async def status(self, node_id: str) -> MemberStatus:
        """The state of a member of this package. Raises GroupError for a Java member, or if it is unreachable."""
        connection = await self._binary_connection(node_id)
        request = StatusRequest(group=self.group, remote_id=node_id)
        response = await self._checked_request(connection, request, StatusResponse, "a request for its status")
        return MemberStatus(
            *(node_id, response.role, response.term, response.leader_id),
            *(response.begin_index, response.end_index, response.end_term, response.committed_index),
            response.problem,
            response.serves_messages,
            response.peers,
        )

    async def topics(self, names: tuple[str, ...], queue_nums: int) -> Topics:
        """The number of queues of topics. Raises GroupError if the leader does not serve messages."""
        what = f"for topics {', '.join(names)}"
        response = await self._request_messages(TopicsRequest(names=names, queue_nums=queue_nums), TopicsResponse, what)
        return Topics(response.queue_counts, response.store_host)

    async def producer(self, producer: bytes, run: int, from_index: int) -> ProducerState:
        """What the log has of a producer's messages. Raises GroupError if the leader does not serve messages."""
        request = ProducerRequest(producer=producer, run=run, from_index=from_index)
        found = await self._request_messages(request, ProducerResponse, "for the messages of a producer")
        ids = bytes(found.ids)
        return ProducerState(found.count, found.other_runs, found.last_number, found.next_index, ids, term=found.term)

    async def config(self) -> dict[str, bytes]:
        """The metadata files of the leader. Raises GroupError if it does not serve messages."""
        return (await self._request_messages(ConfigRequest(), ConfigResponse, "for metadata")).files

    async def _request_messages(self, request: Request, kind: type[AnyKind], what: str) -> AnyKind:
        """The response to a request that only a leader that serves messages accepts."""

        async def send() -> tuple[MemberConnection, AnyResponse]:
            connection = await self._members.leader()
            member_id = connection.member_id
            if not connection.is_binary:
                raise no_messages_error(self.group, member_id, JAVA_LEADER)
            response = await self._request(connection, replace(request, group=self.group, remote_id=member_id))
            if serves_no_messages(response):
                raise no_messages_error(self.group, member_id, f"to serve none ({code_name(response)})")
            return connection, response

        response = await self._retry(send, what)
        if isinstance(response, kind) and response.code == ResponseCode.SUCCESS:
            return response
        raise rejected_error(self.group, f"a request {what}", "its leader", response)

    async def members(
        self, action: str = LIST, member_id: str = "", new_id: str = "", address: str = ""
    ) -> GroupMembers:
        """The leader's list of members, after a change if one is given. Raises GroupError if it was rejected."""
        what = f"to {action} {member_id}" if action != LIST else "for the members"

        def request(connection: MemberConnection) -> MembersRequest:
            if not connection.is_binary:
                text = f"group {self.group}: {connection.member_id} is a Java member: its group has fixed members"
                raise GroupError(text, ResponseCode.UNSUPPORTED)
            made = MembersRequest(group=self.group, remote_id=connection.member_id, action=action, member_id=member_id)
            made.new_id, made.address = new_id, address
            return made

        response = await self._request_leader(request, what)
        if not isinstance(response, MembersResponse) or response.code != ResponseCode.SUCCESS:
            if isinstance(response, MembersResponse) and response.reason:
                text = f"group {self.group}: the leader rejected a request {what}: {response.reason}"
                raise GroupError(text, int(response.code))
            raise rejected_error(self.group, f"a request {what}", "its leader", response)
        try:
            found, committed, _ = read_told(response.members)
        except ValueError as error:
            text = f"group {self.group}: the leader's response to a request {what} is unreadable: {error}"
            raise GroupError(text, ResponseCode.INTERNAL_ERROR) from None
        self._members.learn(found.addresses)
        is_committed = found.index <= committed
        return GroupMembers(found.index, dict(found.voters), dict(found.learners), found.leaving, is_committed)

    async def read(self, first_index: int, node_id: str | None, max_bytes: int, wait_ms: int) -> CommittedRange:
        """Committed entries of that member, by default of the first member of this package that responds."""
        problems: list[GroupError] = []
        for member_id in [node_id] if node_id is not None else self._members.ids_leader_first():
            try:
                return await self._read(first_index, member_id, max_bytes, wait_ms)
            except GroupError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        reasons = "; ".join(map(str, problems))
        raise GroupError(f"group {self.group}: no member to read from ({reasons})", problems[0].code)

    async def _read(self, first_index: int, node_id: str, max_bytes: int, wait_ms: int) -> CommittedRange:
        connection = await self._binary_connection(node_id)
        request = ReadRequest(
            group=self.group, remote_id=node_id, first_index=first_index, max_bytes=max_bytes, wait_ms=wait_ms
        )
        response = await self._checked_request(
            connection, request, ReadResponse, f"to read from index {first_index}", wait_ms / 1000
        )
        if response.count and (problem := _entries_problem(response, first_index)) is not None:
            raise self._other_entries_error(node_id, f"entries from index {first_index} on", problem)
        return CommittedRange(
            first_index, response.count, response.begin_index, response.committed_index, response.data
        )

    async def transfer(self, node_id: str) -> None:
        """Make a member the leader. Raises GroupError if that was rejected, UnknownOutcomeError if that is unknown."""
        await self._members.leader()
        if node_id not in self._members.addresses:
            raise OptionError(f"expected one of {', '.join(self._members.addresses)} to transfer to, found {node_id!r}")
        response = await self._retry(lambda: self._transfer(node_id), f"a transfer to {node_id}")
        if response is not None and response.code != ResponseCode.SUCCESS:
            raise rejected_error(self.group, f"a transfer of leadership to {node_id}", "its leader", response)

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
            response = await connection.request(request, max(_TRANSFER_TIMEOUT, self._members.timeout))
        except (LostError, TimeoutError) as error:
            raise unknown_transfer_error(self.group, leader_id, node_id, str(error), ResponseCode.TIMEOUT) from None
        except asyncio.CancelledError:
            reason = "the client closed before the response"
            raise unknown_transfer_error(self.group, leader_id, node_id, reason, ResponseCode.NETWORK_ERROR) from None
        finally:
            self._members.forget_leader(leader_id)
        if response.code != ResponseCode.SUCCESS and may_transfer(response):
            code, named = int(response.code), leader_named(response)
            raise unknown_transfer_error(self.group, leader_id, node_id, code_name(response), code, named)
        return connection, response

    async def _term_of(self, connection: MemberConnection) -> int:
        """The term of a leader, which a transfer request needs. Java returns it in the response to a vote request."""
        member_id = connection.member_id
        if connection.is_binary:
            request: Request = StatusRequest(group=self.group, remote_id=member_id)
        else:
            request = VoteRequest(
                group=self.group, remote_id=member_id, local_id=_NO_MEMBER_ID, leader_id=_NO_MEMBER_ID
            )
        response = await self._request(connection, request)
        if not isinstance(response, (StatusResponse, VoteResponse)) or response.code != ResponseCode.SUCCESS:
            raise rejected_error(self.group, "a request for its term", member_id, response)
        return response.term

    # Sending

    async def _request_leader(self, make_request: Callable[[MemberConnection], Request], what: str) -> AnyResponse:
        async def send() -> tuple[MemberConnection, AnyResponse]:
            connection = await self._members.leader()
            return connection, await self._request(connection, make_request(connection))

        return await self._retry(send, what)

    async def _retry(
        self, send: Callable[[], Awaitable[tuple[MemberConnection, MaybeResponse]]], what: str
    ) -> MaybeResponse:
        """Repeat a request without side effects while its error is temporary, or it gets no response."""
        failure: GroupError | None = None
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(backoff(attempt, _MIN_PAUSE, _MAX_PAUSE))
            try:
                connection, response = await send()
            except GroupError as error:
                if error.code in _PERMANENT_CODES:
                    raise
                failure = self._members.with_total_time(error, loop.time() - begun)
                if self._members.is_unreachable(attempt + 1):
                    break
                continue
            if response is None or not is_temporary(response):
                return response
            if response.code in LEADER_MOVED:
                self._members.forget_leader(connection.member_id)
            failure = rejected_error(self.group, f"a request {what}", connection.member_id, response, attempt + 1)
        assert failure is not None
        raise failure

    async def _request(self, connection: MemberConnection, request: Request, extra_time: float = 0.0) -> AnyResponse:
        """The response of a member. Raises GroupError if there is none, or if the request cannot be sent."""
        try:
            return await connection.request(request, self._members.timeout + extra_time)
        except EncodeError as error:
            raise GroupError(f"group {self.group}: {error}", ResponseCode.UNEXPECTED_ARGUMENT) from None
        except (LostError, TimeoutError) as error:
            self._members.forget_leader(connection.member_id)
            text = f"group {self.group}: no response of {connection.member_id}: {error}"
            raise GroupError(text, ResponseCode.NETWORK_ERROR) from None

    async def _checked_request(
        self, connection: MemberConnection, request: Request, kind: type[AnyKind], what: str, extra_time: float = 0.0
    ) -> AnyKind:
        response = await self._request(connection, request, extra_time)
        if isinstance(response, kind) and response.code == ResponseCode.SUCCESS:
            return response
        if response.code in _ABSENT and isinstance(request, ReadRequest):
            raise self._absent_error(request.first_index, response)
        raise rejected_error(self.group, what, connection.member_id, response)

    async def _binary_connection(self, node_id: str) -> MemberConnection:
        try:
            connection = await self._members.connection(node_id)
        except (LostError, TimeoutError) as error:
            text = f"group {self.group}: cannot reach {node_id}: {error}"
            raise GroupError(text, ResponseCode.NETWORK_ERROR) from None
        if not connection.is_binary:
            raise GroupError(
                f"group {self.group}: expected a node of pyspark_dledger, found {node_id} to be a Java node, which "
                "reports neither its status nor what is committed",
                ResponseCode.UNSUPPORTED,
            )
        return connection


def _entries_problem(response: ReadResponse, first_index: int) -> str | None:
    """Why the data is not ``count`` intact entries from that index on; None if it is."""
    engine = get_engine()
    try:
        pos = decode_entry_header(bytes(response.data[:ENTRY_HEADER_SIZE])).pos
        checked = engine.check_entries(response.data, first_index, pos, 0, INT64_MAX)
    except ValueError as error:
        return str(error)
    if checked.count != response.count:
        return f"{checked.count} entries that count as {response.count}"
    if engine.find_wrong_body(response.data) is not None:
        return "a body that does not match its checksum"
    return None
