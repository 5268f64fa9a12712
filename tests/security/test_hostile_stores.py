"""Known defects with stores that somebody prepared: links, special files, hostile offsets and texts."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.common.fastjson import parse_fastjson
from pyspark_dledger.errors import DLedgerError, StoreError, UnreadableError
from pyspark_dledger.format.codec import ConsumeQueueUnit, encode_consume_queue_unit, encode_entry
from pyspark_dledger.format.dispatched_rows import MAX_QUEUE_OFFSET
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log import open_log
from pyspark_dledger.log.io.queue_files import queues
from pyspark_dledger.log.io.salvage_fillers import SalvageFillers
from pyspark_dledger.rocketmq.backup.member_copy import ROOT
from pyspark_dledger.rocketmq.tables import read_table
from pyspark_dledger.store import MmapFileStore, StoreConfig
from tests.security.small_store import write_store
from tests.support.dispatching import units
from tests.support.generate import mq_message, raw, write_dledger
from tests.support.groups import Nodes
from tests.support.message_nodes import MessageNodes, puts, rows

PRECIOUS = b"PRECIOUS\n" * 20


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user, outside of all stores."""
    path = tmp_path / "precious"
    path.write_bytes(PRECIOUS)
    return path


def replace_by_link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


# Links


SMALL_INDEX = ("--hash-slots", "100", "--index-units", "100")


@pytest.mark.parametrize(
    ("name", "what"),
    [("checkpoint", ["consumequeue"]), ("lock", ["consumequeue"]), ("lock", ["index", *SMALL_INDEX])],
    ids=["checkpoint-consumequeue", "lock-consumequeue", "lock-index"],
)
def test_rebuild_writes_through_no_link(tmp_path: Path, precious: Path, name: str, what: list[str]) -> None:
    root = write_store(tmp_path / "store")
    replace_by_link(root / name, precious)
    main(["rebuild", *what, str(root)])
    assert precious.read_bytes() == PRECIOUS, f"rebuild overwrites a file outside the store, by the link {name}"


@pytest.mark.parametrize("name", ["lock", "checkpoint.tmp", "members.tmp"])
def test_node_writes_through_no_link(tmp_path: Path, precious: Path, name: str) -> None:
    with closing(Nodes(tmp_path / "store", 1)) as group:
        group.start()
        group.stop()
        folder = tmp_path / "store" / "dledger-n0"
        # The node writes it only if it changes.
        (folder / "members").unlink()
        replace_by_link(folder / name, precious)
        with suppress(DLedgerError):
            group.start()
    assert precious.read_bytes() == PRECIOUS, f"a node overwrites a file outside its store, by the link {name}"


@pytest.mark.parametrize("name", ["lock", "checkpoint"])
def test_message_node_writes_through_no_link(tmp_path: Path, precious: Path, name: str) -> None:
    with closing(MessageNodes(tmp_path / "stores", 1)) as group:
        group.start()
        put_message(group, "before")
        group.stop()
        replace_by_link(group.root("n0") / name, precious)
        with suppress(DLedgerError):
            group.start()
            put_message(group, "after")
            group.stop()
    assert precious.read_bytes() == PRECIOUS, f"a node overwrites a file outside its store, by the link {name}"


def put_message(group: MessageNodes, job: str) -> None:
    group.ready_leader()
    with dl.connect("g", group.peers) as client:
        client.put_messages(puts(rows(1), job=job))


def test_export_copies_nothing_from_outside_the_store(tmp_path: Path, precious: Path) -> None:
    root = write_store(tmp_path / "store")
    (root / "config").mkdir()
    (root / "config" / "aws.json").symlink_to(precious)
    main(["export", str(root), str(tmp_path / "out"), "--to", "commitlog", "--commitlog-only"])
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files
    assert all(PRECIOUS not in path.read_bytes() for path in files), "a file outside the store is in the export"


# Files that are slow to read


@pytest.fixture
def with_groups(tmp_path: Path) -> Path:
    root = write_store(tmp_path / "store")
    (root / "config").mkdir()
    return root


def consumers(root: Path) -> list[dict[str, Any]]:
    return [row for batch in read_table(open_log(root), "consumers") for row in batch.to_pylist()]


def processor_seconds(work: Callable[[], object]) -> float:
    """Of the second run: the first one also loads modules."""
    work()
    begin = time.process_time()
    work()
    return time.process_time() - begin


@pytest.mark.slow
def test_fifo_does_not_stop_a_read_of_consumers(with_groups: Path) -> None:
    fifo = with_groups / "config" / "consumerOffset.json"
    os.mkfifo(fifo)

    def read() -> None:
        with suppress(DLedgerError):
            consumers(with_groups)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(2)
    is_hanging = thread.is_alive()
    if is_hanging:
        # It reads an empty file, and ends.
        os.close(os.open(fifo, os.O_RDWR))
        thread.join(10)
        assert not thread.is_alive()
    assert not is_hanging, "the read waits for somebody who writes into the FIFO"


@pytest.fixture
def five_seconds() -> Iterator[None]:
    """After this time the test is interrupted, as by Ctrl-C: the exit code is then 130."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 5)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("five_seconds")
@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("_export.json", "state"),
        ("dledger-n0/currterm", "recovery"),
        ("dledger-n0/currterm", "backup"),
        ("dledger-n0/cluster", "backup"),
        ("dledger-n0/identities/1.ids", "backup"),
    ],
)
def test_no_verb_waits_for_a_fifo(tmp_path: Path, name: str, verb: str) -> None:
    root = write_store(tmp_path / "store")
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)
    more = ["--to", str(tmp_path / "backup")] if verb == "backup" else []
    assert main([verb, str(root), *more]) in (0, 1, 2)


@pytest.mark.usefixtures("five_seconds")
def test_a_fifo_is_no_list_of_a_salvage(tmp_path: Path) -> None:
    store = open_log(write_store(tmp_path))
    os.mkfifo(tmp_path / "lost.jsonl")
    assert not SalvageFillers(store.paths).positions


def test_a_huge_state_file_needs_little_memory(tmp_path: Path) -> None:
    """Java reads all of it, and so did the model of its recovery: a link to /dev/zero took all memory."""
    root = write_store(tmp_path / "store")
    os.truncate(root / "dledger-n0" / "currterm", 2**40)
    assert main(["recovery", str(root)]) in (0, 1)


@pytest.mark.usefixtures("five_seconds")
def test_links_that_lead_back_cost_little_time(tmp_path: Path) -> None:
    """Five of them made more than a million paths."""
    root = write_store(tmp_path / "store")
    for name in ("consumequeue/a", "index", "config/b", "timerlog", "dledger-n0/c"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).symlink_to("..")
    assert main(["state", str(root)]) in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["9", "-", '\\"', "1 "])
def test_long_text_in_a_config_file_costs_little_time(with_groups: Path, text: str) -> None:
    (with_groups / "config" / "consumerOffset.json").write_bytes(b'{"a":' + text.encode() * 10_000)

    def read() -> None:
        with suppress(DLedgerError):
            consumers(with_groups)

    seconds = processor_seconds(read)
    assert seconds < 0.2


@pytest.mark.slow
def test_hostile_headers_cost_recovery_little_time(tmp_path: Path) -> None:
    """Headers of 24 kB all lead to the same 4 MiB of zeros."""
    store = write_dledger(tmp_path, [raw(b"entry")] * 20, with_index=False, checkpoint=False)
    log = Path(store.segments[0].path)
    entries = log.read_bytes()[: store.end]
    headers, count = bytearray(), 500
    begin = len(entries) + 64
    for number in range(count):
        pos = begin + ENTRY_HEADER_SIZE * number
        size = begin + ENTRY_HEADER_SIZE * count + 4096 - pos
        header = bytearray(encode_entry(10**12 + 7 * number, 0, pos, b""))
        header[4:8], header[44:48] = size.to_bytes(4, "big"), (size - ENTRY_HEADER_SIZE).to_bytes(4, "big")
        headers += header
    zeros = bytes(4 * 1024 * 1024 + 16384)
    log.write_bytes(entries + b"\xee" * 64 + headers + zeros + encode_entry(30, 1, begin + len(headers + zeros), b"x"))
    seconds = processor_seconds(lambda: main(["recovery", str(tmp_path)]))
    assert seconds < 0.2, f"recovery takes {seconds:.1f} s for {count} headers"


# Offsets that claim large files


@pytest.mark.parametrize("verb", ["rebuild", "export"])
def test_skipped_queue_offsets_need_little_disk(tmp_path: Path, verb: str) -> None:
    """A queue file has 6 MB. The offset of each message is in another file."""
    messages = [mq_message("Orders", b"x", queue_offset=600_000 * number) for number in range(1, 11)]
    root, out = write_dledger(tmp_path / "store", messages).path, tmp_path / "out"
    if verb == "rebuild":
        main(["rebuild", "consumequeue", str(root), "--out", str(out)])
    else:
        main(["export", str(root), str(out), "--to", "commitlog"])
    size = sum(path.stat().st_blocks * 512 for path in out.rglob("*") if path.is_file())
    assert size < 20_000_000, f"{len(messages)} messages make files of {size} bytes"


@pytest.mark.parametrize("seed", range(3))
def test_hostile_queue_offsets_hide_no_other_message(tmp_path: Path, seed: int) -> None:
    """Messages of queues that lost some are all in their queues, hostile ones between them are not."""
    draw = random.Random(seed)
    payloads, wanted = [], []
    end = draw.choice((0, 5_000_000))
    for number in range(200):
        if number and draw.random() < 0.2:
            far = end + draw.choice((400_000, 2**31, MAX_QUEUE_OFFSET - end))
            payloads.append(mq_message("Orders", b"evil", queue_offset=far))
        else:
            end += draw.choice((0, 0, 0, 7))
            payloads.append(mq_message("Orders", b"%d" % number, queue_offset=end))
            wanted.append(len(payloads) - 1)
            end += 1
    store = write_dledger(tmp_path / "store", payloads)
    done = dl.rebuild(store.path, "consumequeue", out=tmp_path / "out")
    assert (done.built.too_far, done.built.units) == (len(payloads) - len(wanted), len(wanted))
    offsets = {row["commitLogOffset"] for row in store.rows}
    found = {unit[0] for unit in units(tmp_path / "out", "Orders")} & offsets
    assert found == {store.rows[number]["commitLogOffset"] for number in wanted}
    assert "so far after the queue's last one" in " ".join(done.notes)


def test_gaps_that_lost_messages_explain_are_filled(tmp_path: Path) -> None:
    """However large they are: here a gap in the log is as large."""
    first = write_dledger(tmp_path / "store", [mq_message("Orders", queue_offset=0)])
    base = first.segments[-1].end + 2**26
    write_dledger(tmp_path / "store", [mq_message("Orders", queue_offset=500_000)], base=base)
    done = dl.rebuild(first.path, "consumequeue", out=tmp_path / "out")
    assert (done.built.too_far, done.built.units, done.built.fillers) == (0, 2, 499_999)


@pytest.mark.parametrize(
    "path", ["state-1", "state-1/node", f"x/{ROOT}/y", "state-1/node/\ud800", "state-1/other/y", 5]
)
def test_a_backup_with_a_wrong_path_is_an_error_of_one_line(
    tmp_path: Path, path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MmapFileStore(StoreConfig(tmp_path / "store", self_id="n0", data_file_size=4096, index_file_size=320))
    store.startup()
    store.append_as_leader([b"one"], term=1)
    store.flush()
    store.update_committed_index(1, 0)
    store.shutdown()
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "topics.json").write_text("{}")
    backup = tmp_path / "backup"
    assert main(["backup", str(tmp_path / "store"), "--to", str(backup)]) == 0
    manifest = json.loads((backup / "backup.json").read_text())
    del manifest["crc32"]
    manifest["files"][0]["path"] = path
    manifest["crc32"] = crc32(json.dumps(manifest, sort_keys=True).encode())
    (backup / "backup.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    target = str(tmp_path / "new")
    assert main(["restore", str(backup), "--to", target, "--id", "n0", "--new-group", "h"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_sparse_segment_is_an_error(tmp_path: Path) -> None:
    """Without a limit, one of 1 TiB was read for hours, deaf to Ctrl-C."""
    store = write_dledger(tmp_path, [raw(b"entry")] * 3)
    os.truncate(store.segments[0].path, 2**40)
    with pytest.raises(StoreError, match="expected a segment below 2 GiB, found 1099511627776 bytes: move it away"):
        list(open_log(store.path).scan())


def test_a_sparse_queue_file_is_unreadable(tmp_path: Path) -> None:
    """Each of its units was planned to be read: the plan for 1 TiB took gigabytes of memory."""
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").touch()
    os.truncate(folder / f"{0:020}", 2**40)
    problems: list[UnreadableError] = []
    assert queues(tmp_path, problems.append) == []
    assert [problem.reason for problem in problems] == ["expected less than 2 GiB, found 1099511627776 bytes"]


def test_lists_in_a_config_file_need_little_memory() -> None:
    """An empty list takes 20 times its bytes."""
    with pytest.raises(ValueError, match="objects and lists"):
        parse_fastjson(b'{"x":[' + b"[]," * 1000 + b"[]]}")


@pytest.mark.parametrize("folder", ["Orders/2147483647", "Orders/99999999999999999999", "Orders/\u0663", b"\xff\xfe/0"])
@pytest.mark.usefixtures("five_seconds")
def test_names_of_queues_cost_little_and_end_no_answer(
    tmp_path: Path, folder: str | bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The highest queue id was the size of a list; other names were too large for a column, or no text for it."""
    root = write_store(tmp_path)
    name = folder if isinstance(folder, str) else os.fsdecode(folder)
    (root / "consumequeue" / name).mkdir(parents=True)
    (root / "consumequeue" / name / f"{0:020}").write_bytes(encode_consume_queue_unit(ConsumeQueueUnit(48, 100, 0)))
    for arguments in (["lost"], ["audit"], ["dump", "--table", "consumeQueue"]):
        assert main([*arguments, str(root)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_halves_of_surrogate_pairs_in_a_config_file_are_no_text() -> None:
    """They were in columns of text, which cannot have them: verbs ended with a traceback."""
    found = parse_fastjson(rb'{"\uD800":"\ud83d\ude00 \\ud800 \udc00\n"}')
    assert found == {"\ufffd": "\U0001f600 \\ud800 \ufffd\n"}


def test_long_text_in_a_config_file_needs_little_memory() -> None:
    """100 times its size was needed: 5 GB for a file of 50 MB."""
    data = b'{"a":"' + b"\\n." * 50_000 + b'"}'
    tracemalloc.start()
    try:
        parse_fastjson(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(data)
