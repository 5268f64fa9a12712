"""How much memory responses can take."""

from __future__ import annotations

from pyspark_dledger.common.summary_part import MAX_SUMMARY_PART
from pyspark_dledger.format.encode.encoded import MAX_STATE_IDS
from pyspark_dledger.raft.messages import (
    POSITION_SIZE,
    ConfigRequest,
    GetRequest,
    ProducerRequest,
    PutRequest,
    Request,
    SummaryRequest,
    TopicsRequest,
)
from pyspark_dledger.raft.wire import MAX_FRAME_SIZE, Refusal

# The maximum of a response with one entry, also in base64.
_ENTRY_BYTES = 6 * 1024 * 1024
_TOPIC_BYTES = 512


def max_response_size(request: Request | Refusal) -> int:
    """The maximum size of a response that is made at once, in bytes; 0 for small ones."""
    if isinstance(request, GetRequest):
        return _ENTRY_BYTES
    if isinstance(request, ConfigRequest):
        return MAX_FRAME_SIZE
    if isinstance(request, SummaryRequest):
        return MAX_SUMMARY_PART
    if isinstance(request, ProducerRequest):
        return MAX_STATE_IDS if request.from_index >= 0 else 0
    if isinstance(request, PutRequest):
        return request.bodies.count * POSITION_SIZE
    return len(request.names) * _TOPIC_BYTES if isinstance(request, TopicsRequest) else 0
