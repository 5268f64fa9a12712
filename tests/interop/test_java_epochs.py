"""An epoch that a slave never hears of, because its master did not change: check and diff name it."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.stores.verdict_text import member_text
from tests.interop.plain_stores import PlainStores
from tests.support.groups import eventually, free_ports
from tests.support.long_runs import first

SETTINGS = {"mappedFileSizeCommitLog": "65536", "maxHashSlotNum": "100", "maxIndexNum": "400"}


@pytest.mark.slow
@pytest.mark.parametrize("version", first(["5.3.3", "5.4.0"], 1))
def test_an_epoch_that_the_slave_lacks_is_named(version: str, tmp_path: Path) -> None:
    lacks_epoch = version == "5.3.3"
    port = free_ports(1)[0]
    roots = [tmp_path / name for name in ("master", "slave")]
    with ExitStack() as stack:
        master, slave = (stack.enter_context(closing(PlainStores(version, tmp_path))) for _ in roots)
        master.open(settings(roots[0]) | {"haListenPort": str(port)}, "ASYNC_MASTER")
        slave.open(settings(roots[1]))
        master.lead(1)
        slave.follow(1, f"127.0.0.1:{port}")
        for epoch in (1, 2):
            if epoch == 2:
                master.stay_master(2)
            master.put(200, "Orders", 2)
            assert eventually(lambda: slave.max_offset() == master.max_offset(), 30)
        for each in (slave, master):
            each.close_store()
    found = dl.check(roots)
    assert [set(dl.open_log(root).state.epochs or {}) for root in roots] == [{1, 2}, {1} if lacks_epoch else {1, 2}]
    assert found.commit_logs is not None
    points = {(each.slave, each.master): each for each in found.commit_logs.consistent_points}
    point = points["slave", "master"]
    assert (point.lost_bytes, point.equal_bytes > 0) == (0, lacks_epoch)
    assert [member.start for member in found.members] == ["yes", "yes"]
    assert found.is_clean != lacks_epoch
    assert ("RocketMQ issue 9689" in member_text(found.commit_logs.verdict.members[1])) == lacks_epoch


@pytest.mark.slow
def test_a_slave_without_epochs_follows_a_master_that_has_expired_its_epoch(tmp_path: Path) -> None:
    """What the verdict on a slave advises if Java finds no consistent point."""
    port, roots = free_ports(1)[0], [tmp_path / name for name in ("master", "slave")]
    with ExitStack() as stack:
        master, slave = (stack.enter_context(closing(PlainStores("5.3.3", tmp_path))) for _ in roots)
        master.open(settings(roots[0]), "ASYNC_MASTER")
        master.lead(1)
        master.put(200, "Orders", 2)
        end = master.max_offset()
        master.close_store()
        shutil.copytree(*roots)
        (roots[0] / "epochFileCheckpoint").write_text("1\n0\n2-0\n")
        found = dl.check(roots).commit_logs
        assert found is not None
        assert "without epochFileCheckpoint and its .bak it follows" in member_text(found.verdict.members[1])
        for file in roots[1].glob("epochFileCheckpoint*"):
            file.unlink()
        master.open(settings(roots[0]) | {"haListenPort": str(port)}, "ASYNC_MASTER")
        slave.open(settings(roots[1]))
        master.lead(3)
        slave.follow(3, f"127.0.0.1:{port}")
        master.put(200, "Orders", 2)
        assert eventually(lambda: slave.max_offset() == master.max_offset() > end, 30)
        for each in (slave, master):
            each.close_store()
    assert dl.check(roots).is_clean


def settings(root: Path) -> dict[str, str]:
    paths = {"storePathRootDir": str(root), "storePathCommitLog": str(root / "commitlog")}
    epochs = {"storePathEpochFile": str(root / "epochFileCheckpoint"), "enableControllerMode": "true"}
    return {**SETTINGS, **paths, **epochs}


@pytest.mark.slow
@pytest.mark.parametrize("version", first(["5.3.3", "5.5.0"], 1))
def test_an_old_tail_that_a_crash_brought_back_is_named(version: str, tmp_path: Path) -> None:
    """A slave truncates its log in memory only (RocketMQ issue 10666): killed, it has what it wrote as a master."""
    port, roots = free_ports(1)[0], [tmp_path / name for name in ("former", "master")]
    one_file = {"mappedFileSizeCommitLog": str(1 << 20), "flushConsumeQueueThoroughInterval": "100"}
    with ExitStack() as stack:
        former, master = (stack.enter_context(closing(PlainStores(version, tmp_path))) for _ in roots)
        former.open(settings(roots[0]) | one_file, "ASYNC_MASTER")
        former.lead(1)
        former.put(100, "Orders", 2)
        former.close_store()
        shutil.copytree(*roots)
        former.open(settings(roots[0]) | one_file, "ASYNC_MASTER")
        former.put(300, "Orders", 2)
        end = former.max_offset()
        former.close_store()
        master.open(settings(roots[1]) | one_file | {"haListenPort": str(port)}, "ASYNC_MASTER")
        master.lead(2)
        master.put(10, "Orders", 2)
        former.open(settings(roots[0]) | one_file)
        former.follow(2, f"127.0.0.1:{port}")
        assert eventually(lambda: former.max_offset() == master.max_offset() < end, 30)
        confirmed = former.max_offset()
        assert eventually(lambda: dl.open_log(roots[0]).state.confirm_offset == confirmed, 30)
        former.kill()
        master.put(400, "Orders", 2)
        master.close_store()
    log = dl.open_log(roots[0])
    assert log.state.max_offset == end
    (finding,) = [each for each in log.findings() if each.code == "unconfirmedTail"]
    assert finding.found == str(confirmed)
    found = dl.check(roots)
    assert [member.start for member in found.members] == ["no", "yes"]
    assert found.commit_logs is not None
    points = {each.slave: each for each in found.commit_logs.consistent_points}
    assert (points["former"].pos, points["former"].is_common) == (end, False), "Java keeps the old tail"
