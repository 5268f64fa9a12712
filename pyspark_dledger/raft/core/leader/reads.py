"""Entries that clients get from a leader."""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.replication import Replication
from pyspark_dledger.raft.core.member import DISK_FAILURES, Member
from pyspark_dledger.raft.messages import GetRequest, GetResponse


class Reads:
    """Answers GET: as Java does, or only with what is committed."""

    def __init__(self, member: Member, replication: Replication, heartbeats: Heartbeats) -> None:
        self._member = member
        self._replication = replication
        self._heartbeats = heartbeats

    def handle(self, request: GetRequest, token: object) -> None:
        member, index = self._member, request.begin_index
        if not member.is_leader:
            self._refuse(request, token, ResponseCode.NOT_LEADER)
        elif not request.is_committed or index <= member.store.committed_index:
            self._entry(request, token)
        elif not self._replication.knows_commits:
            self._refuse(request, token, ResponseCode.LEADER_NOT_READY)
        else:
            # Absent here: but is this still the leader? Nobody can have committed it elsewhere if it is.
            self._heartbeats.when_confirmed(lambda is_confirmed: self._confirmed(request, token, is_confirmed))

    def _confirmed(self, request: GetRequest, token: object, is_confirmed: bool) -> None:
        member = self._member
        if not member.is_leader:
            self._refuse(request, token, ResponseCode.NOT_LEADER)
        elif request.begin_index <= member.store.committed_index:
            self._entry(request, token)
        elif is_confirmed:
            self._refuse(request, token, ResponseCode.INDEX_OUT_OF_RANGE)
        else:
            self._refuse(request, token, ResponseCode.LEADER_NOT_READY)

    def _entry(self, request: GetRequest, token: object) -> None:
        member, index = self._member, request.begin_index
        try:
            entry = member.store.get(index)
        except IndexRangeError:
            is_below = 0 <= index < member.store.ledger_begin_index
            code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN if is_below else ResponseCode.INDEX_OUT_OF_RANGE
            self._refuse(request, token, code)
            return
        except DISK_FAILURES as error:
            member.problem(f"entry {index} cannot be read: {error}")
            self._refuse(request, token, ResponseCode.DISK_ERROR)
            return
        member.reply(token, GetResponse(group=member.group, entries=[entry]))

    def _refuse(self, request: GetRequest, token: object, code: ResponseCode) -> None:
        self._member.refuse(token, request, GetResponse(), code)
