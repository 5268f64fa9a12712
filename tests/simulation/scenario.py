"""The scenario of one seed: the group, its timing, network, disks and faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random


@dataclass(frozen=True)
class Network:
    """Delays in ms, and shares of messages. Without `is_ordered` messages of a pair of nodes may be reordered."""

    min_delay: int = 1
    max_delay: int = 5
    slow_share: float = 0.0
    slow_delay: int = 0
    loss: float = 0.0
    duplication: float = 0.0
    is_ordered: bool = True


@dataclass(frozen=True)
class Scenario:
    """Times are ms of the world's clock; a node's own clock runs at its rate."""

    seed: int
    nodes: int = 3
    # More nodes, which join only if they are added.
    spares: int = 0
    is_sync: bool = False
    network: Network = field(default_factory=Network)
    # Options of CoreConfig.
    options: dict[str, object] = field(default_factory=dict)
    data_file_size: int = 1 << 30
    tick: int = 50
    # Per node: clock rate in permille and the fsync time in ms.
    rates: tuple[int, ...] = (1000,) * 5
    fsync: tuple[int, ...] = (2,) * 5
    # Pairs (a, b), a < b, that use the Java dialect.
    java_pairs: frozenset[tuple[int, int]] = frozenset()
    # Whether all messages are encoded to frames of raft.wire: JSON for Java pairs, else binary.
    is_framed: bool = False
    # Whether each node has the real store, on a disk that can lose power.
    is_on_disk: bool = False
    # Whether effects are drained once per millisecond, as the node does.
    is_coalescing: bool = True
    # The phase with faults, then the maximum time until the group has recovered.
    faulty_time: int = 20_000
    recovery_time: int = 120_000
    clients: int = 2
    # Clients that put messages; with them all nodes have an application.
    putters: int = 0
    # Whether clients append too: if not, entries of former leaders wait for a filler.
    is_appending: bool = True
    client_pause: int = 150
    body_size: int = 40
    # One of them happens about every `fault_pause`.
    faults: tuple[str, ...] = ()
    fault_pause: int = 1500

    @property
    def is_pair_of_ours(self) -> bool:
        """Whether it has two members, both of this package: one without its disk votes for the other one."""
        return self.nodes == 2 and not self.spares and not self.java_pairs


FAULTS = (
    "crash",
    "crash leader",
    "restart orderly",
    "power cut",
    "power cut of leader",
    "isolate",
    "isolate leader",
    "split",
    "one way",
    "heal",
    "pause",
    "pause leader",
    "transfer",
    "slow disk",
    "disk full",
    "disk fails",
    "expire",
    "loss",
    "long outage",
    "crash all",
)
DISKS = ("disk full in an append", "fsync fails")
CLOCKS = ("clock forward", "clock back")
FLIPS = ("flip bits", "flip bits", "flip bits at rest", "flip bits at rest")
HOSTILE = ("strangers", "forgers")
WRONG = ("wrong peers",)
MEMBERS_FILE = ("members file fails", "power cut of members file")
CHANGES = ("change members", "change members", "cut off a change")
SLEEPERS = ("sleep through changes", "sleep through changes")
TWO_SIDES = ("change on two sides",)


def make(seed: int) -> Scenario:
    """The scenario of a seed: mostly three nodes and several kinds of faults; some have none."""
    random = Random(seed)
    nodes = random.choices((1, 2, 3, 4, 5), (6, 6, 60, 4, 24))[0]
    heart_beat = random.choice((200, 300, 500, 500, 1000, 2000))
    kinds = random.sample(FAULTS, random.randint(0, 9))
    if _putters(seed) and Random(seed ^ 0xD15C).random() < 0.3:
        kinds += ["expire", "expire", "replace disk"]
    if Random(seed ^ 0xBACC).random() < 0.2:
        kinds += ["restore", "restore"]
    hostile = Random(seed ^ 0xBAD).choice(((), (), (), HOSTILE))
    wrong = WRONG * (Random(seed ^ 0xFEE5).random() < 0.2)
    changing = Random(seed ^ 0xADD5)
    spares = changing.randint(1, 2) if nodes > 1 and changing.random() < 0.25 else 0
    if spares:
        hostile, wrong = CHANGES, ()
        kinds += MEMBERS_FILE * (Random(seed ^ 0xFEED).random() < 0.3)
        kinds += SLEEPERS * (Random(seed ^ 0x51EE).random() < 0.4)
        kinds += TWO_SIDES * (Random(seed ^ 0x5200).random() < 0.3)
        if Random(seed ^ 0xBAC5).random() < 0.3:
            kinds += ["restore", "replace disk"]
    kinds += DISKS * (Random(seed ^ 0xF011).random() < 0.25) + CLOCKS * (Random(seed ^ 0xC10C).random() < 0.25)
    flips = FLIPS * (nodes > 2 and not spares and not _putters(seed) and Random(seed ^ 0xF11B).random() < 0.6)
    if flips:
        # One member has a damaged copy, so the others need their votes and their entries.
        kinds = [kind for kind in kinds if kind not in ("restore", "long outage")]
    faulty_time = min(60_000, heart_beat * random.randint(25, 70))
    pairs = [(a, b) for b in range(nodes) for a in range(b)]
    java = random.choice((0.0, 0.0, 0.4, 1.0))
    # Java's dialect has no summary, which a reset log of messages needs.
    needs_summary = bool(_putters(seed)) and "long outage" in kinds
    return Scenario(
        seed=seed,
        nodes=nodes,
        spares=spares,
        is_sync=random.random() < 0.5,
        network=_network(random, heart_beat),
        options=_options(random, nodes, heart_beat),
        data_file_size=random.choice((1 << 30, 1 << 30, 600, 4096)),
        tick=max(10, heart_beat // random.choice((6, 10, 16))),
        rates=_rates(random, nodes + spares),
        fsync=tuple(random.choice((1, 2, 5, 20, heart_beat // 4)) for _ in range(nodes + spares)),
        java_pairs=frozenset(
            pair for pair in pairs if random.random() < java and not (spares or flips or needs_summary)
        ),
        is_framed=random.random() < 0.1,
        is_coalescing=random.random() < 0.7,
        faulty_time=faulty_time,
        clients=random.randint(1, 3),
        putters=_putters(seed),
        is_appending=seed % 3 > 0 or not _putters(seed),
        client_pause=max(20, faulty_time // random.choice((40, 80, 150))),
        body_size=random.choice((10, 40, 300)),
        faults=(*kinds, *hostile, *wrong, *flips),
        fault_pause=max(200, faulty_time // random.choice((6, 12, 20))),
    )


ON_DISK = (
    *("power cut", "power cut", "power cut of leader", "power cut of leader"),
    *("crash", "crash leader", "restart orderly", "isolate", "isolate leader", "split", "one way", "pause leader"),
    *("transfer", "slow disk", "expire", "loss", "long outage", "crash all", "disk full in an append"),
    *("flip a bit of state", "fsync fails", "flip bits", "flip bits", "flip bits at rest", "flip bits at rest"),
    *("replace disk", "replace disk"),
)


def make_on_disk(seed: int) -> Scenario:
    """Three members with the real store, on disks that lose power; even seeds flush before they acknowledge."""
    random = Random(seed ^ 0xD15C)
    heart_beat = random.choice((200, 300, 500))
    faulty_time = heart_beat * random.randint(20, 40)
    is_sync = seed % 2 == 0
    kinds = random.sample(ON_DISK, random.randint(3, 9))
    return Scenario(
        seed=seed,
        is_sync=is_sync,
        is_on_disk=True,
        network=_network(random, heart_beat),
        options=_options(random, 3, heart_beat),
        data_file_size=random.choice((4096, 16 * 1024, 24 * 1024 + 100)),
        tick=max(10, heart_beat // random.choice((6, 10, 16))),
        rates=_rates(random, 3),
        fsync=tuple(random.choice((1, 2, 5, 20, heart_beat // 4)) for _ in range(3)),
        is_coalescing=random.random() < 0.7,
        faulty_time=faulty_time,
        clients=random.randint(1, 2),
        client_pause=max(20, faulty_time // random.choice((40, 80))),
        body_size=random.choice((10, 40, 300)),
        faults=(*kinds, *("power losses",) * (2 * is_sync)),
        fault_pause=max(200, faulty_time // random.choice((6, 12, 20))),
    )


WITH_CHANGES = (
    (
        *("expire",) * 2,
        "long outage",
        *("change members",) * 2,
        "sleep through changes",
        "replace disk",
        "crash leader",
    ),
    ("sleep through changes", "change members", "restore", "crash", "split"),
    (
        *("expire", "long outage", "change on two sides", "cut off a change", "members file fails"),
        *("power cut of members file", "crash all", "isolate leader", "replace disk"),
    ),
)


def make_with_changes(seed: int) -> Scenario:
    """Three or four of six members; changes of members all the time, while logs are reset and disks replaced."""
    found = make(seed)
    return replace(
        found,
        nodes=4 - seed % 2,
        spares=2,
        faults=WITH_CHANGES[seed % len(WITH_CHANGES)],
        fault_pause=max(150, found.faulty_time // 40),
        java_pairs=frozenset(),
        client_pause=max(20, found.faulty_time // 150),
    )


def _putters(seed: int) -> int:
    return Random(seed ^ 0xA99).choice((0, 1, 1, 2))


def _network(random: Random, heart_beat: int) -> Network:
    return Network(
        min_delay=random.choice((0, 1, 5)),
        max_delay=random.choice((5, 20, heart_beat // 6)),
        slow_share=random.choice((0.0, 0.0, 0.02, 0.1)),
        slow_delay=random.choice((heart_beat // 2, 2 * heart_beat)),
        loss=random.choice((0.0, 0.0, 0.01, 0.05, 0.15)),
        duplication=random.choice((0.0, 0.0, 0.02, 0.1)),
        is_ordered=random.random() < 0.65,
    )


def _options(random: Random, nodes: int, heart_beat: int) -> dict[str, object]:
    """Times scaled with the heartbeat, so that much happens in little virtual time; limits low enough to be reached."""
    vote = max(20, heart_beat // random.choice((2, 4, 7)))
    options: dict[str, object] = {
        "heart_beat_time_interval_ms": heart_beat,
        "max_heart_beat_leak": random.choice((2, 3, 3)),
        "min_vote_interval_ms": vote,
        "max_vote_interval_ms": vote * 3,
        "max_wait_ack_time_ms": heart_beat * random.choice((1, 2, 4)),
        "max_push_time_out_ms": max(100, heart_beat // random.choice((1, 2))),
        "leadership_transfer_wait_timeout_ms": heart_beat,
        "enable_batch_push": random.random() < 0.5,
    }
    if random.random() < 0.3:
        options["max_pending_requests_num"] = random.choice((2, 8, 40))
    if random.random() < 0.2:
        options["max_pending_bytes"] = random.choice((500, 3000))
    if random.random() < 0.4:
        options["max_push_bytes"] = random.choice((100, 400, 2000))
        options["max_batch_push_size"] = random.choice((100, 400, 2000))
        options["max_in_flight_bytes"] = random.choice((100, 1000, 5000))
    if random.random() < 0.15:
        options["max_leadership_transfer_wait_index"] = random.choice((1, 10))
    if random.random() < 0.15:
        options["preferred_leader_ids"] = (f"n{random.randrange(nodes)}",)
    if random.random() < 0.1:
        options["peer_push_quota"] = random.choice((5000, 50_000))
        options["peer_push_throttle_point"] = random.choice((0, 1000))
    return options


def _rates(random: Random, nodes: int) -> tuple[int, ...]:
    spread = random.choice((0, 20, 20, 300))
    return tuple(random.randint(1000 - spread, 1000 + spread) for _ in range(nodes))
