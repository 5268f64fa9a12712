"""The events of many seeds, and those that must happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

# Without these events the simulation would prove little.
EXPECTED = (
    "elections won",
    "leaders that stepped down",
    "truncations",
    "conflicting entries replaced by committed ones",
    "resets",
    "resets of a log with entries",
    "logs with expired entries",
    "replaced disks",
    "restored backups",
    "summaries taken",
    "commits of older terms, on all members",
    "crashes",
    "crashes that lost entries",
    "orderly restarts",
    "power cut before append",
    "power cut after append",
    "power cut before save_term",
    "power cut after save_term",
    "disk full",
    "disk failed in append",
    "disk failed in save_term",
    "disk failed in save_members",
    "power cut before save_members",
    "power cut after save_members",
    "messages lost",
    "messages duplicated",
    "messages reordered",
    "messages lost in a partition",
    "batches pushed",
    "COMPARE responses 200",
    "COMPARE responses 406",
    "TRUNCATE responses 200",
    "APPEND responses 200",
    "APPEND responses 406",
    "COMMIT responses 200",
    "HeartBeatRequest responses 200",
    "HeartBeatRequest responses 403",
    "HeartBeatRequest responses 416",
    "VoteRequest responses ACCEPT",
    "VoteRequest responses REJECT_ALREADY_HAS_LEADER",
    "VoteRequest responses REJECT_ALREADY_VOTED",
    "VoteRequest responses REJECT_EXPIRED_VOTE_TERM",
    "VoteRequest responses REJECT_EXPIRED_LEDGER_TERM",
    "VoteRequest responses REJECT_SMALL_LEDGER_END_INDEX",
    "TransferRequest responses 200",
    "TransferResponse 200",
    "TransferResponse 418",
    "appends acknowledged",
    "append responses 404",
    "append responses 415",
    "append responses 501",
    "append responses 502",
    "append responses 503",
    "append responses 506",
    "puts acknowledged",
    "puts of duplicates only",
    "puts with some duplicates",
    "put responses 404",
    "put responses 415",
    "put responses 501",
    "put responses 502",
    "put responses 503",
    "put responses 505",
    "put responses 506",
    "committed read responses 200",
    "committed read responses 404",
    "committed read responses 410",
    "committed read responses 419",
    "committed read responses 505",
    "committed reads from a former leader",
    "READ responses 200",
    "READ responses 419",
    "READs of several entries",
    "READs that waited for memory",
    "flipped bits of a body",
    "flipped bits of a header",
    "flipped bits of a unit",
    "damage found by a read",
    "damaged entries repaired",
    "partial appends removed from a full disk",
    "partial appends that stay on a full disk",
    "entries of failed appends in the log",
    "fsyncs that failed",
    "fault: clock forward",
    "fault: clock back",
    "cluster ids saved",
    "NOOPs committed",
    "learners added",
    "replacements begun",
    "voters changed",
    "MembersResponse 200",
    "MembersResponse 411",
    "MembersResponse 505",
    "starts with other members refused",
    "requests of strangers refused",
    "requests of hostile peers handled",
)
# Not certain in a few hundred seeds.
RARE = (
    "fillers",
    "starts with damage refused",
    "damaged disks replaced",
    "wrong indexes deleted",
    "messages between other peer lists refused",
    "power cut before truncate",
    "power cut after truncate",
    "power cut after reset",
    "resets undone by a crash",
    "disk failed in truncate",
    "disk failed in reset",
)


# With the real store, on disks that lose power.
ON_DISK = (
    "appends acknowledged",
    "conflicting entries replaced by committed ones",
    "crashes",
    "damaged disks replaced",
    "elections won",
    "flipped bits of state files",
    "fsyncs that failed",
    "logs with expired entries",
    "orderly restarts",
    "partial appends on a full disk",
    "power losses in a start",
    "power losses that lost no entries",
    "power losses that lost some entries",
    "resets",
    "resets of a log with entries",
    "starts with a damaged state file refused",
    "truncations",
)


def missing_events(counts: Counter[str], *, is_long: bool = False, is_on_disk: bool = False) -> list[str]:
    """Expected events that never happened; with `is_long` also rare ones."""
    expected = ON_DISK if is_on_disk else (*EXPECTED, *(RARE if is_long else ()))
    return [event for event in expected if not counts[event]]


def table(counts: Counter[str]) -> Iterator[str]:
    """One line for each event."""
    for event in sorted({*counts, *EXPECTED, *RARE}):
        yield f"{counts[event]:>12,}  {event}"
