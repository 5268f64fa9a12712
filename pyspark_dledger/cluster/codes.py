"""Codes of RocketMQ's requests and responses (``RequestCode`` and ``ResponseCode`` of 5.3.3)."""

from __future__ import annotations

from enum import IntEnum

PULL_MESSAGE = 11
QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
SEARCH_OFFSET_BY_TIMESTAMP = 29
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_ROUTE_OF_TOPIC = 105
GET_ALL_TOPICS = 206
SEND_MESSAGE = 310
SEND_BATCH = 320


class BrokerCode(IntEnum):
    """What a name server or a broker responds."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FLOW_CONTROL = 215
    GO_AWAY = 1500


REJECTIONS = frozenset({
    BrokerCode.REQUEST_CODE_NOT_SUPPORTED,
    BrokerCode.NO_PERMISSION,
    BrokerCode.SUBSCRIPTION_PARSE_FAILED,
    BrokerCode.SUBSCRIPTION_NOT_EXIST,
    BrokerCode.SUBSCRIPTION_GROUP_NOT_EXIST,
})  # fmt: skip
"""A retry gets the same response."""

RETRIED = frozenset({
    BrokerCode.SYSTEM_ERROR,
    BrokerCode.SYSTEM_BUSY,
    BrokerCode.SERVICE_NOT_AVAILABLE,
    BrokerCode.FLOW_CONTROL,
    BrokerCode.GO_AWAY,
})  # fmt: skip
"""A server that says so may do later what is asked for."""


def code_name(code: int) -> str:
    """``TOPIC_NOT_EXIST (17)``, or the number of an unknown code."""
    try:
        return f"{BrokerCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
