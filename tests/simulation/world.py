"""Virtual time, and the network between nodes. Everything depends only on the scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from pyspark_dledger.raft.core import Core, CoreConfig, Reply, Send
from pyspark_dledger.raft.messages import (
    PushRequest,
    PushType,
    Request,
    Response,
    Role,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from pyspark_dledger.raft.node.access import Credentials, acting_member
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.raft.peers import Address
from tests.simulation.checker import Checker, Violation
from tests.simulation.disk import SimStore
from tests.simulation.frames import describe, through_frames
from tests.simulation.ledger import Ledger
from tests.simulation.node import SimNode
from tests.simulation.power_store import Disks, PowerStore
from tests.simulation.reads import OpenRead
from tests.simulation.scenario import Scenario

CALL_TIMEOUT = 3000
# What a connection of a member shows in scenarios in which the members change.
MARKED = Credentials(None, has_secret=True)
Action = Callable[..., None]


class Call(NamedTuple):
    """A request from node to node; also its token for the response."""

    source: SimNode
    process: int
    token: int
    request: Request
    target: SimNode


class ClientCall(NamedTuple):
    """The token of a client's request."""

    reply: Callable[[Response], None]


class World:
    """All that is simulated. `at` schedules an action, `run_until` advances the time."""

    def __init__(self, scenario: Scenario, core_class: type[Core] = Core, lines: list[str] | None = None) -> None:
        self.scenario = scenario
        self.core_class = core_class
        self.application_class: type[Ledger] = getattr(core_class, "application_class", Ledger)
        self.random = Random(scenario.seed ^ 0x5EED)
        self.now = 0
        self.steps = 0
        self.checker = Checker()
        self.lines = lines
        self.is_tracing = lines is not None
        self.queue: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self.scheduled = 0
        self.network = scenario.network
        self.blocked: set[tuple[int, int]] = set()
        self.latest: dict[tuple[int, int], int] = {}
        # The processes of both ends of each open connection, by the numbers of the node that opened it and the other.
        self.connections: dict[tuple[int, int], tuple[int, int]] = {}
        self.open_reads: dict[int, OpenRead] = {}
        # Called for each request that arrives; False loses it (for tests).
        self.filter: Callable[[Call], bool] = lambda _: True
        ids = tuple(f"n{number}" for number in range(scenario.nodes + scenario.spares))
        self.initial = ids[: scenario.nodes]
        self.members = {id_: Address(f"10.0.0.{number}", 20911) for number, id_ in enumerate(ids)}
        self.addresses = {id_: str(address) for id_, address in self.members.items()}
        self.reads_class: type[CommittedReads] = getattr(core_class, "reads_class", CommittedReads)
        self.disks = Disks(scenario.seed) if scenario.is_on_disk else None
        self.store_class: Any = getattr(core_class, "store_class", PowerStore if scenario.is_on_disk else SimStore)
        self.takes_strangers = getattr(core_class, "takes_strangers", False)
        self.ignores_hellos = getattr(core_class, "ignores_hellos", False)
        self.base_config = CoreConfig(
            group="g",
            self_id="n0",
            peers=self.initial,
            is_sync=scenario.is_sync,
            **scenario.options,  # type: ignore[arg-type]
        )
        self.nodes = [SimNode(self, number) for number in range(scenario.nodes + scenario.spares)]
        self.by_id = {node.id: node for node in self.nodes}
        self.checker.nodes = self.nodes
        self.checker.voters = self.initial

    def new_store(self, node_id: str) -> SimStore:
        """The store of a new disk."""
        scenario, disks = self.scenario, () if self.disks is None else (self.disks,)
        store: SimStore = self.store_class(node_id, scenario.is_sync, scenario.data_file_size, self.checker, *disks)
        return store

    def config(self, node: SimNode) -> CoreConfig:
        return replace(
            self.base_config, self_id=node.id, peers=node.peers, changes_members=node.changes_members, joins=node.joins
        )

    def is_java(self, a: SimNode, b: SimNode) -> bool:
        return (min(a.number, b.number), max(a.number, b.number)) in self.scenario.java_pairs

    # Time

    def at(self, time: int, action: Action, *arguments: Any) -> None:
        self.scheduled += 1
        heappush(self.queue, (time, self.scheduled, action, arguments))

    def run_until(self, time: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Advance the time to `time`, or until `is_done`, called after each event. Returns whether it was done."""
        queue = self.queue
        while queue and queue[0][0] <= time:
            self.now, _, action, arguments = heappop(queue)
            self.steps += 1
            action(*arguments)
            if self.disks is not None:
                for node in self.nodes:
                    node.check_power()
            if is_done is not None and is_done():
                return True
        self.now = max(self.now, time)
        return False

    def run(self, time: int) -> None:
        self.run_until(self.now + time)

    def trace(self, who: str, text: str, *values: object) -> None:
        if self.lines is not None:
            self.lines.append(f"{self.now:>7} {who:<3} {text % values if values else text}")

    # Network

    def send(self, source: SimNode, effect: Send) -> None:
        """Send a request of a core to a peer."""
        request = effect.request
        if type(request) is PushRequest and type(request.data) is not bytes:
            request.data = bytes(request.data)
        target = self.by_id[effect.peer_id]
        if not self.connect(source, target):
            self.at(self.now + 1, source.handle_response, source.process, effect.token, None)
            return
        if self.scenario.is_framed:
            request = through_frames(request, not self.is_java(source, target), None)
        self.count_request(request)
        source.waiting[effect.token] = self.now + CALL_TIMEOUT
        call = Call(source, source.process, effect.token, request, target)
        if self.is_tracing:
            self.trace(source.id, "-> %s #%s %s", target.id, effect.token, describe(request))
        if target.core is None:
            if self.random.random() < 0.7:
                delay = 1 + self.random.randrange(20)
                self.at(self.now + delay, source.handle_response, source.process, effect.token, None)
            return
        self.carry(source, target, self.deliver, call, target.process)

    def carry(self, source: SimNode, target: SimNode, action: Action, *arguments: Any) -> None:
        """Send a message between nodes: `action` is called when it arrives; messages can be lost or duplicated."""
        network = self.network
        draw = self.random.random()
        if draw < network.loss:
            self.checker.count("messages lost")
            return
        self._arrive(source, target, action, arguments)
        if draw > 1 - network.duplication:
            self.checker.count("messages duplicated")
            self._arrive(source, target, action, arguments)

    def _arrive(self, source: SimNode, target: SimNode, action: Action, arguments: tuple[Any, ...]) -> None:
        network = self.network
        random = self.random
        time = self.now + network.min_delay + int(random.random() * (network.max_delay + 1))
        if network.slow_share and random.random() < network.slow_share:
            time += random.randrange(network.slow_delay + 1)
        pair = source.number, target.number
        latest = self.latest.get(pair, 0)
        if time < latest:
            if network.is_ordered:
                time = latest
            else:
                self.checker.count("messages reordered")
        self.latest[pair] = max(time, latest)
        self.at(time, self.arrive, pair, target, target.process, action, arguments)

    def arrive(
        self, pair: tuple[int, int], target: SimNode, process: int, action: Action, arguments: tuple[Any, ...]
    ) -> None:
        """Messages to an ended process are lost, as on a connection; a paused process gets them later."""
        if process != target.process or target.core is None:
            return
        if pair in self.blocked:
            self.checker.count("messages lost in a partition")
            self.connections.pop(pair, None)
        elif target.is_paused:
            target.defer(1, self.arrive, pair, target, process, action, arguments)
        else:
            action(*arguments)

    # Connections, in scenarios in which the members change

    def connect(self, source: SimNode, target: SimNode) -> bool:
        """Connect a node to another one, if the other side accepts its hello. Returns whether it is connected."""
        pair = source.number, target.number
        if not self.scenario.spares or self.is_connected(source, target):
            return True
        if source.core is None or target.id not in source.core.members.known_addresses:
            return False
        if target.core is None or target.is_paused or {pair, pair[::-1]} & self.blocked:
            # Requests wait for a connection.
            return target.core is not None
        if target.hello.mismatch(source.hello) or target.roles.rejection(source.id, MARKED):
            self.checker.count("hellos of strangers refused")
            source.hear(target.hello, is_rejection=True)
            return False
        self.connections[pair] = source.process, target.process
        target.hear(source.hello)
        source.meet(target)
        return self.is_connected(source, target)

    def is_connected(self, source: SimNode, target: SimNode) -> bool:
        return self.connections.get((source.number, target.number)) == (source.process, target.process)

    def judge(self, node: SimNode) -> None:
        """A node has other members: it closes the connections of strangers."""
        for source in self.nodes:
            if self.is_connected(source, node) and node.roles.rejection(source.id, MARKED):
                del self.connections[source.number, node.number]

    def deliver(self, call: Call, process: int) -> None:
        if not self.filter(call):
            return
        if self.scenario.spares:
            if not self.connect(call.source, call.target):
                return
        elif not self.are_of_one_group(call.source, call.target):
            return
        elif not self.admits(call.target, call.request, self.host(call.source.id)):
            raise Violation(f"{call.target.id} refuses {describe(call.request)} of {call.source.id}")
        if self.is_tracing:
            self.trace(call.target.id, "handles %s#%s %s", call.source.id, call.token, describe(call.request))
        call.target.handle(call.request, call)

    def reply(self, node: SimNode, effect: Reply) -> None:
        """Send a response to a client, or to the process that sent the request."""
        call = effect.token
        if isinstance(call, ClientCall):
            call.reply(effect.response)
            return
        assert isinstance(call, Call)
        self.count_response(call.request, effect.response)
        response = effect.response
        if isinstance(response, VoteResponse) and response.vote_result is VoteResult.ACCEPT:
            assert isinstance(call.request, VoteRequest)
            if call.request.ledger_end_index >= 0:  # a member without entries is elected only by others without any
                self.checker.check_voter(node.store)
        if self.scenario.is_framed:
            response = through_frames(response, not self.is_java(node, call.source), call.request)
        if self.is_tracing:
            self.trace(node.id, "responds to %s#%s %s", call.source.id, call.token, describe(response))
        self.carry(node, call.source, call.source.handle_response, call.process, call.token, response)

    def host(self, node_id: str) -> str:
        """The network address of a member."""
        return self.members[node_id].host

    def are_of_one_group(self, source: SimNode, target: SimNode) -> bool:
        """Whether two nodes accept each other's hello at the begin of a connection."""
        is_same = source.peers == target.peers
        if is_same or self.ignores_hellos or target.hello.mismatch(source.hello) is None:
            return True
        self.checker.count("messages between other peer lists refused")
        return False

    def admits(self, node: SimNode, request: Request, host: str) -> bool:
        """Whether a node handles a request that comes from that address."""
        member_id = acting_member(request)
        if member_id is None or self.takes_strangers or node.roles.rejection(member_id, Credentials(host)) is None:
            return True
        self.checker.count("requests of strangers refused")
        return False

    def send_as(self, host: str, node: SimNode, request: Request) -> None:
        """A request from that address; its response is dropped."""
        if self.admits(node, request, host):
            self.checker.count("requests of hostile peers handled")
            self.send_client_request(node, request, lambda _: None)

    def send_client_request(self, node: SimNode, request: Request, reply: Callable[[Response], None]) -> None:
        """A client's request to a running node; a paused one gets it later, perhaps before other messages."""
        if node.is_paused:
            node.defer(self.random.randrange(3), self.send_client_request, node, request, reply)
            return
        if self.is_tracing:
            self.trace(node.id, "gets from a client %s", describe(request))
        node.handle(request, ClientCall(reply))

    # Counts and leaders

    def count_request(self, request: Request) -> None:
        if type(request) is PushRequest:
            self.checker.counts[f"{request.type.name} sent"] += 1
            if request.type is PushType.APPEND and request.count > 1:
                self.checker.counts["batches pushed"] += 1
        else:
            self.checker.counts[f"{type(request).__name__} sent"] += 1

    def count_response(self, request: Request, response: Response) -> None:
        if type(request) is PushRequest:
            self.checker.counts[f"{request.type.name} responses {int(response.code)}"] += 1
        else:
            vote = getattr(response, "vote_result", None)
            self.checker.counts[f"{type(request).__name__} responses {vote.value if vote else int(response.code)}"] += 1

    @property
    def leader(self) -> SimNode | None:
        """The running leader of the highest term, if there is one."""
        return max(self._leaders(), key=_term, default=None)

    @property
    def former_leaders(self) -> list[SimNode]:
        """Nodes that still lead an earlier term than another leader."""
        return sorted(self._leaders(), key=_term)[:-1]

    def _leaders(self) -> list[SimNode]:
        return [node for node in self.nodes if node.core is not None and node.core.role is Role.LEADER]


def _term(node: SimNode) -> int:
    return node.core.term if node.core is not None else -1
