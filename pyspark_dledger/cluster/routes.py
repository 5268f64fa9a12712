"""Which brokers have a topic, as name servers say it (``TopicRouteData``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.peers import Address, parse_address
from pyspark_dledger.raft.wire.json_values import integer, text
from pyspark_dledger.raft.wire.wire_errors import WireError

MASTER = 0
"""The id of a broker's master; other ids are slaves."""

_READABLE, _WRITABLE = 4, 2
# Of one topic at one broker. RocketMQ's tools create a few thousand at most.
_MAX_QUEUES = 65_536
_MAX_BROKERS = 10_000
_MAX_REPLICAS = 64


class Queue(NamedTuple):
    """A queue of a topic at a broker."""

    topic: str
    broker: str
    id: int

    def __str__(self) -> str:
        return f"queue {self.id} of topic {self.topic} at broker {self.broker}"


@dataclass(frozen=True)
class Broker:
    """A broker's addresses by their ids: its master, if it has one, and slaves."""

    name: str
    cluster: str
    addresses: dict[int, Address]

    def in_order(self, prefers_slave: bool) -> list[tuple[int, Address]]:
        """Ids and addresses in the order in which they are asked; each takes over if those before do not respond."""
        return sorted(self.addresses.items(), key=lambda item: ((item[0] == MASTER) == prefers_slave, item[0]))


@dataclass(frozen=True)
class TopicRoute:
    """The readable queues of a topic, its writable ones in order, and its brokers by name."""

    topic: str
    queues: tuple[Queue, ...]
    writable: tuple[Queue, ...]
    brokers: dict[str, Broker]


def parse_route(topic: str, body: bytes) -> TopicRoute:
    """The route in a response's body. Raises WireError for malformed values, and for more than a cluster can have."""
    value = _object(body)
    brokers = {broker.name: broker for broker in map(_broker, _items(value, "brokerDatas"))}
    found: dict[str, list[Queue]] = {"readQueueNums": [], "writeQueueNums": []}
    for item in _items(value, "queueDatas"):
        name, permissions = text(item.get("brokerName"), "brokerName"), integer(item.get("perm"), "perm", 32)
        for (field, queues), needed in zip(found.items(), (_READABLE, _WRITABLE), strict=True):
            count = integer(item.get(field), field, 32)
            if not 0 <= count <= _MAX_QUEUES:
                raise WireError(f"expected at most {_MAX_QUEUES} queues of topic {topic}, found {count}")
            if permissions & needed and name in brokers:
                queues += (Queue(topic, name, number) for number in range(count))
            if len(queues) > _MAX_QUEUES:
                raise WireError(f"expected at most {_MAX_QUEUES} queues of topic {topic}, found more")
    readable, writable = map(tuple, found.values())
    return TopicRoute(topic, readable, tuple(sorted(writable)), brokers)


def parse_topics(body: bytes) -> list[str]:
    """The names in a response's list of topics. Raises WireError."""
    found = _object(body).get("topicList")
    if not isinstance(found, list):
        raise WireError(f"expected topicList as a list, found {type(found).__name__}")
    return sorted({text(item, "topicList") for item in found})


def _object(body: bytes) -> dict[str, Any]:
    try:
        return parse_fastjson(body)
    except ValueError as error:
        raise WireError(str(error)) from None


def _items(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    is_list = isinstance(found, list) and len(found) <= _MAX_BROKERS
    if not is_list or not all(isinstance(item, dict) for item in found or ()):
        raise WireError(f"expected {name} as a list of at most {_MAX_BROKERS} objects, found {str(found)[:60]}")
    return found  # type: ignore[return-value]


def _broker(item: dict[str, Any]) -> Broker:
    name, addresses = text(item.get("brokerName"), "brokerName"), item.get("brokerAddrs")
    if not isinstance(addresses, dict) or not 0 < len(addresses) <= _MAX_REPLICAS:
        raise WireError(f"expected 1 to {_MAX_REPLICAS} addresses of broker {name}, found {str(addresses)[:60]}")
    try:
        found = {
            integer(number, "a broker's id", 64): parse_address(text(address, "brokerAddrs"), f"broker {name}")
            for number, address in addresses.items()
        }
    except OptionError as error:
        raise WireError(str(error)) from None
    return Broker(name, text(item.get("cluster") or "", "cluster"), found)
