"""The configuration of a node: group, address, store, and options of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path

from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.options import (
    BOOLEAN,
    COUNT,
    SIZE,
    TEXT,
    Parser,
    checked,
    choice,
    option,
    parse_size,
    parse_text,
    show_size,
)
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.core import CoreConfig
from pyspark_dledger.raft.peers import Address, format_peers, parse_address, parse_peers, without_brackets
from pyspark_dledger.raft.secret import Secrets, check_secret
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.raft.wire import MAX_FRAME_SIZE
from pyspark_dledger.store.store_config import FLUSHES, Flush, StoreConfig

_MIN_MEMORY = 64 << 20
_LOOPBACK = "127.0.0.1"
_MEMORY = Parser("a size of at least 64m", lambda value: checked(parse_size(value), _MIN_MEMORY, INT64_MAX), show_size)
PATH = Parser("a path", lambda value: Path(parse_text(value)))


@dataclass(frozen=True)
class NodeConfig:
    """One member of a group.

    Without ``store`` the log is only in memory. Clients must send ``secret``, members ``member_secret``, or ``secret``
    if there is none. Secrets are unencrypted without TLS.
    ``store_options`` are fields of ``StoreConfig``, ``core_options`` of ``CoreConfig``, by name.
    """

    group: str = option(MISSING, TEXT, "the group's name")
    self_id: str = option(MISSING, TEXT, "this member's id, such as `n0`")
    peers: str = option(MISSING, TEXT, "all members, `n0-HOST:PORT;n1-HOST:PORT`; identical at every member")
    store: Path | None = option(None, PATH, "folder of `dledger-<selfId>/`; created if missing", name="storeBaseDir")
    flush: Flush | None = option(
        None,
        choice(FLUSHES),
        "sync: on disk before the acknowledgement; default: sync in a group of one, else async",
    )
    common_peers: str | None = option(None, TEXT, "members compare this list instead of `peers`, if addresses differ")
    change_members: bool = option(False, BOOLEAN, "for one start: accept another group, or other members")
    join: bool = option(False, BOOLEAN, "for one start, with an empty disk: join a running group")
    listen: str | None = option(None, TEXT, "HOST or HOST:PORT; default: its address in `peers`, if loopback")
    metrics: str | None = option(None, TEXT, "HOST:PORT, or PORT of 127.0.0.1")
    tls: Tls | None = None
    secret: str | None = field(default=None, repr=False)
    member_secret: str | None = field(default=None, repr=False)
    max_frame_bytes: int = MAX_FRAME_SIZE
    max_connections: int = option(1024, COUNT, "connections of clients; a further one replaces the oldest idle one")
    max_connections_per_address: int = option(512, COUNT, "connections of one address")
    max_connection_memory: int = option(128 << 20, _MEMORY, "for requests and responses of clients")
    max_requests_per_second: int | None = option(None, COUNT, "requests a second of one address")
    max_bytes_per_second: int | None = option(None, SIZE, "bytes a second that one address sends and receives")
    max_topics: int | None = option(100_000, COUNT, "topics, with `--messages`")
    max_queues: int | None = option(1_000_000, COUNT, "queues of all topics")
    handshake_timeout_ms: int = option(10_000, COUNT, "ms until a client has finished TLS and sent the secret")
    idle_timeout_ms: int = option(120_000, COUNT, "ms until an idle client is disconnected")
    transfer_timeout_ms: int = option(60_000, COUNT, "ms to transfer 64 KiB; 2000 while memory is short")
    store_options: Mapping[str, object] = field(default_factory=dict)
    core_options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_secret(self.secret)
        check_secret(self.member_secret, "memberSecret")

    def secrets(self) -> Secrets:
        return Secrets(self.secret, self.member_secret)

    def members(self) -> dict[str, Address]:
        """The members by id. Raises OptionError if this node is not among them."""
        members = parse_peers(self.peers)
        if self.self_id not in members:
            raise OptionError(f"peers: expected this node's id {self.self_id} among them, found {', '.join(members)}")
        return members

    def compared_peers(self) -> str:
        """The peers as every member must have them: sorted by id. Raises OptionError."""
        peers = parse_peers(self.common_peers or self.peers)
        if peers.keys() != self.members().keys():
            raise OptionError(
                f"commonPeers: expected the members {', '.join(self.members())}, found {', '.join(peers)}"
            )
        return format_peers({key: Address(peers[key].host.lower(), peers[key].port) for key in sorted(peers)})

    def flush_mode(self) -> Flush:
        if self.flush is not None and self.flush not in FLUSHES:
            raise OptionError(f"flush: expected sync or async, found {self.flush!r}")
        return self.flush or ("sync" if len(self.members()) == 1 else "async")

    def listen_address(self) -> Address:
        """The address to listen at. Raises OptionError for the default address if other machines could reach it."""
        own = self.members()[self.self_id]
        if self.listen is None:
            if not own.is_loopback:
                raise OptionError(
                    f"listen: expected a loopback address in peers, found {own}, which other machines may reach: "
                    f"allow that with listen {own.host}"
                )
            return own
        if _has_port(self.listen):
            return parse_address(self.listen, "listen")
        return Address(without_brackets(self.listen), own.port)

    def metrics_address(self) -> Address | None:
        """The address of metrics and health. Raises OptionError."""
        if self.metrics is None:
            return None
        return parse_address(self.metrics if ":" in self.metrics else f"{_LOOPBACK}:{self.metrics}", "metrics")

    def core_config(self) -> CoreConfig:
        """The core's configuration. Raises OptionError for an unknown field or an invalid value."""
        try:
            return CoreConfig(
                group=self.group,
                self_id=self.self_id,
                peers=tuple(self.members()),
                is_sync=self.flush_mode() == "sync" and self.store is not None,
                is_sync_alone=self.flush is None and self.store is not None,
                changes_members=self.change_members,
                joins=self.join,
                **self.core_options,  # type: ignore[arg-type]  # checked by the class
            )
        except TypeError as error:
            raise OptionError(f"core options: {error}") from None

    def store_config(self, base_dir: Path) -> StoreConfig:
        """The configuration of its store in `base_dir`. Raises OptionError like `core_config`."""
        try:
            return StoreConfig(
                base_dir=base_dir,
                self_id=self.self_id,
                flush=self.flush_mode(),
                **self.store_options,  # type: ignore[arg-type]  # checked by the class
            )
        except TypeError as error:
            raise OptionError(f"store options: {error}") from None


def _has_port(text: str) -> bool:
    """Whether it is HOST:PORT: a bare IPv6 address has several colons, one in brackets without a port ends with `]`."""
    return "]:" in text or (text.count(":") == 1 and not text.endswith("]"))
