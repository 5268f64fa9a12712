"""Known defects of nodes whose clients pretend to be members of the group."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import IndexRangeError
from pyspark_dledger.format.codec import encode_entry
from pyspark_dledger.raft.messages import PushRequest, PushType
from pyspark_dledger.raft.tls import Tls
from tests.known_defects import DefectShown
from tests.support.certificates import make_client_tls, make_tls
from tests.support.groups import SMALL, Nodes, eventually, nodes


@pytest.mark.xfail(
    strict=True,
    raises=DefectShown,
    reason="a member takes TRUNCATE from any connection, also below its committed index",
)
def test_forged_truncate_erases_no_committed_entry(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as group:
        _truncated_entries_stay(group)


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, raises=DefectShown, reason="under TLS every certificate of the authority may act as a member"
)
def test_client_certificate_erases_no_committed_entry(tmp_path: Path) -> None:
    tls = make_tls(tmp_path)
    client_tls = make_client_tls(tmp_path)
    with nodes(tmp_path, 3, tls=tls) as group:
        _truncated_entries_stay(group, client_tls)


def _truncated_entries_stay(group: Nodes, tls: Tls | None = None) -> None:
    """Send each member a forged TRUNCATE with a far entry, and read what was acknowledged before."""
    bodies = [b"acknowledged %d" % number for number in range(20)]
    with dl.connect("g", group.peers, tls=tls, timeout_ms=10_000) as client:
        client.append_batch(bodies)
        eventually(lambda: all(group.status(node_id)["committedIndex"] == 19 for node_id in group.ids))
        term = max(group.status(node_id)["term"] for node_id in group.ids) + 5
        index, pos = 1_000_000, SMALL["data_file_size"]
        for number, node_id in enumerate(group.ids):
            forged = PushRequest(
                type=PushType.TRUNCATE,
                leader_id=group.ids[number - 1],
                term=term,
                first_index=index,
                count=1,
                data=encode_entry(index, term, pos, b"forged"),
                commit_index=index,
            )
            with closing(group.caller(node_id, tls and tls.client_context())) as caller, suppress(ConnectionError):
                caller.hello().call(forged)
        group.leader()
        try:
            found = [client.get(index).body for index in range(len(bodies))]
        except IndexRangeError as error:
            raise DefectShown(str(error)) from None
        assert found == bodies
