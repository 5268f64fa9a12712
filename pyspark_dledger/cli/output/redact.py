"""Redacts rows for sharing: data of applications and networks becomes digests, everything else stays.

The key of the digests is random and never stored. Within a run equal values have equal digests, so messages can be
matched. After the run nobody can test a guess of a value.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from pyspark_dledger.format.facts import ProblemCode

# Texts that do not come from applications, and times. Texts of other columns are replaced.
_TEXTS = frozenset(("kind", "source", "problem", "segment", "transaction", "compression", "severity", "code", "node"))
_TIMES = ("Timestamp", "epochs")
# Numbers that would confirm a guess of the data they are computed from. Other numbers stay.
_PROOFS = frozenset(("messageCrc", "bodyCrc", "chainCrc", "tagsCode", "keyHash"))
# So do the checksums in the sentences of these problems.
_CHECKSUMS = {
    re.compile(re.escape(code.sentence).replace(r"\{expected\}", r"-?\d+").replace(r"\{found\}", r"-?\d+")): (
        code.sentence.format(expected="redacted", found="another")
    )
    for code in (ProblemCode.BODY_CRC, ProblemCode.MESSAGE_CRC, ProblemCode.PROPERTY_CRC)
}
# RocketMQ's own property names (MessageConst); those of applications are replaced.
_PROPERTY_NAMES = frozenset(
    (
        *("KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET"),
        *("MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "CLUSTER"),
        *("RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES"),
        *("CONSUME_START_TIME", "INNER_NUM", "INNER_BASE", "DUP_INFO", "__CRC32#", "INSTANCE_ID", "__SHARDINGKEY"),
        *("CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"),
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_DELAY_MS"),
        *("TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
    )
)
_KEY_BYTES = 32
_DIGEST_BYTES = 8


def redactor(keep: Iterable[str] = ()) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that replaces values of rows by ``redacted:DIGEST:LENGTH``; the columns of `keep` stay as they are."""
    key = secrets.token_bytes(_KEY_BYTES)
    kept = frozenset(keep)

    def digest(value: object) -> str | None:
        if value is None:
            return None
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        return f"redacted:{hashlib.blake2b(data, key=key, digest_size=_DIGEST_BYTES).hexdigest()}:{len(data)}"

    def replaced(name: str, value: object) -> object:
        if value is None or name in kept or _stays(name, value):
            return _without_checksums(value) if isinstance(value, str) else value
        if isinstance(value, dict):
            return {own if own in _PROPERTY_NAMES else digest(own): digest(item) for own, item in value.items()}
        return [digest(item) for item in value] if isinstance(value, (list, tuple)) else digest(value)

    return lambda row: {name: replaced(name, value) for name, value in row.items()}


def _without_checksums(text: str) -> str:
    for checksums, redacted in _CHECKSUMS.items():
        text = checksums.sub(redacted, text)
    return text


def _stays(name: str, value: object) -> bool:
    if isinstance(value, (int, float)):
        return name not in _PROOFS
    return name in _TEXTS or name.endswith(_TIMES)
