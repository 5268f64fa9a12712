"""READ in the simulated world: `CommittedReads` with simulated timers, threads and memory, and the judge of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import StoreError
from pyspark_dledger.raft.core import Reply
from pyspark_dledger.raft.messages import ReadRequest, ReadResponse, Response
from pyspark_dledger.raft.node.callers import LocalCaller
from pyspark_dledger.raft.node.committed_reads import CommittedReads
from pyspark_dledger.raft.node.disk_threads import DiskThreads
from pyspark_dledger.store.dledger_store import EntryRange
from tests.simulation.checker import Violation

if TYPE_CHECKING:
    from tests.simulation.checker import Checker
    from tests.simulation.node import SimNode
    from tests.simulation.world import World

# A response may be so late, in ms: the disk is slow, or there is no memory.
LATE = 1000


def reads_of(node: SimNode, reads_class: type[CommittedReads]) -> CommittedReads:
    """The READ handler of the node's present process."""
    threads = cast("DiskThreads", _Threads(node))
    return reads_class(node.store, threads, "g", node.id, lambda seconds, work: _Timer(node, seconds, work))


class _Timer:
    """Calls a function once, unless it is cancelled or the process ends."""

    def __init__(self, node: SimNode, seconds: float, work: Callable[[], object]) -> None:
        self.is_cancelled = False
        self._work = work
        node.later(int(seconds * 1000), self._fire)

    def cancel(self) -> None:
        self.is_cancelled = True

    def _fire(self) -> None:
        if not self.is_cancelled:
            self._work()


class _Threads:
    """As `DiskThreads`: reads at once, and passes the result on later."""

    is_busy = False

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def read(self, first: int, max_bytes: int, done: Callable[[EntryRange | Exception], None]) -> None:
        store, removals = self._node.store, self._node.store.removals
        result: EntryRange | Exception
        try:
            result = store.read(first, max_bytes)
        except StoreError as error:
            result = error

        def finished() -> None:
            if removals != store.removals:
                self.read(first, max_bytes, done)
            else:
                done(result)

        self._node.later(self._node.world.random.randrange(min(4 * self._node.fsync, LATE)), finished)


class SimCaller(NamedTuple):
    """Who gets the response to a READ; `token` is as in the core."""

    node: SimNode
    request: ReadRequest
    token: object
    asked_at: int

    # As a request of the process itself: no connection.
    inbound = None

    def local(self) -> LocalCaller:
        return cast("LocalCaller", self)

    def when_room(self, size: int, work: Callable[[], None]) -> None:
        """Call `work` at once, or sometimes later: as if other responses used the memory."""
        if self.node.world.random.random() < 0.8:
            work()
        else:
            self.node.world.checker.count("READs that waited for memory")
            self.node.later(self.node.world.random.randrange(LATE // 2), work)

    def respond(self, response: Response) -> None:
        assert isinstance(response, ReadResponse)
        response.data = bytes(response.data)
        check_range(self.node.world.checker, self.node, self.request, response)
        self.node.world.reply(self.node, Reply(self.token, response))


class OpenRead(NamedTuple):
    """A READ without a response, and the process that got it."""

    node: SimNode
    process: int
    request: ReadRequest
    asked_at: int


def check_answered(world: World) -> None:
    """No process forgets a READ: it has responded after the time that the request allows, a pause and delays."""
    slack = 20 * world.base_config.heart_beat_time_interval_ms + 5 * LATE
    for read in world.open_reads.values():
        late = world.now - read.asked_at - read.request.wait_ms
        if read.node.process == read.process and read.node.core is not None and late > slack:
            raise Violation(f"READ of {read.node.id} from {read.request.first_index} got no response for {late} ms")


def check_range(checker: Checker, node: SimNode, request: ReadRequest, response: ReadResponse) -> None:
    """READ returns consecutive committed entries with their bytes, and nothing only if there are none."""
    store, first = node.store, request.first_index
    last = first + response.count - 1
    checker.count(f"READ responses {int(response.code)}")
    who = f"READ of {node.id} from {first}"
    if response.code == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
        if 0 <= store.ledger_begin_index <= first:
            raise Violation(f"{who}: expired, but its log begins at {store.ledger_begin_index}")
    elif response.code == ResponseCode.DISK_ERROR:
        if not store.is_damaged(first) and first not in store.repaired:
            raise Violation(f"{who}: DISK_ERROR without damage")
    elif response.code != ResponseCode.SUCCESS:
        raise Violation(f"{who}: response code {int(response.code)}")
    elif not response.count:
        if first <= store.committed_index:
            raise Violation(f"{who}: nothing, and it has committed {store.committed_index}")
    else:
        if last > min(store.committed_index, len(checker.history) - 1):
            raise Violation(f"{who}: entries to {last}, and it has committed {store.committed_index}")
        data = b"".join(checker.history[index].data for index in range(first, last + 1))
        if response.first_index != first or bytes(response.data) != data:
            raise Violation(f"{who}: other bytes than the committed entries to {last}")
        if response.count > 1:
            checker.count("READs of several entries")
            if len(data) > request.max_bytes:
                raise Violation(f"{who}: {len(data)} bytes, at most {request.max_bytes} were requested")
