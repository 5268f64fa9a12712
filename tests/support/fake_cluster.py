"""Plays a RocketMQ name server and its brokers on the loopback address: what they send is the test's to choose."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, final

from pyspark_dledger.cluster import codes
from pyspark_dledger.cluster.codes import BrokerCode
from pyspark_dledger.raft.wire.framing import KIND_JSON, FrameReader, frame
from pyspark_dledger.raft.wire.remoting import Command, decode_command, encode_command
from pyspark_dledger.raft.wire.wire_errors import WireError
from tests.support.generate import mq_message
from tests.support.groups import HOST

Answer = tuple[int, dict[str, Any], bytes]
Change = Callable[["FakeServer", Command], "Answer | bytes | None"]
QueueKey = tuple[str, int]


@final
class FakeServer:
    """One name server and broker. `change` may replace the answer to a request, also by bytes that are no frame."""

    def __init__(self, name: str = "b", change: Change | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self.change = change
        self.most = 32
        self.max_bytes = 256 * 1024
        self.queues: dict[QueueKey, list[bytes]] = defaultdict(list)
        self.begins: dict[QueueKey, int] = defaultdict(int)
        self.committed: dict[QueueKey, int] = {}
        self.requests: list[Command] = []
        # By broker's name: the addresses of its replicas by their ids. This server's is that of its own name.
        self.brokers: dict[str, dict[int, str]] = {}
        self._tls = tls
        self._listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listener.getsockname()[1]}"
        self.brokers[name] = {0: self.address}
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, topic: str, queue_id: int, count: int, size: int = 20, **fields: Any) -> None:
        """Add messages with a body of `size` bytes to the end of a queue."""
        queue = self.queues[topic, queue_id]
        for number in range(
            self.begins[topic, queue_id] + len(queue), self.begins[topic, queue_id] + len(queue) + count
        ):
            body = f"{topic} {queue_id} {number} ".encode().ljust(size, b".")
            made = mq_message(topic, body, queue_id=queue_id, queue_offset=number, **fields)
            queue.append(made.make(1000 + 7 * number))

    def expire(self, topic: str, queue_id: int, count: int) -> None:
        del self.queues[topic, queue_id][:count]
        self.begins[topic, queue_id] += count

    def requests_of(self, code: int) -> list[Command]:
        return [request for request in self.requests if request.code == code]

    def drop_connections(self) -> None:
        """Close all connections; new ones are accepted."""
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(accepted)
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        reader = FrameReader()
        with suppress(OSError, WireError):
            connection = self._tls.wrap_socket(accepted, server_side=True) if self._tls else accepted
            while data := connection.recv(65536):
                for found in reader.feed(data):
                    request = decode_command(found.header)
                    self.requests.append(request)
                    answer = self.change(self, request) if self.change else None
                    if answer is None:
                        answer = self.answer(request, bytes(found.body))
                    connection.sendall(answer if isinstance(answer, bytes) else response(request, answer))
        accepted.close()

    def answer(self, request: Command, body: bytes = b"") -> Answer:
        """What a real server answers."""
        fields = request.fields
        if request.code == codes.GET_ALL_TOPICS:
            topics = sorted({topic for topic, _ in self.queues} | {self.name, "TBW102"})
            return 0, {}, json.dumps({"topicList": topics}).encode()
        if request.code in (codes.SEND_MESSAGE, codes.SEND_BATCH):
            return self._store(request, body)
        topic = fields["topic"]
        if request.code == codes.GET_ROUTE_OF_TOPIC:
            return self._route(topic)
        key = topic, int(fields["queueId"])
        begin, messages = self.begins[key], self.queues[key]
        end = begin + len(messages)
        if request.code in (codes.GET_MIN_OFFSET, codes.SEARCH_OFFSET_BY_TIMESTAMP):
            return 0, {"offset": begin}, b""
        if request.code == codes.GET_MAX_OFFSET:
            return 0, {"offset": end}, b""
        if request.code == codes.QUERY_CONSUMER_OFFSET:
            found = self.committed.get(key)
            return (BrokerCode.QUERY_NOT_FOUND, {}, b"") if found is None else (0, {"offset": found}, b"")
        if request.code == codes.UPDATE_CONSUMER_OFFSET:
            self.committed[key] = int(fields["commitOffset"])
            return 0, {}, b""
        assert request.code == codes.PULL_MESSAGE
        return self._pull(int(fields["queueOffset"]), int(fields["maxMsgNums"]), begin, messages)

    def _store(self, request: Command, body: bytes) -> Answer:
        """Add sent messages to a queue. A topic that is missing is made if its template is there."""
        fields = request.fields
        topic, queue_id = fields["b"], int(fields["e"])
        if not any(name in (topic, fields["c"]) for name, _ in self.queues):
            return BrokerCode.TOPIC_NOT_EXIST, {}, b""
        is_batch = request.code == codes.SEND_BATCH
        sent = list(_split(body)) if is_batch else [(int(fields["h"]), body, fields["i"])]
        queue = self.queues[topic, queue_id]
        first = self.begins[topic, queue_id] + len(queue)
        for number, (flag, content, properties) in enumerate(sent, first):
            pairs = [(name, value) for name, _, value in (each.partition("\1") for each in properties.split("\2")[:-1])]
            made = mq_message(
                topic,
                content,
                queue_id=queue_id,
                queue_offset=number,
                flag=flag,
                properties=pairs,
                born_timestamp=int(fields["g"]),
            )
            queue.append(made.make(0))
        ids = ",".join(f"{number:032X}" for number in range(first, first + len(sent)))
        return 0, {"msgId": ids, "queueId": queue_id, "queueOffset": first}, b""

    def _route(self, topic: str) -> Answer:
        counts = [queue for name, queue in self.queues if name == topic]
        if not counts:
            return BrokerCode.TOPIC_NOT_EXIST, {}, b""
        numbers = {"perm": 6, "readQueueNums": max(counts) + 1, "writeQueueNums": max(counts) + 1}
        queues = [{"brokerName": name, **numbers} for name in self.brokers]
        brokers = [{"brokerName": name, "cluster": "c", "brokerAddrs": each} for name, each in self.brokers.items()]
        text = json.dumps({"queueDatas": queues, "brokerDatas": brokers})
        # As old name servers write it: the keys of the addresses have no quotes.
        return 0, {}, text.replace('"0":', "0:").encode()

    def _pull(self, offset: int, most: int, begin: int, messages: Sequence[bytes]) -> Answer:
        end = begin + len(messages)
        bounds = {"minOffset": begin, "maxOffset": end, "suggestWhichBrokerId": 0}
        if offset < begin:
            return BrokerCode.PULL_OFFSET_MOVED, {**bounds, "nextBeginOffset": begin}, b""
        if offset >= end:
            return BrokerCode.PULL_NOT_FOUND, {**bounds, "nextBeginOffset": end}, b""
        chosen: list[bytes] = []
        for message in messages[offset - begin : offset - begin + min(most, self.most)]:
            if chosen and sum(map(len, chosen)) + len(message) > self.max_bytes:
                break
            chosen.append(message)
        return 0, {**bounds, "nextBeginOffset": offset + len(chosen)}, b"".join(chosen)


def _split(body: bytes) -> Iterator[tuple[int, bytes, str]]:
    """The flag, body and properties of each message of a batch."""
    at = 0
    while at < len(body):
        size, flag, length = struct.unpack_from(">i8xii", body, at)
        end = at + 20 + length
        yield flag, body[at + 20 : end], body[end + 2 : at + size].decode()
        at += size


def response(request: Command, answer: Answer) -> bytes:
    """The frame of an answer."""
    code, fields, body = answer
    texts = {name: str(value) for name, value in fields.items()}
    header = encode_command(Command(code, request.opaque, is_response=True, remark="fake", fields=texts))
    return b"".join(frame(KIND_JSON, header, [body]))
