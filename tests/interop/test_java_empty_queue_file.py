"""What RocketMQ does with a ConsumeQueue that has no unit in its last file, or none at all, which verify finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pyspark_dledger as dl
from tests.interop.plain_stores import ByVersion
from tests.support.generate import mq_message, write_commitlog, write_consume_queue
from tests.support.groups import eventually

UNITS = 100
SETTINGS = {"mappedFileSizeConsumeQueue": str(20 * UNITS), "maxHashSlotNum": "100", "maxIndexNum": "400"}


def store(root: Path, *, behind: bool) -> Path:
    """A store with a full queue and an empty file; with `behind` a last message that was not dispatched."""
    payloads = [mq_message("T", queue_offset=number) for number in range(UNITS)]
    log = write_commitlog(root, [*payloads, *[mq_message("U")] * behind], file_size=1 << 17)
    write_consume_queue(root, log.rows[:UNITS], file_size=20 * UNITS)
    (root / "consumequeue" / "T" / "0" / f"{20 * UNITS:020}").write_bytes(bytes(20 * UNITS))
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("version", "loads"), [("5.3.3", False), ("5.5.0", True)])
def test_the_queue_has_one_message_more_or_the_broker_does_not_start(
    tmp_path: Path, version: str, loads: bool, plain_stores: ByVersion
) -> None:
    even, behind = store(tmp_path / "even", behind=False), store(tmp_path / "behind", behind=True)
    for root in (even, behind):
        assert "consumeQueueEmptyFile" in {finding.code for finding in dl.open_log(root).findings()}
        shutil.copytree(root, root.with_name(f"{root.name}-rebuilt"))
        dl.rebuild(root.with_name(f"{root.name}-rebuilt"), "consumequeue", unitsPerFile=UNITS)
    java = plain_stores(version)
    java.open_root(even, SETTINGS)
    assert java.queues() == {("T", 0): (0, UNITS + 1)}
    if loads:
        java.open_root(behind, SETTINGS)
    else:
        with pytest.raises(AssertionError, match="does not load"):
            java.open_root(behind, SETTINGS)
    for name in ("even", "behind"):
        java.open_root(tmp_path / f"{name}-rebuilt", SETTINGS)
        assert java.queues()["T", 0] == (0, UNITS)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.3.3", "5.5.0"])
def test_consumers_of_a_queue_that_a_truncation_emptied_get_nothing(
    tmp_path: Path, version: str, plain_stores: ByVersion
) -> None:
    """The first messages of the queue have expired. Its minimum stays, above its new end."""
    payloads = [*[mq_message("T")] * 5, *(mq_message("U", queue_offset=UNITS + number) for number in range(UNITS))]
    log = write_commitlog(tmp_path, payloads, file_size=1 << 17)
    write_consume_queue(tmp_path, log.rows, file_size=20 * UNITS)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_text(json.dumps({"topicConfigTable": {"U": {"readQueueNums": 1}}}))
    (tmp_path / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": {"U@billing": {0: 2 * UNITS}}}))
    java = plain_stores(version)
    java.open_root(tmp_path, SETTINGS, "ASYNC_MASTER")
    assert java.queues()["U", 0] == (UNITS, 2 * UNITS)
    java.truncate(log.rows[5]["pos"])
    assert java.queues()["U", 0] == (UNITS, 0)
    java.put(3, "U", 1)
    assert eventually(lambda: java.queues()["U", 0] == (UNITS, 3))
    assert "U" not in {message.topic for message in java.dump().messages}
    java.close_store()
    assert "consumerOffsetBeyondEnd" in {finding.code for finding in dl.open_log(tmp_path).findings()}
    java.open_root(tmp_path, SETTINGS, "ASYNC_MASTER")
    assert java.queues()["U", 0][0] == 0
    assert "U" in {message.topic for message in java.dump().messages}
    java.close_store()
