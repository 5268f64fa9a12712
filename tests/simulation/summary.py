"""What happened in many seeds, and what must not stay at zero in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

# Things without which the simulation would prove little.
EXPECTED = (
    "elections won",
    "leaders that stepped down",
    "truncations",
    "conflicting entries replaced by committed ones",
    "resets",
    "resets of a log with entries",
    "logs that expired at the front",
    "commits of older terms, held by all",
    "crashes",
    "crashes that lost entries",
    "restarts in good order",
    "power cut before append",
    "power cut after append",
    "power cut before save_term",
    "power cut after save_term",
    "disk full",
    "disk failed in append",
    "disk failed in save_term",
    "messages lost",
    "messages duplicated",
    "messages overtaken",
    "messages cut off",
    "batches pushed",
    "COMPARE answered 200",
    "COMPARE answered 406",
    "TRUNCATE answered 200",
    "APPEND answered 200",
    "APPEND answered 406",
    "COMMIT answered 200",
    "HeartBeatRequest answered 200",
    "HeartBeatRequest answered 403",
    "HeartBeatRequest answered 416",
    "VoteRequest answered ACCEPT",
    "VoteRequest answered REJECT_ALREADY_HAS_LEADER",
    "VoteRequest answered REJECT_ALREADY_VOTED",
    "VoteRequest answered REJECT_EXPIRED_VOTE_TERM",
    "VoteRequest answered REJECT_EXPIRED_LEDGER_TERM",
    "VoteRequest answered REJECT_SMALL_LEDGER_END_INDEX",
    "TransferRequest answered 200",
    "TransferResponse 200",
    "TransferResponse 418",
    "appends acknowledged",
    "appends answered 404",
    "appends answered 415",
    "appends answered 501",
    "appends answered 502",
    "appends answered 503",
    "appends answered 506",
    "puts acknowledged",
    "puts of which all was there already",
    "puts of which some was there already",
    "puts answered 404",
    "puts answered 415",
    "puts answered 501",
    "puts answered 502",
    "puts answered 503",
    "puts answered 505",
    "puts answered 506",
    "committed reads answered 200",
    "committed reads answered 404",
    "committed reads answered 410",
    "committed reads answered 419",
    "committed reads answered 505",
    "committed reads asked of a former leader",
)
# What a few hundred seeds may not meet.
RARE = (
    "fillers",
    "power cut before truncate",
    "power cut after truncate",
    "power cut after reset",
    "resets undone by a crash",
    "disk failed in truncate",
    "disk failed in reset",
)


def missing(counts: Counter[str], *, is_long: bool = False) -> list[str]:
    """What never happened; rare things count after a long simulation only."""
    return [what for what in (*EXPECTED, *(RARE if is_long else ())) if not counts[what]]


def table(counts: Counter[str]) -> Iterator[str]:
    """One line for each thing that happened or must happen."""
    for what in sorted({*counts, *EXPECTED, *RARE}):
        yield f"{counts[what]:>12,}  {what}"
