"""Clients that put messages: they put unacknowledged ones again, to any leader, in other combinations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.messages import PutRequest, PutResponse, Response
from tests.simulation.ledger import Message, pack

if TYPE_CHECKING:
    from tests.simulation.node import SimNode
    from tests.simulation.world import World

QUEUES = 3
# Different from the numbers of clients that append.
FIRST_NUMBER = 100
# In heartbeats; in every second period no new messages are put.
NEW_PERIOD = 8


class Putter:
    """Puts about every `client_pause`. Unacknowledged messages are put again soon."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = FIRST_NUMBER + number
        self.made = 0
        self.leader_id: str | None = None
        # By identity, oldest first.
        self.open: dict[tuple[int, int], Message] = {}
        self.done: list[Message] = []

    def run(self, until: int) -> None:
        """Run until that time."""
        if self.world.now >= until:
            return
        self.act()
        pause = self.world.scenario.client_pause
        self.world.at(self.world.now + 1 + self.world.random.randrange(2 * pause), self.run, until)

    def act(self) -> None:
        """Put new, unacknowledged or acknowledged messages, or a mixture."""
        random = self.world.random
        # Sometimes there are no new messages for a while, as at the end of a job.
        heart_beat = self.world.base_config.heart_beat_time_interval_ms
        is_new = self.world.now // (NEW_PERIOD * heart_beat) % 2 > 0
        chosen = [self.make() for _ in range(random.choice((0, 0, 1, 2, 4)) if is_new else 0)]
        if self.open and (not chosen or random.random() < 0.5):
            chosen += random.sample(list(self.open.values()), random.randint(1, min(5, len(self.open))))
        if self.done and random.random() < 0.15:
            chosen.append(random.choice(self.done))
        if chosen and random.random() < 0.1:
            chosen.append(random.choice(chosen))
        if chosen:
            self.put(self.node(), chosen)

    def make(self) -> Message:
        """A new message."""
        random = self.world.random
        self.made += 1
        identity = self.number, self.made
        message = Message(identity, random.randrange(QUEUES), 0, b"." * random.randrange(self.world.scenario.body_size))
        self.open[identity] = message
        self.world.checker.count("messages made")
        return message

    def node(self) -> SimNode:
        node = self.world.by_id.get(self.leader_id or "")
        if node is None or node.core is None or self.world.random.random() < 0.1:
            return self.world.random.choice(self.world.nodes)
        return node

    def put(self, node: SimNode, messages: list[Message]) -> None:
        if node.core is None or node.paused_until > self.world.now:
            self.leader_id = None
        if node.core is None:
            return
        bodies = pack([message.body() for message in messages])
        request = PutRequest(group="g", remote_id=node.id, bodies=bodies)
        end = self.world.checker.acknowledged_end
        self.world.checker.count("puts sent")
        self.world.send_client_request(
            node, request, lambda response: self.handle_response(node, messages, response, end)
        )

    def handle_response(
        self, node: SimNode, messages: list[Message], response: Response, acknowledged_end: int
    ) -> None:
        self.world.trace(f"c{self.number}", "put response %s", response.code)
        checker = self.world.checker
        checker.count(f"put responses {int(response.code)}")
        if response.code != ResponseCode.SUCCESS:
            self.leader_id = response.leader_id if response.leader_id != node.id else self.leader_id
            return
        assert isinstance(response, PutResponse)
        checker.check_put_response(messages, response, acknowledged_end)
        self.leader_id = node.id
        for message in messages:
            if self.open.pop(message.identity, None) is not None:
                self.done.append(message)

    def settle(self, leader: SimNode) -> None:
        """Put all unacknowledged messages again."""
        if self.open:
            self.put(leader, list(self.open.values()))
