"""ConsumeQueues in a RocksDB are read as those in files. The stores and their units are from real message stores."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from pyspark_dledger import check, open_log, trace
from pyspark_dledger.cli.main import main
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.log.io.queue_files import QueueFile, Units, database_queues, queues, read_units
from pyspark_dledger.log.io.rocks_database import NEEDS
from pyspark_dledger.log.next_step import DETAILS
from pyspark_dledger.log.verify.findings import INFO
from pyspark_dledger.rocketmq.rebuild.rebuild_job import rebuild
from pyspark_dledger.rocketmq.tables import TABLES

GOLDENS = Path(__file__).parent.parent / "goldens" / "rocksdb"
NAMES = ("rocks-533", "double-540", "separate-550")
DATABASES = {"rocks-533": "consumequeue", "double-540": "consumequeue", "separate-550": "consumequeue_rocksdb"}
Unpack = Callable[[str], Path]


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    """Unpacks a store."""

    def unpacked(name: str) -> Path:
        with tarfile.open(GOLDENS / f"{name}.tar.gz") as packed:
            packed.extractall(tmp_path / name)
        return tmp_path / name

    return unpacked


@pytest.fixture
def needs_rocksdict() -> None:
    pytest.importorskip("rocksdict")


def units_of(root: Path) -> dict[tuple[str, int, int], int]:
    """The commitLogOffset of each unit, by topic, queueId and queueOffset."""
    log = open_log(root)
    table = TABLES["consumeQueue"]
    rows = (row for part in table.plan(log, log.options) for batch in table.read(part) for row in batch.to_pylist())
    return {(row["topic"], row["queueId"], row["queueOffset"]): row["commitLogOffset"] for row in rows}


def units_by_java(name: str) -> dict[tuple[str, int, int], int]:
    with gzip.open(GOLDENS / f"{name}.units.json.gz", "rt") as file:
        return {(topic, queue_id, offset): position for topic, queue_id, offset, position in json.load(file)}


def files_of(root: Path) -> Iterator[tuple[str, int, int, int, bytes]]:
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        yield str(path), status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, data


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize("name", NAMES)
def test_units_are_those_that_java_reads(name: str, unpack: Unpack) -> None:
    assert units_of(unpack(name)) == units_by_java(name)


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize("name", NAMES)
def test_log_and_queues_agree(name: str, unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack(name)
    assert main(["audit", str(root)]) == 0
    assert "log and ConsumeQueue agree" in capsys.readouterr().out
    assert main(["verify", str(root)]) == 0
    assert "consumeQueuesDiffer" not in [each.code for each in open_log(root).findings()]
    assert NEEDS not in capsys.readouterr().out


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize("name", NAMES)
def test_reading_leaves_the_store_as_it_is(name: str, unpack: Unpack) -> None:
    root = unpack(name)
    before = list(files_of(root))
    assert len(units_of(root)) == 350
    for verb in ("verify", "audit", "stats", "check", "recovery"):
        main([verb, str(root)])
    assert list(files_of(root)) == before


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize("name", NAMES)
def test_messages_are_found_by_key_and_place(name: str, unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack(name)
    columns = ("topic", "queueId", "queueOffset", "keys", "commitLogOffset")
    rows = [row for batch in open_log(root).scan(columns=columns, topic="Orders") for row in batch.to_pylist()]
    row = rows[40]
    place = f"{row['topic']}/{row['queueId']}/{row['queueOffset']}"
    found = trace(root, [row["keys"], place])
    assert found.missing == []
    assert row["commitLogOffset"] in [event.offset for event in found.events]
    assert [event.is_in_queue for event in found.events] == [True] * len(found.events)
    assert trace(root, [place]).events[0].offset == row["commitLogOffset"]
    assert trace(root, [row["keys"]], scan=True).events == trace(root, [row["keys"]]).events
    assert main(["find", str(root), row["keys"]]) == 0
    assert row["keys"] in capsys.readouterr().out


def remove_units(root: Path, queue_offsets: Iterable[int]) -> None:
    """Removes units of the queue 0 of Orders from the RocksDB."""
    import rocksdict

    folder = root / "consumequeue"
    families = {each: rocksdict.Options(raw_mode=True) for each in rocksdict.Rdict.list_cf(str(folder))}
    database = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True), column_families=families)
    for offset in queue_offsets:
        del database[(6).to_bytes(4, "big") + b"\1Orders\1" + bytes(4) + b"\1" + offset.to_bytes(8, "big")]
    database.close()


@pytest.mark.usefixtures("needs_rocksdict")
def test_a_message_without_a_unit_is_found(unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack("rocks-533")
    remove_units(root, [40])
    assert main(["audit", str(root)]) == 1
    assert "Orders" in capsys.readouterr().out


@pytest.mark.usefixtures("needs_rocksdict")
def test_messages_before_the_first_unit_are_not_to_be_rebuilt(unpack: Unpack) -> None:
    """As after a change of storeType: only the broker builds what a RocksDB lacks."""
    root = unpack("rocks-533")
    remove_units(root, range(40))
    (finding,) = [each for each in open_log(root).findings() if each.code == "messageBeforeDatabase"]
    assert finding.found == "a queue that begins at 40"
    report = check(root)
    assert (report.members[0].serve, report.next.step) == ("no", DETAILS)


@pytest.mark.usefixtures("needs_rocksdict")
def test_a_later_begin_in_the_rocksdb_is_no_finding_while_the_files_have_all(unpack: Unpack) -> None:
    """As in the first days of a double write."""
    root = unpack("double-540")
    remove_units(root, range(40))
    assert [each for each in open_log(root).findings() if each.severity != INFO] == []


@pytest.mark.usefixtures("needs_rocksdict")
def test_the_queue_that_ends_later_is_read(unpack: Unpack) -> None:
    """After the switch to a RocksDB, the files stay as they were."""
    root = unpack("double-540")
    file = root / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    file.write_bytes(file.read_bytes()[:1000] + bytes(1000))
    found = {queue.name: queue.files[0].database for queue in queues(root)}
    assert found["Orders", 0] == str(root / "consumequeue")
    assert not found["Orders", 1]
    assert units_of(root) == units_by_java("double-540")
    (finding,) = [each for each in open_log(root).findings() if each.code == "consumeQueuesDiffer"]
    assert finding.found == "(0, 0)"
    assert "at queue offset 50" in str(finding)


def store_bound(root: Path, kind: str, place: tuple[int, int] | None) -> None:
    """Replaces a bound of the queue Orders/1 of rocks-533: a position and a queueOffset; None deletes it."""
    import rocksdict

    folder = root / "consumequeue"
    families = {each: rocksdict.Options(raw_mode=True) for each in rocksdict.Rdict.list_cf(str(folder))}
    database = rocksdict.Rdict(str(folder), rocksdict.Options(raw_mode=True), column_families=families)
    key = (6).to_bytes(4, "big") + b"\1Orders\1" + kind.encode() + b"\1" + (1).to_bytes(4, "big")
    bounds = database.get_column_family("offset")
    if place is not None:
        bounds[key] = b"".join(number.to_bytes(8, "big", signed=True) for number in place)
    else:
        del bounds[key]
    database.close()


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize(
    ("kind", "place", "text"),
    [
        ("max", (0, 99), "expected a maximum 99 at commitLogOffset 37924, found 99 at commitLogOffset 0"),
        ("max", (1 << 40, 120), "expected a maximum 99 at commitLogOffset 37924, found 120"),
        ("max", (1 << 40, -1), "expected a maximum 99 at commitLogOffset 37924, found -1"),
        ("max", None, "expected a maximum 99 at commitLogOffset 37924, found none"),
        ("min", (500, 2), "expected a minimum 0, found 2 at commitLogOffset 500"),
        ("min", None, None),
    ],
)
def test_bounds_by_which_a_broker_goes_are_those_of_the_units(
    kind: str, place: tuple[int, int] | None, text: str | None, unpack: Unpack
) -> None:
    root = unpack("rocks-533")
    store_bound(root, kind, place)
    found = [each for each in open_log(root).findings() if each.code == "consumeQueueBounds"]
    assert [each.file for each in found] == (["consumequeue/Orders/1"] if text is not None else [])
    assert all(text is not None and text in str(each) for each in found)


@pytest.mark.usefixtures("needs_rocksdict")
def test_units_after_the_maximum_are_not_of_the_queue(unpack: Unpack) -> None:
    """A start after a loss of the log's end lowers the maximum, and leaves the units after it."""
    root, by_java = unpack("rocks-533"), units_by_java("rocks-533")
    store_bound(root, "max", (by_java["Orders", 1, 97], 97))
    left_out = {("Orders", 1, 98), ("Orders", 1, 99)}
    assert units_of(root) == {unit: position for unit, position in by_java.items() if unit not in left_out}
    found = [each.code for each in open_log(root).findings() if each.severity != "info"]
    assert found == ["messageNotInQueue"]  # Here the log has the messages.
    store_bound(root, "max", (by_java["Orders", 1, 0], 0))
    assert [unit for unit in units_of(root) if unit[:2] == ("Orders", 1)] == [("Orders", 1, 0)]


@pytest.mark.usefixtures("needs_rocksdict")
def test_a_recovery_names_queues_that_it_does_not_model(unpack: Unpack, capsys: pytest.CaptureFixture[str]) -> None:
    root = unpack("rocks-533")
    main(["recovery", str(root), "--rocketmq", "5.3.3"])
    assert "queues in RocksDB are not modelled" in capsys.readouterr().out
    main(["check", str(root)])
    assert "what a start does with queues in RocksDB" in capsys.readouterr().out.splitlines()[-1]


def readable(file: QueueFile, errors: list[str]) -> Iterator[Units]:
    try:
        yield from read_units(file)
    except UnreadableError as error:
        errors.append(str(error))


@pytest.mark.usefixtures("needs_rocksdict")
@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_database_is_an_error_or_is_read_as_a_whole(seed: int, unpack: Unpack) -> None:
    chosen = random.Random(seed)
    name = chosen.choice(NAMES)
    root = unpack(name)
    files = [path for path in sorted((root / DATABASES[name]).iterdir()) if path.is_file() and path.stat().st_size]
    file = chosen.choice(files)
    data = bytearray(file.read_bytes())
    if seed % 3 == 0:
        data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    elif seed % 3 == 1:
        del data[chosen.randrange(len(data)) :]
    else:
        data[:] = chosen.randbytes(len(data))
    file.write_bytes(data)
    errors: list[str] = []
    found = [
        len(units)
        for queue in database_queues(root, lambda error: errors.append(str(error)))
        for each in queue.files
        for units in readable(each, errors)
    ]
    assert bool(errors) or sum(found) == 350
    for error in errors:
        assert str(root / DATABASES[name]) in error
        assert "copy the folder from a replica, or move it away" in error


@pytest.mark.usefixtures("needs_rocksdict")
def test_a_database_without_current_is_damaged(unpack: Unpack) -> None:
    root = unpack("rocks-533")
    (root / "consumequeue" / "CURRENT").unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        queues(root)


def test_without_rocksdict_the_extra_is_named(
    unpack: Unpack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    root = unpack("rocks-533")
    with pytest.raises(StoreError, match=r"pip install 'pyspark_dledger\[rocksdb\]'"):
        units_of(root)
    main(["verify", str(root)])
    assert "messageNotInQueue" not in capsys.readouterr().out


def test_only_a_broker_rebuilds_a_database(unpack: Unpack, tmp_path: Path) -> None:
    root = unpack("rocks-533")
    with pytest.raises(StoreError, match="found a RocksDB, which only a broker can build"):
        rebuild(root, "consumequeue", out=tmp_path / "out")
    shutil.rmtree(root)
