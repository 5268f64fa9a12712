"""A member joins a group that serves messages, whose log then has a list of members."""

from __future__ import annotations

from pathlib import Path

import pyspark_dledger as dl
from tests.rocketmq.test_message_service import client_of, contents
from tests.support.groups import HOST, eventually, free_ports
from tests.support.message_nodes import message_nodes, puts, rows


def test_a_new_member_has_the_same_queues(tmp_path: Path) -> None:
    with message_nodes(tmp_path, 2) as group, client_of(group) as client:
        client.put_messages(puts(rows(10)))
        (port,) = free_ports(1)
        group.start("n2", peers=f"{group.peers};n2-{HOST}:{port}", join=True)
        client.add_member("n2", f"{HOST}:{port}")
        eventually(lambda: client.members().is_final)
        assert sorted(client.members().voters) == ["n0", "n1", "n2"]
        last = list(client.put_messages(puts(rows(10, 10))))[-1]
        assert list(client.put_messages(puts(rows(10, 10))))[-1] == last
        eventually(lambda: group.status("n2")["committedIndex"] == last.index)
    found = {node_id: contents(group.root(node_id)) for node_id in ("n0", "n1", "n2")}
    assert found["n0"] == found["n1"] == found["n2"]
    topics = [row[0] for row in found["n2"]]
    assert topics.count("RMQ_SYS_DLEDGER_CONTROL") == 2
    assert len(topics) == 22
    found_in_n2 = dl.open_log(str(group.root("n2"))).findings()
    assert not [finding for finding in found_in_n2 if finding.severity != "info"]
