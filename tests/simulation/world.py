"""Virtual time, nodes, and the network between them. Everything depends only on the scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.raft.core import Core, CoreConfig, Effect, Load, MembersChanged, Reply, RoleChanged, Send
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.messages import PushRequest, PushType, Request, Response, Role
from pyspark_dledger.raft.node.roles import Credentials, Roles, acting_member
from pyspark_dledger.raft.peers import Address, format_peers
from pyspark_dledger.store.dledger_store import EntryRange
from tests.simulation.checker import Checker, Violation
from tests.simulation.disk import PowerCut, SimStore
from tests.simulation.frames import through_frames
from tests.simulation.ledger import Ledger
from tests.simulation.scenario import Scenario

CALL_TIMEOUT = 3000
CHECKPOINT_INTERVAL = 3000
Action = Callable[..., None]


class Call(NamedTuple):
    """A request from node to node; also its token for the response."""

    source: SimNode
    process: int
    token: int
    request: Request
    target: SimNode


class SimNode:
    """One member: its disk, its clock, and the core of its current process, None while it is down."""

    def __init__(self, world: World, number: int) -> None:
        scenario = world.scenario
        self.world = world
        self.number = number
        self.id = f"n{number}"
        self.rate = scenario.rates[number % len(scenario.rates)]
        self.fsync = scenario.fsync[number % len(scenario.fsync)]
        self.clock_offset = 1_000_000 * number
        self.store = SimStore(self.id, scenario.is_sync, scenario.data_file_size, world.checker)
        self.core: Core | None = None
        self.application: Ledger | None = None
        self.process = 0
        self.paused_until = 0
        self.is_drain_due = False
        self.waiting: dict[int, int] = {}
        self.checkpoint_due = 0
        self.roles = Roles(world.members, self.id)
        # The members that an operator gave it, and whether they replace those of its store.
        self.is_spare = number >= scenario.nodes
        self.peers = (*world.initial, self.id) if self.is_spare else world.initial
        self.changes_members = False
        self.joins = self.is_spare
        self._new_process()

    def _new_process(self) -> None:
        self.process += 1
        self.waiting = {}
        self.is_drain_due = False
        self.seen_term = -1
        self.seen_role = Role.CANDIDATE
        self.seen_committed = -1
        self.seen_resets = 0
        self.reported_committed = -1
        self.reported_role: RoleChanged | None = None

    @property
    def clock(self) -> int:
        return self.clock_offset + self.world.now * self.rate // 1000

    def start(self) -> None:
        """Start a process with the content of the disk."""
        world = self.world
        assert self.core is None
        self._new_process()
        self.store.startup()
        random = Random(world.scenario.seed * 1009 + self.number * 101 + self.process)
        config = world.config(self)
        world.trace(self.id, "starts, log %s to %s", self.store.ledger_begin_index, self.store.ledger_end_index)
        try:
            application = self.application = world.application_class() if world.scenario.putters else None
            if application is not None:
                application.started(self.store)
            self.core = world.core_class(config, self.store, random, self.clock, world.addresses, application)
            self.seen_term = self.store.curr_term
            self.seen_committed = self.reported_committed = self.core.committed_index
            self.reported_role = RoleChanged(self.core.role, self.core.term, self.core.leader_id)
            for other in world.nodes:
                if other is not self:
                    is_ours = not world.is_java(self, other)
                    self.core.set_peer_binary(other.id, is_ours, is_ours)
        except PowerCut:
            self.lose_power("start")
            return
        except OptionError as error:
            world.trace(self.id, "does not start: %s", error)
            world.checker.count("starts with other members refused")
            return
        world.at(world.now, self.tick, self.process)

    @property
    def hello(self) -> MemberHello:
        is_static = self.core is None or not self.core.members.takes_strangers
        peers = format_peers({id_: self.world.members[id_] for id_ in self.peers}) if is_static else ""
        return MemberHello(self.id, "", "g", peers, self.store.cluster_id)

    def restart(self) -> None:
        if self.core is None:
            self.start()

    def lose_power(self, where: str) -> None:
        """The process ended inside an operation; it restarts after a while."""
        self.stop(f"power cut in {where}")
        world = self.world
        world.at(world.now + 1 + int(world.random.random() * 30 * world.scenario.tick), self.restart)

    def stop(self, why: str, is_orderly: bool = False) -> None:
        """End the process; unwritten data is lost. `start` starts the next one."""
        self.world.trace(self.id, "stops: %s", why)
        if is_orderly:
            self.store.close()
        self.core = None
        self.process += 1
        self.paused_until = 0
        self.store = self.store.survive(self.world.random)

    def replace_disk(self) -> None:
        """Stop the node, and begin with an empty log; term and vote are kept."""
        self.stop("its disk is lost")
        old, scenario = self.store, self.world.scenario
        self.store = SimStore(self.id, scenario.is_sync, scenario.data_file_size, self.world.checker)
        self.store.curr_term, self.store.vote_leader = old.curr_term, old.vote_leader
        self.joins = self.joins or bool(scenario.spares) or scenario.is_pair_of_ours

    def restore(self, backup: SimStore, term: int) -> None:
        """Stop the node, and begin with a backup, as `dledger restore` writes it."""
        self.stop("its disk is restored")
        self.store = backup.backup()
        self.store.curr_term = self.store.restored_term = term

    @property
    def can_vote(self) -> bool:
        return self.store.ledger_end_term >= self.store.restored_term

    @property
    def needs_summary(self) -> bool:
        return self.core is not None and self.application is not None and self.application.needs_summary

    def call(self, method: str, *arguments: Any) -> None:
        """Call the core and handle its effects."""
        if self.core is None:
            return
        try:
            getattr(self.core, method)(*arguments, self.clock)
        except PowerCut:
            self.lose_power(method)
            return
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"the core of {self.id} raised {error!r} in {method}") from error
        self.world.checker.check(self)
        # Ticks are drained at once: they are most of the events, and seldom at the same time as others.
        if method == "tick" or not self.world.scenario.is_coalescing:
            self.drain(self.process)
        elif not self.is_drain_due:
            self.is_drain_due = True
            self.world.at(self.world.now, self.drain, self.process)

    def drain(self, process: int) -> None:
        if process != self.process or self.core is None:
            return
        self.is_drain_due = False
        try:
            effects = self.core.drain()
        except PowerCut:
            self.lose_power("drain")
            return
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"the core of {self.id} raised {error!r} in drain") from error
        if effects:
            self.apply(effects)
        if self.store.is_sync and self.store.begin_flush():
            self.world.at(self.world.now + self.fsync_time(), self.flushed, self.process)

    def apply(self, effects: list[Effect]) -> None:
        """Apply effects of the core, in its order."""
        for effect in effects:
            if isinstance(effect, Send):
                self.world.send(self, effect)
            elif isinstance(effect, Load):
                self.load(effect)
            elif isinstance(effect, Reply):
                self.world.reply(self, effect)
            elif isinstance(effect, RoleChanged):
                self.reported_role = effect
                self.world.trace(self.id, "is %s of term %s, leader %s", effect.role.name, *effect[1:])
            elif isinstance(effect, MembersChanged):
                self.world.trace(self.id, "has members %s", ", ".join(effect.addresses))
            else:
                self.reported_committed = effect.index
        self.world.checker.check(self)
        self.world.checker.check_reported(self)

    def load(self, effect: Load) -> None:
        """Read now, and tell the core later. The log may change in the meantime."""
        result: EntryRange | Exception
        try:
            result = self.store.read(effect.first_index, effect.max_bytes)
        except StoreError as error:
            result = error
        self.world.checker.count("loads")
        self.world.at(self.world.now + 1 + effect.token % 7 * self.fsync, self.loaded, self.process, effect, result)

    def loaded(self, process: int, effect: Load, result: EntryRange | Exception) -> None:
        if process == self.process:
            self.call("loaded", effect, result)

    def tick(self, process: int) -> None:
        """About every tick: the tick of the core, timeouts of calls, and the checkpoint."""
        world = self.world
        if process != self.process or self.core is None:
            return
        if self.paused_until > world.now:
            world.at(self.paused_until + 1, self.tick, process)
            return
        if world.now >= self.checkpoint_due:
            self.checkpoint_due = world.now + CHECKPOINT_INTERVAL
            self.store.write_checkpoint()
        while self.waiting and next(iter(self.waiting.values())) <= world.now:
            self.handle_response(process, next(iter(self.waiting)), None)
        self.call("tick")
        tick = world.scenario.tick
        world.at(world.now + 1 + tick // 2 + int(world.random.random() * tick), self.tick, process)

    def handle_response(self, process: int, token: int, response: Response | None) -> None:
        """Handle the response to a call; None is a timeout or a lost connection. Only the first one counts."""
        if process == self.process and self.waiting.pop(token, None) is not None:
            if self.world.is_tracing:
                self.world.trace(self.id, "gets response #%s %s", token, describe(response))
            self.call("handle_response", token, response)

    def fsync_time(self) -> int:
        return 1 + self.world.random.randrange(2 * self.fsync)

    def flushed(self, process: int) -> None:
        """End an fsync. The core is notified a little later, even after other events."""
        if process == self.process:
            index = self.store.end_flush()
            self.world.at(self.world.now + self.world.random.randrange(3), self.persisted, process, index)

    def persisted(self, process: int, index: int) -> None:
        if process != self.process:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self.persisted, process, index)
            return
        self.call("persisted", index)
        if self.core is not None and self.store.begin_flush():
            self.world.at(self.world.now + self.fsync_time(), self.flushed, process)


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
        # Called for each request that arrives; False loses it (for tests).
        self.filter: Callable[[Call], bool] = lambda _: True
        ids = tuple(f"n{number}" for number in range(scenario.nodes + scenario.spares))
        self.initial = ids[: scenario.nodes]
        self.members = {id_: Address(f"10.0.0.{number}", 20911) for number, id_ in enumerate(ids)}
        self.addresses = {id_: str(address) for id_, address in self.members.items()}
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
        elif target.paused_until > self.now:
            self.at(target.paused_until + 1, self.arrive, pair, target, process, action, arguments)
        else:
            action(*arguments)

    def deliver(self, call: Call, process: int) -> None:
        if not self.filter(call):
            return
        if not self.are_of_one_group(call.source, call.target):
            return
        if not self.admits(call.target, call.request, self.host(call.source.id)):
            raise Violation(f"{call.target.id} refuses {describe(call.request)} of {call.source.id}")
        if self.is_tracing:
            self.trace(call.target.id, "handles %s#%s %s", call.source.id, call.token, describe(call.request))
        call.target.call("handle", call.request, call)

    def reply(self, node: SimNode, effect: Reply) -> None:
        """Send a response to a client, or to the process that sent the request."""
        call = effect.token
        if isinstance(call, ClientCall):
            call.reply(effect.response)
            return
        assert isinstance(call, Call)
        self.count_response(call.request, effect.response)
        response = effect.response
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
        if (
            (not self.scenario.spares and source.peers == target.peers)
            or self.ignores_hellos
            or target.hello.mismatch(source.hello) is None
        ):
            return True
        self.checker.count("messages between other peer lists refused")
        return False

    def admits(self, node: SimNode, request: Request, host: str) -> bool:
        """Whether a node handles a request that comes from that address."""
        member_id = acting_member(request)
        if member_id is None or self.takes_strangers or node.roles.refusal(member_id, Credentials(host)) is None:
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
        if node.paused_until > self.now:
            self.at(node.paused_until + self.random.randrange(3), self.send_client_request, node, request, reply)
            return
        if self.is_tracing:
            self.trace(node.id, "gets from a client %s", describe(request))
        node.call("handle", request, ClientCall(reply))

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


def describe(message: Request | Response | None) -> str:
    """A message in one line: its type and the fields that differ from the defaults."""
    if message is None:
        return "no response"
    shown = []
    for name in dir(message):
        if name.startswith("_") or name in ("group", "local_id", "remote_id", "last_index"):
            continue
        value = getattr(message, name)
        if callable(value) or value in (-1, None, (), [], b"") or (name == "code" and isinstance(message, Request)):
            continue
        if name in ("data", "bodies", "positions"):
            value = f"{value.count} bodies" if name == "bodies" else f"{len(value)} bytes"
        shown.append(f"{name}={getattr(value, 'name', value)}")
    return f"{type(message).__name__} {' '.join(shown)}"
