"""Control entries: readers tell them from data and from damage."""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.format.codec import MEMBERS, NOOP, control_kind_at
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.spec import DLEDGER, ScanRequest, Segment, SurveyRequest
from pyspark_dledger.store import MmapFileStore, StoreConfig
from tests.support.damage import write_at

SIZE = 4096


def stored(root: Path) -> Segment:
    """Entries of 52 bytes: data, NOOP, members, data."""
    config = StoreConfig(root, "n0", data_file_size=SIZE, index_file_size=3200)
    store = MmapFileStore(config)
    store.startup()
    for control in (0, NOOP, MEMBERS, 0):
        store.append_as_leader([b"body"], 1, control)
    assert [store.get(index).channel for index in range(4)] == [0, NOOP, MEMBERS, 0]
    store.shutdown()
    path = root / "dledger-n0" / "data" / "0".zfill(20)
    return Segment.local(str(path), path.name, 0, SIZE, DLEDGER)


def problems(reader: Engine, segment: Segment) -> dict[str, int]:
    return dict(reader.survey(SurveyRequest(segment, 0, 208)).counts)


def test_control_entries_have_their_own_kinds(reader: Engine, tmp_path: Path) -> None:
    segment = stored(tmp_path)
    request = ScanRequest(segment, 0, 208, columns=("kind", "channel"))
    rows = [row for batch, _ in reader.scan(request) for row in batch.to_pylist()]
    assert [row["kind"] for row in rows] == ["entry", "noop", "config", "entry"]
    assert [row["channel"] for row in rows] == [0, NOOP, MEMBERS, 0]
    assert problems(reader, segment) == {}


def test_a_flipped_bit_makes_no_control_entry(reader: Engine, tmp_path: Path) -> None:
    """In the channel of a data entry, and in any field of a control entry before its checksum."""
    segment = stored(tmp_path)
    write_at(segment.path, 32, b"\0\0\0\1")
    assert problems(reader, segment) == {"headerField": 1}
    assert control_kind_at(Path(segment.path).read_bytes()) == 0
    write_at(segment.path, 32, b"\0\0\0\0")
    for channel in (0, MEMBERS, 9):
        write_at(segment.path, 52 + 32, channel.to_bytes(4, "big"))
        assert problems(reader, segment) == {"headerField": 1}
