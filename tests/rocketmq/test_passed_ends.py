"""A consumer group's offset after the end of its queue: verify, check, audit and the table of consumers agree."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pyspark_dledger.cli.main import main
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.queue_units import QueueUnits
from tests.support.golden import unpack

CODE = "consumerOffsetBeyondEnd"


def write_config(root: Path, draw: random.Random) -> int:
    """Consumer offsets around the ends of the queues; how many of them are after an end."""
    ends = {queue.name: QueueUnits(queue).end for queue in queues(root)}
    ends |= {("NewTopic", 0): 0, ("DeletedTopic", 0): 0}
    table: dict[str, dict[int, int]] = {}
    after = 0
    for (topic, queue_id), end in ends.items():
        for group in ("billing", "analytics"):
            offset = max(end + draw.choice((-3, 0, 0, 1, 7)), 0)
            table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
            after += offset > end and topic != "DeletedTopic"
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    topics = {topic: {"readQueueNums": 1} for topic, _ in ends if topic != "DeletedTopic"}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    return after


@pytest.mark.parametrize("case", ["mq-plain", "mq-53-single", "mq-498-single"])
@pytest.mark.parametrize("seed", range(3))
def test_an_offset_after_the_end_of_its_queue_is_found(
    tmp_path: Path, case: str, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = unpack(case, tmp_path)
    root = next(each.parent for each in root.rglob("consumequeue"))
    after = write_config(root, random.Random(f"{case}-{seed}"))
    findings = [each for each in open_log(str(root)).findings() if each.code == CODE]
    assert len(findings) == after > 0
    main(["check", str(root), "--json"])
    assert json.loads(capsys.readouterr().out)["members"][0]["findings"][CODE] == after
    main(["audit", str(root)])
    assert f"{after} offset" in capsys.readouterr().err
    main(["consumers", str(root), "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(row["lag"] is not None and row["lag"] < 0 for row in rows) == after - sum(
        row["topic"] == "NewTopic" and row["consumerOffset"] > 0 for row in rows
    )


def test_messages_that_the_broker_has_yet_to_dispatch_count_as_the_end(tmp_path: Path) -> None:
    """After a kill, a broker writes the units of the last messages when it starts."""
    root = unpack("mq-plain", tmp_path)
    queue = max(queues(root), key=lambda queue: QueueUnits(queue).end)
    units = QueueUnits(queue)
    (root / "config").mkdir(exist_ok=True)
    table = {f"{queue.topic}@billing": {queue.queue_id: units.end}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    _, found = units.read(0, units.count)
    last = int(found["commitLogOffset"][-1])
    for each in queues(root):
        own = QueueUnits(each)
        offsets, stored = own.read(0, own.count)
        for queue_offset in offsets[stored["commitLogOffset"] >= last].tolist():
            file = own.file_of(queue_offset)
            with open(file.path, "r+b") as opened:
                opened.seek((queue_offset - file.first) * 20)
                opened.write(bytes(20))
    codes = {each.code for each in open_log(str(root)).findings()}
    assert "messagesNotDispatched" in codes
    assert CODE not in codes
