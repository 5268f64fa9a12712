"""A session with a cluster: routes from any of its name servers, and offsets from any replica of a broker."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, final

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.cluster.connection import TIMEOUT, Connection, LostError, Response, check_success
from pyspark_dledger.cluster.routes import MASTER, Queue, TopicRoute, parse_route, parse_topics
from pyspark_dledger.errors import ClusterError
from pyspark_dledger.raft.loops import backoff
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.wire.wire_errors import WireError

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

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

    def max_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset after the last message of each queue. Raises ClusterError."""
        return self._offsets(queues, codes.GET_MAX_OFFSET, {})

    def min_offsets(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """The offset of the first message of each queue. Raises ClusterError."""
        return self._offsets(queues, codes.GET_MIN_OFFSET, {})

    def offsets_near(self, queues: Iterable[Queue], milliseconds: int) -> dict[Queue, int]:
        """An offset of each queue that is not after its first message stored at or after that time, and near it.

        Of several messages of the same millisecond, brokers find any one, so the millisecond before is searched.
        """
        return self._offsets(queues, codes.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(max(milliseconds - 1, 0))})

    def committed_offsets(self, queues: Iterable[Queue], group: str) -> dict[Queue, int]:
        """The offsets at which a consumer group continues; none for a queue that it has not consumed."""
        fields = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        return self._offsets(queues, codes.QUERY_CONSUMER_OFFSET, fields)

    def commit_offsets(self, offsets: Mapping[Queue, int], group: str) -> None:
        """Report the offsets of a consumer group to the masters. Raises ClusterError."""
        fields = {queue: {"consumerGroup": group, "commitOffset": str(offset)} for queue, offset in offsets.items()}
        for _, _ in self._responses(list(offsets), codes.UPDATE_CONSUMER_OFFSET, lambda queue: fields[queue]):
            pass

    def end_at_master(self, queue: Queue) -> int | None:
        """The offset after the last message that the queue's master has; None if it is not reached."""
        for server in (server for number, server in self.replicas(queue, is_new=True) if number == MASTER):
            try:
                (found,) = self._sent(server, [queue], codes.GET_MAX_OFFSET, lambda _: {})
            except LostError:
                return None
            return self._offset(*found)
        return None

    def _offsets(self, queues: Iterable[Queue], code: int, fields: Mapping[str, str]) -> dict[Queue, int]:
        found: dict[Queue, int] = {}
        for queue, response in self._responses(list(queues), code, lambda _: fields):
            if response.code != BrokerCode.QUERY_NOT_FOUND:
                found[queue] = self._offset(queue, response)
        return found

    def _offset(self, queue: Queue, response: Response) -> int:
        try:
            return response.number("offset")
        except WireError as error:
            raise ClusterError(f"{queue}: its broker sent a malformed response: {error}") from None

    def _responses(
        self, queues: Sequence[Queue], code: int, fields_of: Callable[[Queue], Mapping[str, str]]
    ) -> Iterator[tuple[Queue, Response]]:
        """The response of a broker for each queue. Raises ClusterError with what each replica of a broker says."""
        of_brokers: dict[str, list[Queue]] = defaultdict(list)
        for queue in queues:
            of_brokers[queue.broker].append(queue)
        for broker, of_broker in of_brokers.items():
            waiting, is_new, done = Waiting(MAX_WAIT), False, 0
            while done < len(of_broker):
                problems: list[str] = []
                for _, server in self.replicas(of_broker[0], is_new):
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
                    log.info("broker %s does not respond (%s)", broker, "; ".join(problems))
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
