"""A session with a cluster: routes from any of its name servers, and offsets from any replica of a broker."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, final

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.codes import RETRIED, BrokerCode
from pyspark_dledger.cluster.connection import TIMEOUT, Connection, LostError, Response, check_success
from pyspark_dledger.cluster.routes import MASTER, Queue, TopicRoute, parse_route, parse_topics
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire.wire_errors import WireError

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Servers = Callable[[Queue, bool], list[Address]]
"""The servers to ask about a queue, from a new route or not."""

MAX_WAIT = 60.0
"""Seconds to wait for a broker. Restarts and failovers take less."""

# Seconds, while no name server has responded: its address is wrong, or it does not run.
_MAX_FIRST_WAIT = 6.0
MIN_PAUSE, MAX_PAUSE = 0.05, 1.0
# Seconds. A server that did not respond, or not with what was asked for, is asked after the others for so long.
_LAST_SECONDS = 10.0
# Requests on one connection without a response.
_IN_FLIGHT = 64


class Waiting:
    """Attempts with growing pauses until a time has passed. `seconds` is that time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._attempts = 0
        self._deadline = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._deadline

    def pause(self) -> None:
        self._attempts += 1
        time.sleep(backoff(self._attempts, MIN_PAUSE, MAX_PAUSE))


@final
class Cluster:
    """For one thread; a context manager. Close it otherwise. It connects at its first call.

    With `prefers_slave`, slaves are asked first, else masters. Each takes over while the others do not respond.
    """

    def __init__(self, address: ClusterAddress, prefers_slave: bool = False) -> None:
        self.address = address
        self.name = f"the cluster at {address}"
        self._prefers_slave = prefers_slave
        # The one that responded last is the first.
        self._name_servers = list(address.name_servers)
        self._was_reached = False
        self._connections: dict[Address, Connection] = {}
        self._routes: dict[str, TopicRoute | None] = {}
        # When a server is asked in its usual order again.
        self._last_until: dict[Address, float] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connection(self, server: Address) -> Connection:
        """A connection to a server, a new one if the last was lost. Raises LostError."""
        found = self._connections.get(server)
        if found is None or found.is_lost:
            found = self._connections[server] = self.connect(server)
        return found

    def connect(self, server: Address, timeout: float = TIMEOUT) -> Connection:
        """A new connection, which the caller closes. Raises LostError."""
        try:
            return Connection(server, self.address, timeout)
        except LostError:
            self.ask_last(server)
            raise

    def ask_last(self, server: Address) -> None:
        """Ask other replicas before this one, for some seconds."""
        self._last_until[server] = time.monotonic() + _LAST_SECONDS

    # Name servers

    def topics(self) -> list[str]:
        """The names of all topics. Raises ClusterError."""
        response = self._ask_name_server(codes.GET_ALL_TOPICS, {})
        check_success(response, f"{self.name}: the list of its topics")
        return self._parsed(lambda: parse_topics(bytes(response.body)))

    def route(self, topic: str, is_new: bool = True) -> TopicRoute | None:
        """The route of a topic, None if no broker has it. The last one is enough unless it must be new.

        Raises ClusterError.
        """
        if is_new or topic not in self._routes:
            self._routes[topic] = self._found_route(topic)
        return self._routes[topic]

    def _found_route(self, topic: str) -> TopicRoute | None:
        # Else numbers in the JSON have no quotes, and that can be read, too.
        response = self._ask_name_server(codes.GET_ROUTE_OF_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
        if response.code == BrokerCode.TOPIC_NOT_EXIST:
            return None
        check_success(response, f"{self.name}: the route of topic {topic}")
        return self._parsed(lambda: parse_route(topic, bytes(response.body)))

    def _parsed(self, parse: Callable[[], _Result]) -> _Result:
        try:
            return parse()
        except WireError as error:
            raise ClusterError(f"{self.name}: its name server sent a malformed response: {error}") from None

    def _ask_name_server(self, code: int, fields: Mapping[str, str]) -> Response:
        waiting = Waiting(MAX_WAIT if self._was_reached else _MAX_FIRST_WAIT)
        while True:
            problems = []
            for server in list(self._name_servers):
                try:
                    response = self.connection(server).call(code, fields)
                except LostError as error:
                    problems.append(str(error))
                    continue
                if response.code in RETRIED:
                    problems.append(f"{server}: {response.problem}")
                    continue
                self._was_reached = True
                self._name_servers.remove(server)
                self._name_servers.insert(0, server)
                return response
            if waiting.is_over:
                raise ClusterError(
                    f"no name server responded within {waiting.seconds:g} s ({'; '.join(problems)}): check the option "
                    "nameServer, and that the name servers run"
                )
            waiting.pause()

    # Brokers

    def replicas(self, queue: Queue, is_new: bool) -> list[tuple[int, Address]]:
        """Ids and addresses of the queue's broker, in the order in which they are asked; none if no route has it."""
        route = self.route(queue.topic, is_new)
        broker = route.brokers.get(queue.broker) if route is not None else None
        found = broker.in_order(self._prefers_slave) if broker is not None else []
        now = time.monotonic()
        return sorted(found, key=lambda item: max(self._last_until.get(item[1], now), now))

    def _servers(self, queue: Queue, is_new: bool) -> list[Address]:
        return [server for _, server in self.replicas(queue, is_new)]

    def _masters(self, queue: Queue, is_new: bool) -> list[Address]:
        """The master of the queue's broker, twice: its connection may be an old one that is closed."""
        return 2 * [server for number, server in self.replicas(queue, is_new) if number == MASTER]

    def _master_first(self, queue: Queue, is_new: bool) -> list[Address]:
        """The master, then slaves: what these have can begin later."""
        masters = self._masters(queue, is_new)
        return [*masters, *(server for server in self._servers(queue, is_new=False) if server not in masters)]

    def max_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset after the last message of each queue. Raises ClusterError."""
        return self._offsets(queues, codes.GET_MAX_OFFSET, {})

    def min_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset of the first message of each queue. Raises ClusterError."""
        return self._offsets(queues, codes.GET_MIN_OFFSET, {}, self._master_first)

    def offsets_near(self, queues: Iterable[Queue], milliseconds: int) -> dict[Queue, int]:
        """An offset of each queue that is not after its first message stored at or after that time, and near it.

        Of several messages of the same millisecond, brokers find any one, so the millisecond before is searched.
        """
        return self._offsets(queues, codes.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(max(milliseconds - 1, 0))})

    def committed_offsets(self, queues: Iterable[Queue], group: str) -> dict[Queue, int]:
        """The offsets at which a consumer group continues; none for a queue that it has not consumed.

        Slaves may not know them yet. Raises ClusterError if a master is away.
        """
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        return self._offsets(queues, codes.QUERY_CONSUMER_OFFSET, fields, self._masters)

    def commit_offsets(self, offsets: Mapping[Queue, int], group: str) -> None:
        """Report the offsets of a consumer group to the masters that respond. Raises ClusterError for the others."""
        fields = {queue: {"consumerGroup": group, "commitOffset": str(offset)} for queue, offset in offsets.items()}
        problems = []
        for of_broker in _by_broker(offsets):
            try:
                code = codes.UPDATE_CONSUMER_OFFSET
                for _ in self._responses(of_broker, code, lambda queue: fields[queue], self._masters, 0.0):
                    pass
            except ClusterError as error:
                problems.append(str(error))
        if problems:
            raise ClusterError("; ".join(problems))

    def begin_at_master(self, queue: Queue) -> int | None:
        """The offset of the first message that the queue's master has; None if it is not reached."""
        return self._at_master(queue, codes.GET_MIN_OFFSET)

    def end_at_master(self, queue: Queue) -> int | None:
        """The offset after the last message that the queue's master has; None if it is not reached."""
        return self._at_master(queue, codes.GET_MAX_OFFSET)

    def _at_master(self, queue: Queue, code: int) -> int | None:
        for server in self._masters(queue, is_new=True):
            try:
                (found,) = self._sent(server, [queue], code, lambda _: {})
            except LostError:
                continue
            return self._offset(*found)
        return None

    def _offsets(
        self, queues: Iterable[Queue], code: int, fields: Mapping[str, str], servers: _Servers | None = None
    ) -> dict[Queue, int]:
        found: dict[Queue, int] = {}
        for queue, response in self._responses(list(queues), code, lambda _: fields, servers or self._servers):
            if response.code != BrokerCode.QUERY_NOT_FOUND:
                found[queue] = self._offset(queue, response)
        return found

    def _offset(self, queue: Queue, response: Response) -> int:
        try:
            return response.number("offset")
        except WireError as error:
            raise ClusterError(f"{queue}: its broker sent a malformed response: {error}") from None

    def _responses(
        self,
        queues: Iterable[Queue],
        code: int,
        fields_of: Callable[[Queue], Mapping[str, str]],
        servers: _Servers,
        seconds: float | None = None,
    ) -> Iterator[tuple[Queue, Response]]:
        """The response of a broker for each queue; its `servers` are asked in their order, for so long.

        Raises ClusterError with what each of them says.
        """
        for of_broker in _by_broker(queues):
            waiting, is_new, done = Waiting(MAX_WAIT if seconds is None else seconds), False, 0
            while done < len(of_broker):
                problems: list[str] = []
                for server in servers(of_broker[0], is_new):
                    try:
                        for answered in self._sent(server, of_broker[done:], code, fields_of):
                            done += 1
                            yield answered
                        break
                    except LostError as error:
                        problems.append(str(error))
                if done < len(of_broker):
                    if waiting.is_over:
                        raise self.unreachable(of_broker[done], problems, waiting.seconds)
                    log.info("broker %s does not respond (%s)", of_broker[0].broker, "; ".join(problems))
                    waiting.pause()
                    is_new = True

    def _sent(
        self, server: Address, queues: Sequence[Queue], code: int, fields_of: Callable[[Queue], Mapping[str, str]]
    ) -> Iterator[tuple[Queue, Response]]:
        """The responses of one server for the queues, in their order. Raises LostError and ClusterError."""
        connection = self.connection(server)
        for begin in range(0, len(queues), _IN_FLIGHT):
            some = queues[begin : begin + _IN_FLIGHT]
            sent = [
                connection.send(code, {"topic": queue.topic, "queueId": str(queue.id), **fields_of(queue)})
                for queue in some
            ]
            for queue, opaque in zip(some, sent, strict=True):
                response = connection.wait(opaque)
                if response.code in RETRIED:
                    # Responses to the other requests would stay.
                    connection.close()
                    raise LostError(f"{server}: {response.problem}")
                if response.code != BrokerCode.QUERY_NOT_FOUND:
                    check_success(response, f"{queue} ({server})")
                yield queue, response

    def unreachable(self, queue: Queue, problems: Iterable[str], seconds: float) -> ClusterError:
        """The error if no replica of a queue's broker has responded for so many seconds."""
        reasons = "; ".join(problems) or f"{self.name} has no route to it"
        return ClusterError(
            f"broker {queue.broker} of topic {queue.topic}: no replica responded within {seconds:g} s ({reasons}): "
            "start the broker, then the query again"
        )


def _by_broker(queues: Iterable[Queue]) -> Iterable[list[Queue]]:
    found: dict[str, list[Queue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker].append(queue)
    return found.values()
