"""A leader's responses about the messages of a producer."""

from __future__ import annotations

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.format.encode.encoded import RejectedError
from pyspark_dledger.raft.core.application_caller import ApplicationCaller
from pyspark_dledger.raft.core.leader.commit_index import CommitIndex
from pyspark_dledger.raft.core.leader.heartbeats import Heartbeats
from pyspark_dledger.raft.core.leader.noop import Noop
from pyspark_dledger.raft.core.member import Member
from pyspark_dledger.raft.messages import ProducerRequest, ProducerResponse


class ProducerReads:
    """Returns the state of a producer, with all messages that were acknowledged before the request."""

    def __init__(
        self,
        member: Member,
        application: ApplicationCaller,
        noop: Noop,
        commit_index: CommitIndex,
        heartbeats: Heartbeats,
    ) -> None:
        self._member = member
        self._application = application
        self._noop = noop
        self._commit_index = commit_index
        self._heartbeats = heartbeats

    def handle(self, request: ProducerRequest, token: object) -> None:
        self._application.check_leads()
        if self._commit_index.is_known:
            self._heartbeats.confirm_leadership(lambda is_confirmed: self._confirmed(request, token, is_confirmed))
        else:
            # Nothing else may be appended that commits the entries of earlier terms.
            self._noop.append()
            raise RejectedError(ResponseCode.LEADER_NOT_READY)

    def _confirmed(self, request: ProducerRequest, token: object, is_confirmed: bool) -> None:
        member = self._member
        try:
            self._application.check_leads()
            if not is_confirmed:
                raise RejectedError(ResponseCode.LEADER_NOT_READY)
            found = self._application.producer(request)
            if found.last_index > member.store.committed_index:
                raise RejectedError(ResponseCode.LEADER_NOT_READY)
        except RejectedError as rejected:
            member.reject(token, request, rejected)
            return
        response = ProducerResponse(
            group=member.group,
            leader_id=member.leader_id,
            term=member.term,
            count=found.count,
            other_runs=found.other_runs,
            last_number=found.last_number,
            next_index=found.next_index,
            ids=found.ids,
        )
        member.reply(token, response)
