"""A range of queue offsets is found by ConsumeQueue units, and is complete with any damage in these files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from pyspark_dledger import open_log
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log.conditions import Lookup
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from tests.support.generate import Payload, mq_message, raw, write_commitlog, write_consume_queue, write_dledger
from tests.support.long_runs import examples, some

QUEUES = [("Orders", 0), ("Orders", 1), ("Paid", 0)]
UNIT = 20


def write_broker(root: Path, chosen: random.Random, count: int, dispatched: float = 1.0) -> list[tuple[str, int, int]]:
    """A log whose last messages are not dispatched; returns topic, queue and queue offset of each message."""
    is_ledger = chosen.random() < 0.8
    places: list[tuple[str, int, int]] = []
    payloads: list[Payload] = []
    following = {queue: chosen.choice((0, 0, 7)) for queue in QUEUES}
    for _ in range(count):
        if is_ledger and chosen.random() < 0.05:
            payloads.append(raw(b"no message"))
        queue = chosen.choice(QUEUES)
        places.append((*queue, following[queue]))
        payloads.append(mq_message(queue[0], queue_id=queue[1], queue_offset=following[queue]))
        following[queue] += 1
    store = (write_dledger if is_ledger else write_commitlog)(root, payloads, file_size=1024)
    write_consume_queue(root, store.rows[: round(dispatched * len(store.rows))], file_size=UNIT * 10)
    return places


def damage(root: Path, chosen: random.Random) -> None:
    files = sorted((root / "consumequeue").rglob("0*"))
    for _ in range(chosen.randint(0, 4)):
        file = chosen.choice([file for file in files if file.is_file()])
        data = bytearray(file.read_bytes())
        at = chosen.randrange(len(data) or 1)
        match chosen.randrange(6):
            case 0:
                data[at : at + UNIT] = bytes(UNIT)
            case 1:
                data[at : at + 8] = chosen.randbytes(len(data[at : at + 8]))
            case 2:
                del data[at:]
            case 3:
                other = chosen.choice([each for each in files if each.is_file()]).read_bytes()
                data[: len(other)] = other  # units of another queue, or of other offsets
            case 4:
                data[:] = data[UNIT:] + data[:UNIT]
            case _:
                file.unlink()
                if not any(each.is_file() for each in files):
                    return
                continue
        file.write_bytes(data)
    if chosen.random() < 0.1:
        shutil.rmtree(root / "consumequeue")


def planned(root: Path, topics: tuple[str, ...], queues: tuple[int, ...], offsets: IntFilter) -> list[Partition]:
    filters = Filters(topic=topics, queue_id=IntFilter(min(queues), max(queues), queues))
    options = parse_options({"maxPartitionBytes": 1024})
    return plan_read(open_log(root), ("topic", "queueId", "queueOffset"), options, filters, Lookup(offsets))


@pytest.mark.parametrize("seed", some(range(400), examples(8)))
def test_queue_range_has_the_rows_of_a_full_scan(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    places = write_broker(tmp_path, chosen, chosen.randint(1, 150), chosen.choice((1.0, 0.7, 0.0)))
    if (tmp_path / "consumequeue").is_dir():
        damage(tmp_path, chosen)
    for _ in range(6):
        low = chosen.randint(-1, 50)
        high = low + chosen.choice((0, 3, 20, 1000))
        topics = chosen.choice([("Orders",), ("Paid",), ("Orders", "Paid"), ("Other",)])
        queues = chosen.choice([(0,), (1,), (0, 1)])
        wanted = [each for each in places if each[0] in topics and each[1] in queues and low <= each[2] <= high]
        batches = (
            batch for part in planned(tmp_path, topics, queues, IntFilter(low, high)) for batch in read_partition(part)
        )
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert [row for row in rows if low <= row[2] <= high] == wanted


def test_queue_range_reads_few_segments(tmp_path: Path) -> None:
    write_broker(tmp_path, random.Random(1), 600)
    offsets = IntFilter(100, 102)
    segments = {part.segment.name for each in planned(tmp_path, ("Orders",), (1,), offsets) for part in each.ranges}
    whole = {part.segment.name for each in planned(tmp_path, ("Orders",), (1,), IntFilter()) for part in each.ranges}
    assert len(segments) <= 3 < 90 < len(whole)
