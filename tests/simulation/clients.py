"""Clients: they append unique bodies, read committed entries, and request leadership transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    MetadataRequest,
    ReadRequest,
    Response,
    StatusRequest,
    TransferRequest,
)
from tests.simulation.ledger import pack
from tests.simulation.reads import OpenRead

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.world import World


class Client:
    """Sends requests about every `client_pause`, mostly to the node that it considers the leader."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.appended = 0
        self.leader_id: str | None = None

    def run(self, until: int) -> None:
        """Run until that time."""
        if self.world.now >= until:
            return
        self.act()
        pause = self.world.scenario.client_pause
        self.world.at(self.world.now + 1 + self.world.random.randrange(2 * pause), self.run, until)

    def act(self) -> None:
        random = self.world.random
        node = self.world.by_id.get(self.leader_id or "")
        if node is None or node.core is None or random.random() < 0.1:
            node = random.choice(self.world.nodes)
        if node.core is None:
            self.leader_id = None
            return
        kind = random.random()
        if kind < 0.3 and node.paused_until > self.world.now:
            # As after a timeout.
            self.leader_id = None
        if kind < 0.72:
            if not self.world.scenario.is_appending:
                return
            self.append(node, random.choice((1, 1, 1, 2, 5)))
        elif kind < 0.84:
            self.read_range(random.choice(self.world.nodes))
        elif kind < 0.94:
            # Like a client that does not know of a new leader yet.
            self.read(random.choice(self.world.former_leaders or [node]))
        elif kind < 0.96:
            self.world.send_client_request(node, MetadataRequest(group="g", remote_id=node.id), self.other_response)
            self.world.send_client_request(node, StatusRequest(group="g", remote_id=node.id), self.other_response)
        else:
            self.read_as_java(node)

    def append(self, node: SimNode, count: int) -> None:
        random = self.world.random
        bodies = []
        for _ in range(count):
            self.appended += 1
            name = b"%d/%d " % (self.number, self.appended)
            bodies.append(name.ljust(random.randrange(self.world.scenario.body_size + 1), b"."))
        request = AppendRequest(group="g", remote_id=node.id, bodies=pack(bodies))
        self.world.checker.count("appends sent")
        end = self.world.checker.acknowledged_end
        self.world.send_client_request(
            node, request, lambda response: self.append_response(node, bodies, response, end)
        )

    def append_response(self, node: SimNode, bodies: list[bytes], response: Response, acknowledged_end: int) -> None:
        self.world.trace(f"c{self.number}", "append response %s %s", response.code, getattr(response, "index", None))
        if response.code == ResponseCode.SUCCESS:
            assert isinstance(response, AppendResponse)
            self.world.checker.check_append_response(bodies, response, acknowledged_end)
            self.leader_id = node.id
            for former in self.world.former_leaders:
                self.world.at(self.world.now + 1, self.read, former)
        else:
            self.world.checker.count_failed_append(bodies, response.code)
            self.leader_id = response.leader_id if response.leader_id != node.id else self.leader_id

    def read(self, node: SimNode) -> None:
        """Read one committed index, often at the end of the log, where a missing entry must be certain."""
        checker, random = self.world.checker, self.world.random
        if node.core is None:
            return
        if node in self.world.former_leaders:
            checker.count("committed reads from a former leader")
        end = checker.acknowledged_end
        index = random.choice((end, end, end + 1, len(checker.history), random.randrange(end + 2)))
        request = GetRequest(group="g", remote_id=node.id, begin_index=max(index, 0), is_committed=True)
        self.world.send_client_request(node, request, lambda response: self.entry_response(request, response, end))

    def entry_response(self, request: GetRequest, response: Response, acknowledged_end: int) -> None:
        self.world.trace(f"c{self.number}", "read response for %s: %s", request.begin_index, response.code)
        assert isinstance(response, GetResponse)
        self.world.checker.check_read_response(request, response, acknowledged_end)

    def read_range(self, node: SimNode) -> None:
        """Read committed entries of any member, or wait for the next ones, as a tail does."""
        checker, random = self.world.checker, self.world.random
        if node.core is None:
            return
        end = max(checker.acknowledged_end, node.store.committed_index)
        first = random.choice((end, end + 1, end + 1, len(checker.history), random.randrange(end + 2)))
        wait = random.choice((0, 0, 1, 4)) * self.world.base_config.heart_beat_time_interval_ms
        size = random.choice((1, 300, 1 << 20))
        request = ReadRequest(group="g", remote_id=node.id, first_index=max(first, 0), max_bytes=size, wait_ms=wait)
        open_reads = self.world.open_reads
        key = checker.counts["READs sent"]
        checker.count("READs sent")

        def done(response: Response) -> None:
            self.world.trace(f"c{self.number}", "READ response for %s: %s", first, response.code)
            del open_reads[key]

        open_reads[key] = OpenRead(node, node.process, request, self.world.now)
        self.world.send_client_request(node, request, done)

    def read_as_java(self, node: SimNode) -> None:
        index = self.world.random.randrange(self.world.checker.acknowledged_end + 3)
        request = GetRequest(group="g", remote_id=node.id, begin_index=index)
        self.world.send_client_request(node, request, lambda response: self.java_response(request, response))

    def java_response(self, request: GetRequest, response: Response) -> None:
        assert isinstance(response, GetResponse)
        self.other_response(response)
        self.world.checker.check_java_response(request, response)

    def other_response(self, response: Response) -> None:
        self.world.checker.count(f"{type(response).__name__} {int(response.code)}")

    def transfer(self, node: SimNode, to: str) -> None:
        term = node.core.term if node.core is not None else -1
        request = TransferRequest(group="g", remote_id=node.id, term=term, transfer_id=node.id, transferee_id=to)
        self.world.checker.count("transfers requested")
        self.world.send_client_request(node, request, self.other_response)
