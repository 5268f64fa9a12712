"""Every metric of a node: its name, kind, labels and meaning. docs/operations.md lists them from here."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]
GAUGE: Kind = "gauge"
COUNTER: Kind = "counter"
HISTOGRAM: Kind = "histogram"


class Metric(NamedTuple):
    """One metric; ``doc`` is its help text.

    The values of labels come from the configuration or from the code, never from a client.
    """

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


GROUPS: dict[str, tuple[Metric, ...]] = {
    "member": (
        Metric("dledger_build_info", GAUGE, "Versions of the package and of Python.", ("version", "python")),
        Metric("dledger_member_info", GAUGE, "Group, id and flush mode of this member.", ("group", "id", "flush")),
        Metric("dledger_role", GAUGE, "1 for the role of this member, STARTING while its store is opened.", ("role",)),
        Metric("dledger_removed", GAUGE, "1 if the group removed this member."),
        Metric("dledger_has_leader", GAUGE, "1 if this member leads or follows a leader."),
        Metric("dledger_term", GAUGE, "The term of this member."),
        Metric("dledger_elections_total", COUNTER, "Rounds of vote requests that this member began."),
        Metric("dledger_leader_changes_total", COUNTER, "New leaders, or new terms of one, that this member saw."),
        Metric("dledger_problems_total", COUNTER, "Problems that this member reported in its log."),
        Metric("dledger_event_loop_delay_seconds", HISTOGRAM, "How late the event loop was, 100 times a second."),
    ),
    "log": (
        Metric("dledger_ledger_begin_index", GAUGE, "Index of the first entry; -1 without one."),
        Metric("dledger_ledger_end_index", GAUGE, "Index of the last entry; -1 without one."),
        Metric("dledger_committed_index", GAUGE, "Index of the last entry known to be committed; -1 without one."),
        Metric("dledger_flushed_index", GAUGE, "Index of the last entry that is on disk; -1 without one."),
        Metric("dledger_ledger_end_position_bytes", GAUGE, "Position after the last entry."),
    ),
    "replication": (
        Metric("dledger_lag_entries", GAUGE, "Committed entries that this member lacks, as far as it knows."),
        Metric("dledger_peer_lag_entries", GAUGE, "Entries that a peer lacks; at the leader only.", ("peer",)),
        Metric("dledger_peer_connected", GAUGE, "1 if this member is connected to the peer.", ("peer",)),
        Metric("dledger_peer_mismatch", GAUGE, "1 if the peer is not of this group, or says so.", ("peer",)),
    ),
    "appends": (
        Metric("dledger_append_seconds", HISTOGRAM, "From append to commit, at the leader, in whole milliseconds."),
        Metric("dledger_pending_appends", GAUGE, "Appends that are not committed yet."),
        Metric("dledger_flush_seconds", HISTOGRAM, "Time to make appended entries durable (fsync)."),
    ),
    "clients": (
        Metric("dledger_connections", GAUGE, "Open connections, of clients and of members.", ("role",)),
        Metric("dledger_connection_memory_bytes", GAUGE, "Memory that connections of clients use."),
        Metric("dledger_connection_memory_limit_bytes", GAUGE, "Memory that connections of clients may use."),
        Metric("dledger_refused_connections_total", COUNTER, "Connections refused or closed.", ("reason",)),
        Metric("dledger_refused_requests_total", COUNTER, "Requests whose response is an error.", ("reason",)),
        Metric("dledger_quota_refused_requests_total", COUNTER, "Requests above a quota of an address.", ("quota",)),
        Metric("dledger_refused_member_requests_total", COUNTER, "Requests of no member as a member.", ("request",)),
    ),
    "disk": (
        Metric("dledger_store_failed", GAUGE, "1 after a failure of the store, until a restart."),
        Metric("dledger_disk_full", GAUGE, "1 while a full disk rejects appends."),
        Metric("dledger_disk_slow", GAUGE, "1 while a flush takes longer than maxFlushTimeMs."),
        Metric("dledger_disk_free_bytes", GAUGE, "Free room of the disk of a folder.", ("folder",)),
        Metric("dledger_disk_size_bytes", GAUGE, "Size of the disk of a folder.", ("folder",)),
    ),
    "damage": (
        Metric("dledger_scrub_checked_bytes_total", COUNTER, "Bytes of entries that the scrubber has read."),
        Metric("dledger_scrub_pass_bytes", GAUGE, "Bytes of entries read in this pass of the scrubber."),
        Metric("dledger_scrub_log_bytes", GAUGE, "Bytes that a pass of the scrubber reads."),
        Metric("dledger_scrub_last_pass_timestamp_seconds", GAUGE, "End of the last whole pass; 0 before."),
        Metric("dledger_scrub_rebuilt_units_total", COUNTER, "Damaged index units that the scrubber has rebuilt."),
        Metric("dledger_damaged_entries", GAUGE, "Damaged entries that are not repaired."),
        Metric("dledger_damaged_entries_found_total", COUNTER, "Damaged entries that were found."),
        Metric("dledger_damaged_entries_repaired_total", COUNTER, "Damaged entries that were repaired."),
    ),
    "`--messages`": (
        Metric("dledger_topics", GAUGE, "Topics that this member knows."),
        Metric("dledger_queues", GAUGE, "Queues that have had messages."),
        Metric("dledger_dispatched_index", GAUGE, "Last entry whose message is in its queue; -1 without one."),
        Metric("dledger_put_messages_total", COUNTER, "Messages that this member appended as leader."),
        Metric("dledger_put_duplicates_total", COUNTER, "Messages that it did not append again."),
        Metric(
            "dledger_put_rejected_total",
            COUNTER,
            "Rejected puts, also above maxTopics or maxQueues.",
            ("reason",),
        ),
    ),
}
"""The metrics by what they are about."""

METRICS = tuple(metric for group in GROUPS.values() for metric in group)
