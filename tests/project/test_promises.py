"""Every promise of SECURITY.md, and of what an acknowledgement means, has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# The first words of a row, and its tests by file.
PROMISES = {
    "the author of a store that is read": {
        "tests/security/test_hostile_stores.py": ["test_export_copies_nothing_from_outside_the_store"],
        "tests/project/test_fuzz.py": [],
    },
    "the author of names and bodies in a store": {
        "tests/security/test_leaks.py": [
            "test_page_has_no_control_characters",
            "test_folder_name_controls_no_terminal",
        ],
        "tests/cli/test_report.py": [],
    },
    "a reader of `--redact` output": {
        "tests/security/test_leaks.py": ["test_redacted_report_of_two_stores_has_no_path"]
    },
    "a client without certificate": {
        "tests/security/test_hostile_members.py": ["test_client_certificate_erases_no_committed_entry"],
        "tests/raft/test_roles.py": ["test_secrets_of_a_first_request"],
    },
    "a client: any connection": {
        "tests/security/test_hostile_members.py": [
            "test_requests_of_members_from_another_address_are_refused",
            "test_requests_of_members_need_the_members_secret",
        ],
        "tests/raft/test_roles.py": ["test_members_change_only_by_members"],
        "tests/security/test_hostile_queue_offsets.py": [
            "test_hostile_queue_offset_hides_no_later_message",
            "test_an_append_with_impossible_bodies_is_rejected",
        ],
        "tests/raft/test_quotas.py": ["test_no_topic_and_no_queue_is_created_above_the_limits"],
    },
    "a forger of messages of members": {
        "tests/security/test_hostile_members.py": ["test_forged_truncate_erases_no_committed_entry"],
        "tests/raft/test_membership_nodes.py": ["test_a_member_that_is_refused_learns_only_that_it_was_removed"],
        "tests/simulation/hostile.py": [],
    },
    "any network peer": {
        "tests/security/test_hostile_load.py": [
            "test_reads_that_arrive_together_need_little_memory",
            "test_unfinished_frames_need_little_memory",
            "test_unfinished_handshakes_need_little_memory",
            "test_idle_connections_do_not_exclude_others",
        ],
        "tests/raft/test_limits.py": ["test_silent_connections_leave_open_files_for_the_store"],
    },
    "a name server or broker": {
        "tests/security/test_hostile_brokers.py": [
            "test_routes",
            "test_frames",
            "test_redirections_without_end",
            "test_large_responses_are_not_collected",
        ],
        "tests/cluster/test_cluster_reads.py": ["test_requests_are_signed_and_the_secret_is_shown_nowhere"],
    },
    "another user of the machine": {"tests/security/test_leaks.py": ["test_new_store_is_for_its_user_only"]},
    "a disk": {
        "tests/raft/test_repairs.py": [],
        "tests/raft/test_full_disk.py": [],
        "tests/raft/test_slow_disk.py": [],
        "tests/raft/test_membership_nodes.py": ["test_two_members_continue_after_one_lost_its_disk"],
        "tests/backup/test_backup_group.py": ["test_a_member_restored_under_load_loses_no_acknowledged_entry"],
    },
    "a wall clock": {
        "tests/store/test_steady_clock.py": ["test_a_jump_counts_when_it_has_lasted_a_day"],
        "tests/rocketmq/test_identities.py": ["test_a_run_of_older_messages_hides_no_earlier_run"],
    },
    "the network between members": {"tests/raft/test_simulation.py": [], "tests/simulation/faults.py": []},
    "an operator": {
        "tests/raft/test_hello.py": [],
        "tests/raft/test_membership_nodes.py": ["test_changes_that_cannot_be_made_are_refused"],
    },
}


def attackers() -> list[str]:
    text = (ROOT / "SECURITY.md").read_text("utf-8")
    table = text[text.index("## In scope") : text.index("## Limits")]
    return [row.split("|")[1].strip() for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)[2:]]


@pytest.mark.parametrize("attacker", attackers())
def test_a_promise_has_tests(attacker: str) -> None:
    (found,) = [tests for name, tests in PROMISES.items() if attacker.startswith(name)]
    for file, names in found.items():
        text = (ROOT / file).read_text("utf-8")
        for name in names:
            assert f"def {name}(" in text, f"{file}: {name}"


def test_each_set_of_tests_is_of_a_promise() -> None:
    assert len(attackers()) == len(PROMISES)


@pytest.mark.parametrize(
    ("what", "file", "name"),
    [
        ("handshakes", "listener.py", "_MAX_HANDSHAKES"),
        ("outstanding requests", "inbound.py", "_MAX_OUTSTANDING"),
        ("reads", "inbound.py", "_MAX_READS"),
        ("connections of a member", "connections.py", "_PER_MEMBER"),
        ("connections to `--metrics`", "metrics/http_server.py", "_MAX_CONNECTIONS"),
    ],
)
def test_fixed_limits_are_documented(what: str, file: str, name: str) -> None:
    source = (ROOT / "pyspark_dledger" / "raft" / "node" / file).read_text("utf-8")
    value = re.search(rf"^{name} = (\d+)$", source, re.MULTILINE)
    assert value is not None
    row = re.search(rf"^\| {re.escape(what)}[^|]*\| ([\d,]+)", (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE)
    assert row is not None
    assert row[1].replace(",", "") == value[1]
