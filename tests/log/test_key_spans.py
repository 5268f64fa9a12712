"""With trustKeyIndex messages with a key are found by IndexFiles: those of a scan but the rolled back ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger import open_log
from pyspark_dledger.format.spec import Filters, ScanRequest
from pyspark_dledger.log.conditions import Lookup
from pyspark_dledger.log.io.key_files import key_files
from pyspark_dledger.log.lookups import key_spans
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import Partition, plan_read, read_partition
from tests.support.generate import Payload, mq_message, raw, write_commitlog, write_dledger
from tests.support.long_runs import examples, some

TOPICS = ("Orders", "%RETRY%標題 1")
# Aa and BB have the same hash.
KEYS = ("k1", "k2", "Aa", "BB", "U3", "U20", "é", "absent")
COLUMNS = ("pos", "size", "topic", "keys", "uniqKey", "transaction", "problem")
SLOTS = 7
FILE_SIZE = 1024


def write_broker(root: Path, chosen: random.Random, count: int, units: int, indexed: float = 1.0) -> None:
    """A log whose last messages are in no IndexFile."""
    is_ledger = chosen.random() < 0.8
    payloads: list[Payload] = []
    for number in range(count):
        if is_ledger and chosen.random() < 0.05:
            payloads.append(raw(b"no message"))
        properties = [("UNIQ_KEY", f"U{number}")] if chosen.random() < 0.9 else []
        if chosen.random() < 0.5:
            words = ("k1", "k2", "k3", "Aa", "BB", "é", "")
            properties.append(("KEYS", " ".join(chosen.choice(words) for _ in range(chosen.randint(1, 3)))))
        transaction = chosen.choice(("none", "none", "none", "prepared", "commit", "rollback"))
        payloads.append(mq_message(chosen.choice(TOPICS), properties=properties, transaction=transaction))
    write = write_dledger if is_ledger else write_commitlog
    write(root, payloads[: round(len(payloads) * indexed)], file_size=FILE_SIZE)
    dl.rebuild(root, "index", hashSlots=SLOTS, indexUnits=units)
    write(root, payloads, file_size=FILE_SIZE)


def damage_index(root: Path, chosen: random.Random) -> None:
    for _ in range(chosen.randint(0, 3)):
        files = sorted(file for file in (root / "index").iterdir() if len(file.name) == 17)
        if not files:
            return
        file = chosen.choice(files)
        data = bytearray(file.read_bytes())
        written = 40 + 4 * SLOTS + 20 * int.from_bytes(data[36:40], "big")
        at = chosen.randrange(min(written, len(data)))
        match chosen.randrange(5):
            case 0:
                file.unlink()
                continue
            case 1:
                del data[at:]
            case 2:
                data[at : at + 20] = bytes(len(data[at : at + 20]))
            case 3:
                data[at] ^= 1 << chosen.randrange(8)
            case _:
                data[at : at + 4] = chosen.randrange(60).to_bytes(4, "big")
        file.write_bytes(data)


def damage_log(root: Path, chosen: random.Random) -> None:
    """Some of the first files expire, and bytes of another are lost."""
    folder = root / "commitlog"
    files = sorted((folder if folder.is_dir() else root / "dledger-n0" / "data").iterdir())
    for file in files[: chosen.randrange(len(files))] if chosen.random() < 0.4 else ():
        file.unlink()
    if chosen.random() < 0.4:
        data = bytearray(files[-1].read_bytes())
        at = chosen.randrange(len(data) - 30)
        data[at : at + 30] = bytes(30)
        files[-1].write_bytes(data)


def planned(root: Path, topics: tuple[str, ...], key: str | None, **options: Any) -> list[Partition]:
    parsed = parse_options({"maxPartitionBytes": FILE_SIZE, "trustKeyIndex": True, **options})
    lookup = Lookup(keys=None if key is None else (key,))
    return plan_read(open_log(root), COLUMNS, parsed, Filters(topic=topics), lookup)


def found(partitions: list[Partition], key: str) -> list[dict[str, Any]]:
    rows = (row for part in partitions for batch in read_partition(part) for row in batch.to_pylist())
    return [row for row in rows if key == row["uniqKey"] or key in (row["keys"] or "").split(" ")]


def segments(partitions: list[Partition]) -> set[str]:
    return {part.segment.name for each in partitions for part in each.ranges if isinstance(part, ScanRequest)}


@pytest.mark.parametrize("seed", some(range(400), examples(6)))
def test_key_has_the_rows_of_a_full_scan(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    write_broker(tmp_path, chosen, chosen.randint(1, 80), chosen.choice((20, 60, 1000)), chosen.choice((1.0, 1.0, 0.7)))
    damage_log(tmp_path, chosen)
    damage_index(tmp_path, chosen)
    for key in KEYS:
        for topic in TOPICS:
            wanted = found(planned(tmp_path, (topic,), None), key)
            rows = found(planned(tmp_path, (topic,), key), key)
            assert [row for row in wanted if row in rows] == rows
            assert {row["transaction"] for row in wanted if row not in rows} <= {"rollback"}


def test_key_reads_few_segments(tmp_path: Path) -> None:
    write_broker(tmp_path, random.Random(1), 500, 1000)
    parts = planned(tmp_path, TOPICS, "U123")
    assert len(segments(parts)) <= 3 < 80
    assert len(found(parts, "U123")) == 1
    for untrusted in ({"trustKeyIndex": False}, {"heal": True, "replicas": str(tmp_path)}):
        assert len(planned(tmp_path, TOPICS, "U123", **untrusted)) > 80


def test_expired_files_do_not_matter(tmp_path: Path) -> None:
    write_broker(tmp_path, random.Random(1), 500, 1000)
    folder = tmp_path / "dledger-n0" / "data"
    for file in sorted((folder if folder.is_dir() else tmp_path / "commitlog").iterdir())[:9]:
        file.unlink()
    parts = planned(tmp_path, TOPICS, "U300")
    assert len(segments(parts)) <= 3
    assert len(found(parts, "U300")) == 1


@pytest.mark.parametrize("keys", [(), ("",), tuple(map(str, range(300)))])
def test_log_is_searched_whole(tmp_path: Path, keys: tuple[str, ...]) -> None:
    write_broker(tmp_path, random.Random(1), 50, 1000)
    assert len(key_spans(open_log(tmp_path), TOPICS, ["U5"])) > 1
    assert key_spans(open_log(tmp_path), TOPICS, keys) == [(0, 2**63 - 1)]
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    assert key_spans(open_log(tmp_path), TOPICS, ["U5"]) == [(0, 2**63 - 1)]


def test_an_index_file_whose_first_key_has_the_hash_0_is_read(tmp_path: Path) -> None:
    """Few slots for many units: the number of slots follows from the first unit."""
    messages = [mq_message("T", properties=[("UNIQ_KEY", key)]) for key in ("U1", "s7Nftri", "U2")]
    write_commitlog(tmp_path, messages)
    dl.rebuild(tmp_path, "index", hashSlots=SLOTS, indexUnits=2)
    headers = [file.header for file in key_files(tmp_path)]
    assert len(headers) == 3 and headers[1].begin_phy_offset > 0
    assert len(found(planned(tmp_path, ("T",), "s7Nftri"), "s7Nftri")) == 1
