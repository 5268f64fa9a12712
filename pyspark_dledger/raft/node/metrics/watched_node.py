"""The values of a node's metrics, and whether it is healthy and ready. All of it runs in the node's event loop.

While another thread changes the log, values can be of before and after the change.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import NamedTuple

from pyspark_dledger import __version__
from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.raft.core import Core
from pyspark_dledger.raft.core.application import Application
from pyspark_dledger.raft.core.effects import Status
from pyspark_dledger.raft.messages import Role
from pyspark_dledger.raft.node.connections import Connections
from pyspark_dledger.raft.node.core_driver import CoreDriver
from pyspark_dledger.raft.node.node_config import NodeConfig
from pyspark_dledger.raft.node.peer_link import PeerLink
from pyspark_dledger.raft.wire import NO_PERMISSION, REQUEST_CODE_NOT_SUPPORTED, SYSTEM_BUSY, SYSTEM_ERROR
from pyspark_dledger.store.dledger_store import DLedgerStore

_REJECTIONS = {
    SYSTEM_ERROR: "SYSTEM_ERROR",
    SYSTEM_BUSY: "SYSTEM_BUSY",
    REQUEST_CODE_NOT_SUPPORTED: "REQUEST_CODE_NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
}

# A change of the log that takes longer keeps requests waiting too long.
_BUSY_SECONDS = 1.0

# Numbers by the values of the labels.
Labelled = Mapping[tuple[str, ...], float]
Values = dict[str, float | Labelled | Histogram]
"""The values of metrics by name."""


STARTING = "STARTING"
"""The role of a member whose store is being opened."""
_ROLES = (*(role.value for role in (Role.LEADER, Role.FOLLOWER, Role.CANDIDATE)), STARTING)


def role_values(role: str) -> Labelled:
    return {(each,): each == role for each in _ROLES}


def info_values(config: NodeConfig) -> Values:
    return {
        "dledger_build_info": {(__version__, platform.python_version()): 1},
        "dledger_member_info": {(config.group, config.self_id, config.flush_mode()): 1},
    }


class WatchedNode(NamedTuple):
    """The parts of a running node."""

    config: NodeConfig
    store: DLedgerStore
    core: Core
    driver: CoreDriver
    connections: Connections
    links: Mapping[str, PeerLink]
    application: Application | None

    # Health

    def failure(self) -> str | None:
        """Why the node must be restarted; None if it works."""
        if self.store.failure is not None:
            return "the store has failed: see the log of the node"
        return "the node has stopped: see its log" if self.driver.is_stopped else None

    def unreadiness(self) -> str | None:
        """Why the node should get no requests; None if it is ready."""
        if (failure := self.failure()) is not None:
            return failure
        if self.core.is_removed:
            return "the group removed this member: stop it"
        if self.driver.threads.busy_seconds > _BUSY_SECONDS:
            return f"the disk does not respond for more than {_BUSY_SECONDS:g} s"
        status, limit = self.core.status(), self.core.max_lag
        if status.leader_id is None:
            return "; ".join(filter(None, ("no leader", status.problem)))
        if self.store.metrics().is_disk_full:
            return "the disk is full: appends are rejected"
        if problem := self.core.flush_problem:
            return f"{problem} (maxFlushTimeMs)"
        if status.lag > limit:
            return f"lacks {status.lag} committed entries: expected at most {limit} (maxLeadershipTransferWaitIndex)"
        if self.core.needs_summary:
            return "lacks the state of expired messages"
        if self.core.role is Role.LEADER and self.application is not None and not self.application.is_ready:
            return "the leader is still reading its log"
        return None

    # Values

    def values(self) -> Values:
        """The values of the metrics that this node has. Histograms are still counting."""
        status = self.core.status()
        return {
            **self._member_values(status),
            **self._log_values(status),
            **self._connection_values(),
            **self._store_values(),
            **({} if self.application is None else self.application.metrics()),
        }

    def _member_values(self, status: Status) -> Values:
        values: Values = {
            **info_values(self.config),
            "dledger_role": role_values(status.role.value),
            "dledger_removed": self.core.is_removed,
            "dledger_has_leader": status.leader_id is not None,
            "dledger_term": status.term,
            "dledger_elections_total": status.elections,
            "dledger_leader_changes_total": self.driver.leader_changes,
            "dledger_problems_total": status.problems,
            "dledger_event_loop_delay_seconds": self.driver.delays,
            "dledger_lag_entries": status.lag,
            "dledger_peer_connected": {(key,): link.is_connected for key, link in self.links.items()},
            "dledger_peer_mismatch": {(key,): link.mismatch is not None for key, link in self.links.items()},
        }
        if status.role is Role.LEADER:
            values["dledger_peer_lag_entries"] = {
                (peer.peer_id,): max(0, status.end_index - peer.match_index) for peer in status.peers
            }
        return values

    def _log_values(self, status: Status) -> Values:
        return {
            "dledger_ledger_begin_index": status.begin_index,
            "dledger_ledger_end_index": status.end_index,
            "dledger_committed_index": status.committed_index,
            "dledger_flushed_index": self.store.flushed_index,
            "dledger_ledger_end_position_bytes": self.store.end_pos,
            "dledger_append_seconds": self.core.append_latencies,
            "dledger_pending_appends": status.pending_appends,
            "dledger_damaged_entries": self.core.damaged_entries,
            "dledger_damaged_entries_found_total": status.found_damaged,
            "dledger_damaged_entries_repaired_total": status.repaired,
        }

    def _connection_values(self) -> Values:
        connections, rejected = self.connections, self.connections.rejected
        return {
            "dledger_connections": {(role,): count for role, count in connections.counts().items()},
            "dledger_refused_connections_total": {(kind,): count for kind, count in rejected.connections.items()},
            "dledger_refused_requests_total": {
                (_REJECTIONS.get(code) or ResponseCode(code).name,): count for code, count in rejected.requests.items()
            },
            "dledger_quota_refused_requests_total": {
                (name,): count for name, count in connections.quotas.rejected.items()
            },
            "dledger_refused_member_requests_total": {
                (name,): count for name, count in rejected.member_requests.items()
            },
            "dledger_connection_memory_bytes": connections.memory.used,
            "dledger_connection_memory_limit_bytes": connections.memory.limit,
        }

    def _store_values(self) -> Values:
        metrics = self.store.metrics()
        values: Values = {
            "dledger_store_failed": self.store.failure is not None,
            "dledger_disk_full": metrics.is_disk_full,
            "dledger_disk_slow": bool(self.core.flush_problem),
        }
        if metrics.flushes is not None:
            scrub = metrics.scrub
            values |= {
                "dledger_flush_seconds": metrics.flushes,
                "dledger_scrub_checked_bytes_total": scrub.checked_bytes,
                "dledger_scrub_pass_bytes": scrub.pass_bytes,
                "dledger_scrub_log_bytes": scrub.log_bytes,
                "dledger_scrub_last_pass_timestamp_seconds": scrub.last_pass,
                "dledger_scrub_rebuilt_units_total": scrub.rebuilt_units,
            }
        return values
