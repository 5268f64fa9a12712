"""The ``PutMessageStatus`` that a broker of some version returns for a ``DLedgerResponseCode``.

Sources: RocketMQ 4.5.1 to 5.3.3 ``DLedgerCommitLog.putMessage`` and ``asyncPutMessage``, ``PutMessageStatus``.
"""

from __future__ import annotations

import re

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.layout import MAX_TOPIC_SIZE, MAX_V1_TOPIC_SIZE

PUT_OK = "PUT_OK"
SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
UNKNOWN_ERROR = "UNKNOWN_ERROR"
MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"

_VERSION = re.compile(r"([45])\.([0-9]{1,3})(?:\.([0-9]{1,3}))?(-[A-Za-z]+)?")
_NOT_AVAILABLE = (
    ResponseCode.INCONSISTENT_LEADER,
    ResponseCode.NOT_LEADER,
    ResponseCode.LEADER_NOT_READY,
    ResponseCode.DISK_FULL,
)


class BrokerVersion:
    """What differs between versions of RocketMQ. Raises OptionError for an unknown version."""

    def __init__(self, version: str) -> None:
        found = _VERSION.fullmatch(version)
        if found is None:
            raise OptionError(f"expected a version of RocketMQ such as 4.9.8 or 5.3.3, found {version!r}")
        self._number = (int(found[1]), int(found[2]), int(found[3] or 0))
        # 5.0.0-ALPHA and -PREVIEW have the names of 4.9.
        self._is_5 = self._number >= (5, 0, 0) and not (found[4] and self._number == (5, 0, 0))

    @property
    def max_topic_size(self) -> int:
        """In bytes: from 5.1 on longer topics have a message format of their own (V2)."""
        return MAX_TOPIC_SIZE if self._number >= (5, 1, 0) else MAX_V1_TOPIC_SIZE

    @property
    def has_trailing_separator(self) -> bool:
        """Whether properties end with 0x02: up to 4.9.1, and from 5.2.0 on."""
        return self._number <= (4, 9, 1) or self._number >= (5, 2, 0)

    def status(self, code: int, is_appended: bool) -> str:
        """The ``PutMessageStatus`` of a code. Before the append, any rejection is a busy page cache to a broker."""
        page_cache_busy = "OS_PAGE_CACHE_BUSY" if self._is_5 else "OS_PAGECACHE_BUSY"
        if code == ResponseCode.SUCCESS:
            return PUT_OK
        if not is_appended or code == ResponseCode.LEADER_PENDING_FULL:
            return page_cache_busy
        if code == ResponseCode.WAIT_QUORUM_ACK_TIMEOUT:
            return IN_SYNC_REPLICAS_NOT_ENOUGH if self._is_5 else page_cache_busy
        return SERVICE_NOT_AVAILABLE if code in _NOT_AVAILABLE else UNKNOWN_ERROR


def put_message_status(code: int, is_appended: bool, version: str) -> str:
    """The name of the ``PutMessageStatus`` of a ``DLedgerResponseCode``, in a broker of a version.

    ``is_appended``: whether the leader had appended the message before this response. Raises OptionError for an unknown
    version.
    """
    return BrokerVersion(version).status(code, is_appended)
