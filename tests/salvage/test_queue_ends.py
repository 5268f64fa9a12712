"""A salvaged queue ends where it ended: else new messages get queue offsets that consumers have passed."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits, has_message
from pyspark_dledger.rocketmq.salvage import SalvageRequest, salvage
from tests.salvage.groups import group_at
from tests.support.damage import write_log
from tests.support.golden import unpack
from tests.support.sparse_copy import copy_tree

pytestmark = pytest.mark.usefixtures("no_fsync")

CASES = ("mq-plain", "mq-53-three", "mq-53-controller", "mq-53-single")


def stores(case: str, folder: Path) -> list[Path]:
    """The replicas of a case; a former master of the controller has another log."""
    root = unpack(case, folder)
    found = sorted(each.parent for each in root.rglob("consumequeue") if each.parent.name != "b1")
    return [copy_tree(each, folder / "given" / each.name) for each in found]


def ends(root: Path) -> dict[tuple[str, int], int]:
    return {queue.name: QueueUnits(queue).end for queue in queues(root)}


def lose_end(roots: list[Path], count: int) -> None:
    """Zeroes the last `count` messages in all replicas."""
    extents = group_at(roots[0].parent, "", roots).extents[-count:]
    for root in roots:
        log = next(iter([*root.glob("dledger-*/data"), root / "commitlog"]))
        for extent in extents:
            write_log(log, extent.pos, bytes(extent.size))


def first_units(root: Path) -> set[tuple[str, int]]:
    """The queues of which a unit points to a message of the log."""
    found = ((queue.name, QueueUnits(queue)) for queue in queues(root))
    return {name for name, units in found if has_message(units.read(0, units.count)[1]).any()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_a_salvaged_queue_keeps_its_end(
    tmp_path: Path, case: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(f"{case}-{seed}")
    roots = stores(case, tmp_path)
    before = ends(roots[0])
    lose_end(roots, draw.choice((1, 5, 20, 60)))
    target = tmp_path / "healthy"
    salvage(SalvageRequest.of(roots, undecided="majority"), target)
    after = ends(target)
    assert {name: after[name] for name in after} == {name: before[name] for name in after}
    assert after.keys() >= first_units(target)
    for words in (["audit"], ["rebuild", "consumequeue", "--dry-run"], ["verify"]):
        assert main([*words, str(target)]) == 0, capsys.readouterr()


@pytest.mark.parametrize("case", ["mq-plain", "mq-53-single"])
def test_lost_says_of_a_salvaged_store_what_check_says(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = stores(case, tmp_path)
    lose_end(roots, 20)
    target = tmp_path / "healthy"
    salvage(SalvageRequest.of(roots, undecided="majority"), target)
    codes, texts = zip(
        *((main([verb, str(target)]), capsys.readouterr().out) for verb in ("check", "lost")), strict=True
    )
    assert codes == (1, 1)
    known = [re.findall(r"[^;:\n]* that a salvage wrote as \w+", text) for text in texts]
    assert known[0] == known[1]
    assert "lost: nothing" not in texts[1]


def test_consumer_offsets_show_where_a_queue_ended_whose_units_are_lost(tmp_path: Path) -> None:
    roots = stores("mq-53-three", tmp_path)
    before = ends(roots[0])
    name = max(before, key=before.__getitem__)
    lose_end(roots, 60)
    for root in roots:
        file = QueueUnits(next(queue for queue in queues(root) if queue.name == name)).files[-1]
        data = Path(file.path).read_bytes()
        Path(file.path).write_bytes(bytes(len(data)))
    config = roots[1] / "config"
    config.mkdir(exist_ok=True)
    offsets = {f"{name[0]}@billing": {name[1]: before[name]}, f"{name[0]}@wrong": {name[1]: 10**9}}
    target = tmp_path / "healthy"
    for wanted, known in ((before[name], [0]), (before[name], [0, 1])):
        table = dict(list(offsets.items())[: len(known)])
        (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
        salvage(SalvageRequest.of(roots, undecided="majority"), target)
        assert ends(target)[name] == wanted
        shutil.rmtree(target)


def test_lost_lists_the_same_messages_of_a_store_without_a_file_and_of_what_a_salvage_makes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The filler of a missing file of a CommitLog stands for all its messages."""
    (root,) = stores("mq-plain", tmp_path)
    sorted((root / "commitlog").iterdir())[1].unlink()
    salvage(SalvageRequest.of([root]), tmp_path / "healthy")
    found = []
    for path in (root, tmp_path / "healthy"):
        assert main(["lost", str(path), "--json"]) == 1
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        names = ("pos", "size", "topic", "queueId", "queueOffset", "keyHashes", "lastStoreTimestamp")
        found.append([tuple(map(row.get, names)) for row in rows if row["topic"] is not None])
    assert found[0] == found[1] and len(found[0]) > 100
