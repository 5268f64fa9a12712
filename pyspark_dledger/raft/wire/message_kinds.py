"""The request code of each request and response class."""

from __future__ import annotations

from pyspark_dledger.raft import messages as m
from pyspark_dledger.raft.messages import RequestCode

REQUESTS: dict[int, type[m.Request]] = {
    RequestCode.METADATA: m.MetadataRequest,
    RequestCode.APPEND: m.AppendRequest,
    RequestCode.GET: m.GetRequest,
    RequestCode.VOTE: m.VoteRequest,
    RequestCode.HEART_BEAT: m.HeartBeatRequest,
    RequestCode.PUSH: m.PushRequest,
    RequestCode.LEADERSHIP_TRANSFER: m.TransferRequest,
    RequestCode.STATUS: m.StatusRequest,
    RequestCode.READ: m.ReadRequest,
    RequestCode.TOPICS: m.TopicsRequest,
    RequestCode.PUT_MESSAGES: m.PutRequest,
    RequestCode.CONFIG: m.ConfigRequest,
    RequestCode.SUMMARY: m.SummaryRequest,
    RequestCode.IDENTITY: m.IdentityRequest,
    RequestCode.MEMBERS: m.MembersRequest,
    RequestCode.PRODUCER: m.ProducerRequest,
}
RESPONSES: dict[int, type[m.Response]] = {
    RequestCode.METADATA: m.MetadataResponse,
    RequestCode.APPEND: m.AppendResponse,
    RequestCode.GET: m.GetResponse,
    RequestCode.VOTE: m.VoteResponse,
    RequestCode.HEART_BEAT: m.HeartBeatResponse,
    RequestCode.PUSH: m.PushResponse,
    RequestCode.LEADERSHIP_TRANSFER: m.TransferResponse,
    RequestCode.STATUS: m.StatusResponse,
    RequestCode.READ: m.ReadResponse,
    RequestCode.TOPICS: m.TopicsResponse,
    RequestCode.PUT_MESSAGES: m.PutResponse,
    RequestCode.CONFIG: m.ConfigResponse,
    RequestCode.SUMMARY: m.SummaryResponse,
    RequestCode.IDENTITY: m.IdentityResponse,
    RequestCode.MEMBERS: m.MembersResponse,
    RequestCode.PRODUCER: m.ProducerResponse,
}
REQUEST_CODES: dict[type[m.WireMessage], int] = {
    kind: int(code) for kinds in (REQUESTS, RESPONSES) for code, kind in kinds.items()
}
BINARY_ONLY = frozenset(
    map(
        int,
        (
            *(RequestCode.STATUS, RequestCode.READ, RequestCode.TOPICS, RequestCode.PUT_MESSAGES),
            *(RequestCode.CONFIG, RequestCode.SUMMARY, RequestCode.IDENTITY, RequestCode.MEMBERS),
            RequestCode.PRODUCER,
        ),
    )
)
