"""One member in the simulated world: its disk, its clock, and the core of its current process."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.raft.core import Core, Effect, Load, MembersChanged, Reply, RoleChanged, Send
from pyspark_dledger.raft.hello import MemberHello
from pyspark_dledger.raft.messages import ReadRequest, Request, Response, Role
from pyspark_dledger.raft.node.access import Roles
from pyspark_dledger.raft.peers import format_peers
from pyspark_dledger.store.dledger_store import EntryRange
from tests.simulation.checker import Violation
from tests.simulation.disk import PowerCut, SimStore
from tests.simulation.frames import describe
from tests.simulation.ledger import Ledger
from tests.simulation.reads import SimCaller, reads_of

if TYPE_CHECKING:
    from tests.simulation.world import Action, World

CHECKPOINT_INTERVAL = 3000


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
        self.store = world.new_store(self.id)
        self.core: Core | None = None
        self.application: Ledger | None = None
        self.process = 0
        self.paused_until = 0
        # What waits for the end of a pause: a delay, an action and its arguments.
        self.deferred: list[tuple[int, Action, tuple[Any, ...]]] = []
        self.is_drain_due = False
        self.waiting: dict[int, int] = {}
        self.checkpoint_due = 0
        self.roles = Roles(world.members, self.id, uses_secret=bool(scenario.spares))
        # The members that an operator gave it, and whether they replace those of its store.
        self.is_spare = number >= scenario.nodes
        self.peers = (*world.initial, self.id) if self.is_spare else world.initial
        self.changes_members = False
        self.joins = self.is_spare
        # The last committed entry that it acknowledged with an earlier disk.
        self.had_committed = -1
        # Whether an operator stopped it, because the group removed it.
        self.is_retired = False
        # Whether its disk is so damaged that it does not start.
        self.refuses = False
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
        self.reads = reads_of(self, self.world.reads_class)

    @property
    def clock(self) -> int:
        return self.clock_offset + self.world.now * self.rate // 1000

    def start(self) -> None:
        """Start a process with the content of the disk."""
        world = self.world
        assert self.core is None
        self._new_process()
        try:
            self.store.startup()
        except StoreError as error:
            world.trace(self.id, "does not start: %s", error)
            self.refuses = True
            return
        if self.store.has_lost_power:
            return
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
            self.take_members()
            for other in world.nodes:
                if other is not self and not world.scenario.spares:
                    is_ours = not world.is_java(self, other)
                    self.core.set_peer_binary(other.id, is_ours, is_ours)
        except PowerCut:
            self.lose_power("start")
            return
        except StoreError as error:
            world.trace(self.id, "does not start: %s", error)
            world.at(world.now + world.scenario.tick, self.restart)
            return
        except OptionError as error:
            world.trace(self.id, "does not start: %s", error)
            world.checker.count("starts with other members refused")
            return
        if self.votes and world.disks is not None and not self.core.members.may_be_new:
            world.checker.check_voter(self.store)
        world.at(world.now, self.tick, self.process)

    @property
    def hello(self) -> MemberHello:
        is_static = self.core is None or self.core.members.is_static
        peers = format_peers({id_: self.world.members[id_] for id_ in self.peers}) if is_static else ""
        members = "" if self.core is None else self.core.members.told_by_log
        return MemberHello(self.id, "", "g", peers, self.store.cluster_id, members=members)

    def take_members(self) -> None:
        """The members are others, or known to be the present ones."""
        if self.core is not None and self.world.scenario.spares:
            members = {id_: self.world.members[id_] for id_ in self.core.members.known_addresses}
            knows = self.core.knows_members
            self.roles = Roles(members, self.id, uses_secret=True, takes_strangers=not knows)
            self.world.judge(self)

    def hear(self, hello: MemberHello, *, is_rejection: bool = False) -> None:
        """Another node said hello, or refused this one."""
        self.call("heard", hello.id, hello.members, is_rejection=is_rejection)

    def meet(self, other: SimNode) -> None:
        """This node is connected to another one."""
        if self.core is not None:
            try:
                self.core.set_peer_binary(other.id, True, True)
            except PowerCut:
                self.lose_power("set_peer_binary")
                return
            self.hear(other.hello)

    def restart(self) -> None:
        if self.core is not None or self.refuses or self.is_retired:
            return
        if self.store.waits_for_others and not all(other.is_level for other in self.world.nodes if other is not self):
            self.world.at(self.world.now + self.world.scenario.tick, self.restart)
        else:
            self.start()

    def check_power(self) -> None:
        """End the process if its store lost power in an operation."""
        if self.store.has_lost_power:
            self.lose_power("an operation")

    def lose_power(self, where: str) -> None:
        """The process ended inside an operation; it restarts after a while."""
        self.stop(f"ends in {where}")
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
        self.deferred.clear()
        self.store = self.store.survive(self.world.random)

    def replace_disk(self) -> None:
        """Stop the node, and begin with an empty log.

        Every second time the operator keeps term and vote, and tells it to join, as docs/operations.md says; else the
        node starts as always. One of two keeps its term: it need not join. If the members change, it must be told to:
        a removed member without entries and one with an empty disk look like a new group.
        """
        self.stop("its disk is lost")
        old, scenario = self.store, self.world.scenario
        self.had_committed = max(self.had_committed, min(old.ledger_end_index, len(self.world.checker.history) - 1))
        self.store = self.world.new_store(self.id)
        self.refuses = False
        is_forgotten = len(self.peers) > 2 and not scenario.spares and self.process % 2 == 0
        if is_forgotten:
            self.joins = False
        else:
            self.store.take_term(old)
            self.joins = self.joins or bool(scenario.spares) or scenario.is_pair_of_ours or scenario.is_on_disk

    def restore(self, backup: SimStore, term: int) -> None:
        """Stop the node, and begin with a backup, as `dledger restore` writes it."""
        self.stop("its disk is restored")
        self.store, self.refuses = backup.backup(), False
        self.store.curr_term = self.store.restored_term = term

    @property
    def can_vote(self) -> bool:
        return self.store.ledger_end_term >= self.store.restored_term

    @property
    def votes(self) -> bool:
        return self.can_vote and not (self.core is not None and self.core.members.is_joining)

    @property
    def may_have_lost_disk(self) -> bool:
        """Whether it has no entries, or joins: it may not vote for a member with entries."""
        return self.store.ledger_end_index < 0 or '"joining":true' in self.store.member_state

    @property
    def is_level(self) -> bool:
        """Whether it has all committed entries, no others, and needs nothing of other members."""
        store, last = self.store, len(self.world.checker.history) - 1
        is_level = store.ledger_end_index == store.committed_index == store.durable_index == last and not store.damage
        return is_level and self.core is not None and self.votes and not self.needs_summary

    @property
    def needs_summary(self) -> bool:
        return self.core is not None and self.application is not None and self.application.needs_summary

    @property
    def is_unlisted(self) -> bool:
        """Whether the group removed it, and nobody adds it again."""
        others = [other.core for other in self.world.nodes if other is not self and other.core is not None]
        is_listed = any(self.id in core.members.current.addresses for core in others)
        return self.core is not None and self.core.is_removed and not is_listed

    def pause(self, until: int) -> None:
        self.paused_until = until
        self.world.at(until, self.resume)

    def resume(self) -> None:
        """Do what was deferred, unless another pause began."""
        if not self.is_paused:
            deferred, self.deferred = self.deferred, []
            for delay, action, arguments in deferred:
                self.world.at(self.world.now + delay, action, *arguments)

    @property
    def is_paused(self) -> bool:
        return self.paused_until > self.world.now

    def defer(self, delay: int, action: Action, *arguments: Any) -> None:
        """Do that so long after the pause, unless the process ends."""
        self.deferred.append((delay, action, arguments))

    def later(self, delay: int, work: Callable[[], None]) -> None:
        """Call `work` after a time, unless the process has ended; a paused one does it after the pause."""
        self.world.at(self.world.now + delay, self._run_later, self.process, work)

    def _run_later(self, process: int, work: Callable[[], None]) -> None:
        if process != self.process or self.core is None:
            return
        if self.is_paused:
            self.defer(0, self._run_later, process, work)
        else:
            work()

    def handle(self, request: Request, token: object) -> None:
        """Handle a request, as `CoreDriver` does."""
        if isinstance(request, ReadRequest) and self.core is not None:
            self.reads.read(request, SimCaller(self, request, token, self.world.now).local())
        else:
            self.call("handle", request, token)

    def call(self, method: str, *arguments: Any, **named: Any) -> None:
        """Call the core and handle its effects."""
        if self.core is None:
            return
        try:
            getattr(self.core, method)(*arguments, self.clock, **named)
        except PowerCut:
            self.lose_power(method)
            return
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"the core of {self.id} raised {error!r} in {method}") from error
        if self.store.has_lost_power:
            return
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
        if self.store.has_lost_power:
            return
        if effects:
            self.apply(effects)
        if self.store.is_sync or self.store.needs_flush_soon:
            self.flush()

    def flush(self) -> None:
        if self.core is not None and self.store.begin_flush():
            self.world.at(self.world.now + self.fsync_time(), self.flushed, self.process)

    def apply(self, effects: list[Effect]) -> None:
        """Apply effects of the core, in its order."""
        for effect in effects:
            if self.core is None:
                return  # it lost power while it said hello
            if isinstance(effect, Send):
                self.world.send(self, effect)
            elif isinstance(effect, Load):
                self.load(effect)
            elif isinstance(effect, Reply):
                self.world.reply(self, effect)
            elif isinstance(effect, RoleChanged):
                self.reported_role = effect
                self.take_members()
                self.world.trace(self.id, "is %s of term %s, leader %s", effect.role.name, *effect[1:])
            elif isinstance(effect, MembersChanged):
                self.take_members()
                self.world.trace(self.id, "has members %s", ", ".join(effect.addresses))
            else:
                self.reported_committed = effect.index
                self.reads.committed(effect.index)
        if self.core is not None:
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
        if self.is_paused:
            self.defer(1, self.tick, process)
            return
        if self.store.failure is not None:
            # As `CoreDriver` does.
            self.lose_power("a failed operation")
            return
        if self.store.damage and world.random.random() < 0.02:
            self.scrub()
        if world.now >= self.checkpoint_due:
            self.checkpoint_due = world.now + CHECKPOINT_INTERVAL
            self.store.write_checkpoint()
        if self.store.flushes_in_background:
            self.flush()
        while self.waiting and next(iter(self.waiting.values())) <= world.now:
            self.handle_response(process, next(iter(self.waiting)), None)
        self.call("tick")
        if world.scenario.spares:
            for peer_id in () if self.core is None else self.core.members.others:
                world.connect(self, world.by_id[peer_id])
            if self.is_unlisted and world.random.random() < 0.1:
                self.stop("the group removed it")
                self.is_retired = True
                return
        tick = world.scenario.tick
        world.at(world.now + 1 + tick // 2 + int(world.random.random() * tick), self.tick, process)

    def scrub(self) -> None:
        """Tell the core what the scrubber of the store finds."""
        found = self.store.find_damage()
        if found:
            self.call("found_damage", found)

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
            try:
                index = self.store.end_flush()
            except StoreError as error:
                self.world.trace(self.id, "%s", error)
                return
            self.world.at(self.world.now + self.world.random.randrange(3), self.persisted, process, index)

    def persisted(self, process: int, index: int) -> None:
        if process != self.process:
            return
        if self.is_paused:
            self.defer(0, self.persisted, process, index)
            return
        self.call("persisted", index)
        self.flush()
