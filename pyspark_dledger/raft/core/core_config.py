"""The configuration of a member's core, with the names of ``DLedgerConfig``."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_dledger.common.options import BOOLEAN, COUNT, INTEGER, SIZE, Parser, option, parse_text
from pyspark_dledger.errors import OptionError

_MIB = 1 << 20
# So many vote intervals a member that cannot write leaves elections to others.
_PATIENCE = 10


def _parse_ids(value: object) -> tuple[str, ...]:
    return tuple(part.strip() for part in parse_text(value).replace(",", ";").split(";") if part.strip())


IDS = Parser("ids, separated by ;", _parse_ids)


@dataclass(frozen=True)
class CoreConfig:
    """Times are milliseconds, sizes bytes.

    ``peers`` has the ids of all members, with this one. With ``is_sync`` an entry counts as stored by this member only
    when it is durable, and so with ``is_sync_alone`` while it is the only voter. ``max_push_bytes`` limits a push to a
    binary member, ``max_batch_push_size`` one to a Java member. A follower with an application copies its leader's
    metadata first after ``copy_config_first_ms``, then every ``copy_config_every_ms``. ``changes_members``: the store
    may be of a group with other members. ``joins``: this member is none yet, ``peers`` has those of a running group.
    Raises OptionError for invalid values.
    """

    group: str
    self_id: str
    peers: tuple[str, ...]
    is_sync: bool = False
    is_sync_alone: bool = False
    heart_beat_time_interval_ms: int = option(2000, COUNT, "ms between heartbeats")
    max_heart_beat_leak: int = option(3, COUNT, "missing heartbeats before an election")
    min_vote_interval_ms: int = option(300, INTEGER, "minimum ms until a candidate tries again")
    max_vote_interval_ms: int = option(1000, INTEGER, "maximum ms until then")
    min_take_leadership_vote_interval_ms: int = option(30, INTEGER, "the same minimum during a transfer of leadership")
    max_take_leadership_vote_interval_ms: int = option(100, INTEGER, "the same maximum during a transfer")
    max_wait_ack_time_ms: int = option(2500, COUNT, "ms until an append without a quorum fails with 502")
    max_flush_time_ms: int = option(10_000, COUNT, "`flush=sync`: a leader with a slower flush hands over")
    max_push_time_out_ms: int = option(1000, COUNT, "ms until a push counts as lost")
    max_pending_requests_num: int = option(10_000, COUNT, "waiting appends; further ones fail with 503")
    max_pending_bytes: int = 256 * _MIB
    max_leadership_transfer_wait_index: int = option(1000, INTEGER, "entries that a new leader may lack")
    leadership_transfer_wait_timeout_ms: int = option(
        1000, INTEGER, "ms to send these entries", name="leadershipTransferWaitTimeout"
    )
    preferred_leader_ids: tuple[str, ...] = option((), IDS, "members that lead if possible")
    max_push_bytes: int = _MIB
    max_in_flight_bytes: int = 8 * _MIB
    max_in_flight_requests: int = 256
    peer_push_quota: int | None = option(None, SIZE, "bytes a second to a member that lags far")
    peer_push_throttle_point: int = option(300 * _MIB, SIZE, "lag in bytes from which the quota applies")
    enable_batch_push: bool = option(True, BOOLEAN, "several entries in a push to a Java member")
    max_batch_push_size: int = option(64 << 10, SIZE, "bytes of a push of several entries")
    copy_config_first_ms: int = 3000
    copy_config_every_ms: int = 10_000
    changes_members: bool = False
    joins: bool = False

    def __post_init__(self) -> None:
        if len(set(self.peers)) != len(self.peers) or self.self_id not in self.peers:
            raise OptionError(
                f"peers: expected every member once, and {self.self_id} among them, found {', '.join(self.peers)}: "
                "name every member of the group once"
            )
        _check_interval("vote interval", self.min_vote_interval_ms, self.max_vote_interval_ms)
        _check_interval(
            "vote interval while taking leadership",
            self.min_take_leadership_vote_interval_ms,
            self.max_take_leadership_vote_interval_ms,
        )
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise OptionError(f"{name}: expected at least 1, found {getattr(self, name)}: leave it at its default")

    @property
    def others(self) -> tuple[str, ...]:
        """All members except this one."""
        return tuple(peer for peer in self.peers if peer != self.self_id)

    @property
    def leak_ms(self) -> int:
        """The maximum time of a leader without a quorum, or of a follower without a heartbeat; at least 2 intervals."""
        return max(self.max_heart_beat_leak, 2) * self.heart_beat_time_interval_ms

    @property
    def patience_ms(self) -> int:
        """How long a member that cannot write leaves elections to others.

        They miss their leader, then they vote. One that asks a member that still follows it waits as long again.
        """
        return 2 * self.leak_ms + _PATIENCE * self.max_vote_interval_ms

    @property
    def quorum(self) -> int:
        """The number of members of a majority."""
        return len(self.peers) // 2 + 1


_POSITIVE = (
    "heart_beat_time_interval_ms",
    "max_heart_beat_leak",
    "max_push_time_out_ms",
    "max_push_bytes",
    "max_batch_push_size",
    "max_in_flight_bytes",
    "max_in_flight_requests",
    "copy_config_every_ms",
)


def _check_interval(name: str, minimum: int, maximum: int) -> None:
    if not 0 <= minimum < maximum:
        raise OptionError(f"{name}: expected a minimum below the maximum, found {minimum} and {maximum} ms: set both")
