"""The layouts of the binary dialect, as tables. All integers are big-endian.

A frame's header is `COMMON`, then the message's own fields (`OWN`), then the texts of every message (`COMMON_TEXTS`)
and the message's own (`OWN_TEXTS`). A text is its length in bytes (u16), then UTF-8; length 65535 is null. `BODIES`
describes the frame's body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from pyspark_dledger.raft.messages import PushType, RequestCode, Role, VoteResult

VERSION = 1

FLAG_RESPONSE = 1
FLAG_ONE_WAY = 2
FLAG_REFUSAL = 4

NO_TEXT = 0xFFFF

PUSH_TYPES = (PushType.APPEND, PushType.COMMIT, PushType.COMPARE, PushType.TRUNCATE)
VOTE_RESULTS = tuple(VoteResult)
ROLES = (Role.CANDIDATE, Role.FOLLOWER, Role.LEADER)
"""Enums are sent as their index in these tuples."""


class WireField(NamedTuple):
    """One field of a fixed layout: name, `struct` format, meaning. An index, pos or term of -1 means none."""

    name: str
    format: str
    meaning: str = ""


def _numbered(kinds: Sequence[Enum]) -> str:
    return ", ".join(f"{number} {kind.name}" for number, kind in enumerate(kinds))


COMMON = (
    WireField("version", "B", "1"),
    WireField("flags", "B", "1 response, 2 one-way, 4 refusal"),
    WireField("requestCode", "H", "a response repeats it"),
    WireField("opaque", "i", "a response repeats it"),
    WireField("code", "i", "response code; remoting code of a refusal"),
    WireField("term", "q"),
)
COMMON_TEXTS = ("group", "remoteId", "localId", "leaderId")

# (request code, whether it is the response) -> own fields
OWN: dict[tuple[int, bool], tuple[WireField, ...]] = {
    (RequestCode.METADATA, False): (),
    (RequestCode.METADATA, True): (WireField("peers", "H"),),
    (RequestCode.APPEND, False): (
        WireField("count", "I"),
        WireField("isRestart", "B", "1 restarts a rejected pipeline"),
    ),
    (RequestCode.APPEND, True): (
        WireField("index", "q", "of the first entry"),
        WireField("pos", "q", "of the first entry"),
        WireField("count", "I", "entries appended"),
    ),
    (RequestCode.GET, False): (
        WireField("beginIndex", "q"),
        WireField("isCommitted", "B", "1: a committed entry only"),
    ),
    (RequestCode.GET, True): (WireField("count", "I"),),
    (RequestCode.VOTE, False): (
        WireField("ledgerEndIndex", "q"),
        WireField("ledgerEndTerm", "q"),
    ),
    (RequestCode.VOTE, True): (
        WireField("voteResult", "B", _numbered(VOTE_RESULTS)),
        WireField("isWithoutLog", "B", "1: the vote of a member that lost its disk"),
    ),
    (RequestCode.HEART_BEAT, False): (),
    (RequestCode.HEART_BEAT, True): (),
    (RequestCode.PUSH, False): (
        WireField("type", "B", _numbered(PUSH_TYPES)),
        WireField("commitIndex", "q"),
        WireField("firstIndex", "q"),
        WireField("count", "I"),
    ),
    (RequestCode.PUSH, True): (
        WireField("hasIndex", "B", "0 for COMMIT"),
        WireField("index", "q", "the request's firstIndex"),
        WireField("count", "I", "the request's"),
        WireField("beginIndex", "q", "the follower's first"),
        WireField("endIndex", "q", "the follower's last"),
    ),
    (RequestCode.LEADERSHIP_TRANSFER, False): (WireField("takeLeadershipLedgerIndex", "q"),),
    (RequestCode.LEADERSHIP_TRANSFER, True): (),
    (RequestCode.STATUS, False): (),
    (RequestCode.STATUS, True): (
        WireField("role", "B", _numbered(ROLES)),
        WireField("beginIndex", "q"),
        WireField("endIndex", "q"),
        WireField("endTerm", "q"),
        WireField("committedIndex", "q"),
        WireField("peers", "H"),
        WireField("servesMessages", "B", "1 if it does as leader"),
    ),
    (RequestCode.READ, False): (
        WireField("firstIndex", "q"),
        WireField("maxBytes", "I", "of entries in the response"),
        WireField("waitMs", "I", "for the first entry"),
    ),
    (RequestCode.READ, True): (
        WireField("firstIndex", "q"),
        WireField("count", "I"),
        WireField("beginIndex", "q", "the member's first"),
        WireField("committedIndex", "q"),
    ),
    (RequestCode.TOPICS, False): (
        WireField("names", "H"),
        WireField("queueNums", "I", "of new topics"),
    ),
    (RequestCode.TOPICS, True): (WireField("topics", "H"),),
    (RequestCode.PUT_MESSAGES, False): (
        WireField("count", "I"),
        WireField("isRestart", "B", "1 restarts a rejected pipeline"),
        WireField("queueNums", "I", "of new topics"),
    ),
    (RequestCode.PUT_MESSAGES, True): (
        WireField("index", "q", "of the first new entry"),
        WireField("pos", "q", "of the first new entry"),
        WireField("count", "I", "messages of the request"),
    ),
    (RequestCode.CONFIG, False): (),
    (RequestCode.CONFIG, True): (WireField("files", "H"),),
    (RequestCode.SUMMARY, False): (
        WireField("beginIndex", "q"),
        WireField("snapshot", "q", "0: a new one"),
        WireField("offset", "q"),
    ),
    (RequestCode.SUMMARY, True): (
        WireField("snapshot", "q"),
        WireField("offset", "q"),
        WireField("size", "q"),
    ),
    (RequestCode.IDENTITY, False): (),
    (RequestCode.IDENTITY, True): (),
    (RequestCode.MEMBERS, False): (),
    (RequestCode.MEMBERS, True): (),
    (RequestCode.PRODUCER, False): (
        WireField("run", "I"),
        WireField("fromIndex", "q"),
    ),
    (RequestCode.PRODUCER, True): (
        WireField("count", "q"),
        WireField("otherRuns", "q"),
        WireField("lastNumber", "q"),
        WireField("nextIndex", "q"),
    ),
}
OWN_TEXTS: dict[tuple[int, bool], tuple[str, ...]] = {
    (RequestCode.LEADERSHIP_TRANSFER, False): ("transferId", "transfereeId"),
    (RequestCode.TOPICS, True): ("reason",),
    (RequestCode.PUT_MESSAGES, True): ("reason",),
    (RequestCode.IDENTITY, False): ("clusterId",),
    (RequestCode.IDENTITY, True): ("clusterId",),
    (RequestCode.MEMBERS, False): ("action", "memberId", "newId", "address"),
    (RequestCode.MEMBERS, True): ("members", "reason"),
    (RequestCode.PRODUCER, True): ("reason",),
}
"""Texts after those of every message. A refusal has only `COMMON` and one text, its remark."""

PEERS_BODY = "`peers` times two texts: id, address"
ENTRIES_BODY = "`count` entries"
APPEND_BODY = "`count` lengths (u32), then the bodies"
BODIES: dict[tuple[int, bool], str] = {
    (RequestCode.METADATA, True): PEERS_BODY,
    (RequestCode.APPEND, False): APPEND_BODY,
    (RequestCode.APPEND, True): "index (i64) and pos (i64) of the first entry of each consecutive run",
    (RequestCode.GET, True): ENTRIES_BODY,
    (RequestCode.PUSH, False): ENTRIES_BODY,
    (RequestCode.STATUS, True): PEERS_BODY + "; then a text: the latest problem, or empty",
    (RequestCode.READ, True): ENTRIES_BODY,
    (RequestCode.TOPICS, False): "`names` texts",
    (
        RequestCode.TOPICS,
        True,
    ): "`topics` queue counts (u32), then the names as texts, then storeHost (0, 8 or 20 bytes)",
    (RequestCode.PUT_MESSAGES, False): APPEND_BODY,
    (RequestCode.PUT_MESSAGES, True): "nothing, or `count` times index, pos and queueOffset (i64)",
    (RequestCode.CONFIG, True): "`files` sizes (u32), then the names as texts, then the contents",
    (RequestCode.SUMMARY, True): "bytes of the snapshot",
    (RequestCode.PRODUCER, False): "producer",
    (RequestCode.PRODUCER, True): "identities",
}
"""The frame's body; other messages have none."""


def fixed_struct(own: tuple[WireField, ...] = ()) -> struct.Struct:
    """The struct of `COMMON` and own fields."""
    return struct.Struct(">" + "".join(field.format for field in (*COMMON, *own)))
