"""A leader's handling of GET."""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.format.codec import decode_entry_header, header_kind
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import GetRequest, GetResponse
from pyspark_dledger.store.dledger_store import Entry, EntryRange


class Reads:
    """Returns entries: as Java does, or only committed ones."""

    def __init__(self, member: Member, commit_index: CommitIndex, heartbeats: Heartbeats) -> None:
        self._member = member
        self._commit_index = commit_index
        self._heartbeats = heartbeats

    def handle(self, request: GetRequest, token: object) -> None:
        member, index = self._member, request.begin_index
        if not member.is_leader:
            self._reject(request, token, ResponseCode.NOT_LEADER)
        elif not request.is_committed or index <= member.store.committed_index:
            self._entry(request, token)
        elif not self._commit_index.is_known:
            self._reject(request, token, ResponseCode.LEADER_NOT_READY)
        else:
            # The entry is absent here. If this member still leads, no other member can have committed it.
            self._heartbeats.confirm_leadership(lambda is_confirmed: self._confirmed(request, token, is_confirmed))

    def _confirmed(self, request: GetRequest, token: object, is_confirmed: bool) -> None:
        member = self._member
        if not member.is_leader:
            self._reject(request, token, ResponseCode.NOT_LEADER)
        elif request.begin_index <= member.store.committed_index:
            self._entry(request, token)
        elif is_confirmed:
            self._reject(request, token, ResponseCode.INDEX_OUT_OF_RANGE)
        else:
            self._reject(request, token, ResponseCode.LEADER_NOT_READY)

    def _entry(self, request: GetRequest, token: object) -> None:
        store = self._member.store
        if not store.is_recent(request.begin_index):
            self._member.load(request.begin_index, 1, self._loaded, (request, token))
            return
        try:
            self._reply(token, store.get(request.begin_index))
        except DISK_FAILURES as error:
            self._fail(request, token, error)

    def _loaded(self, asked: tuple[GetRequest, object], result: EntryRange | Exception) -> None:
        request, token = asked
        if not self._member.is_leader:
            self._reject(request, token, ResponseCode.NOT_LEADER)
        elif isinstance(result, Exception):
            self._fail(request, token, result)
        else:
            header = decode_entry_header(bytes(result.data[:ENTRY_HEADER_SIZE]))
            body = bytes(result.data[ENTRY_HEADER_SIZE : header.size])
            self._reply(
                token, Entry(result.first_index, header.term, result.pos, header.magic, body, header_kind(header))
            )

    def _reply(self, token: object, entry: Entry) -> None:
        self._member.reply(token, GetResponse(group=self._member.group, entries=[entry]))

    def _fail(self, request: GetRequest, token: object, error: Exception) -> None:
        member, index = self._member, request.begin_index
        if isinstance(error, IndexRangeError):
            is_expired = 0 <= index < member.store.ledger_begin_index
            code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN if is_expired else ResponseCode.INDEX_OUT_OF_RANGE
        elif isinstance(error, DISK_FAILURES):
            member.report_problem(f"entry {index} cannot be read: {error}")
            code = ResponseCode.DISK_ERROR
        else:
            raise error
        self._reject(request, token, code)

    def _reject(self, request: GetRequest, token: object, code: ResponseCode) -> None:
        self._member.reject(token, request, RejectedError(code))
