"""Options without an effect are refused: every option of a read at every entry point."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest

import pyspark_dledger as dl
from pyspark_dledger.cli.main import main
from pyspark_dledger.cluster.options import parse_cluster_options
from pyspark_dledger.errors import DLedgerError, OptionError
from pyspark_dledger.log import Log
from pyspark_dledger.log.options import (
    CLUSTER_READ,
    CLUSTER_STREAM,
    DIGESTS,
    FIND,
    FOLLOW,
    GROUP_READ,
    GROUP_STREAM,
    OPTIONS,
    REBUILD,
    RECOVERY,
    REPORT,
    SCAN,
    SPARK_LOG,
    STATISTICS,
    STREAM,
    TABLES,
    USES,
    Offset,
    ReadOptions,
    parse_options,
)
from pyspark_dledger.log.plan import read_partition
from pyspark_dledger.log.tail.store_tail import StoreTail
from pyspark_dledger.log.tail.tail import NO_LIMITS, NOTHING, stream_options
from pyspark_dledger.rocketmq.tables import read_table
from pyspark_dledger.spark.schema import whole_schema
from tests.support.generate import mq_message, write_consume_queue, write_dledger

# A group and a path exclude each other, in words of their own.
GROUP = ("group", "peers")
FORMS = ("commitlog", "parquet", "jsonl", "iceberg", "delta")
Options = dict[str, str]

# Values that are not the default; REPLICA is a folder.
REPLICA = "<replica>"
VALUES = {
    "table": "state",
    "mode": "DROPMALFORMED",
    "verifyCrc": "false",
    "isolationLevel": "read_committed",
    "committedBound": "end",
    "replicas": REPLICA,
    "groupSize": "3",
    "heal": "true",
    "startingOffsets": "1",
    "endingOffsets": "3",
    "startingTimestamp": "2001-01-01",
    "endingTimestamp": "2101-01-01",
    "clockTolerance": "5m",
    "topic": "Orders",
    "queueId": "0",
    "tags": "a",
    "maxPartitionBytes": "4096",
    "minPartitions": "2",
    "defaultParallelism": "2",
    "maxBatchRows": "7",
    "maxBatchBytes": "64k",
    "maxOffsetsPerTrigger": "5",
    "maxBytesPerTrigger": "1m",
    "minOffsetsPerTrigger": "2",
    "maxTriggerDelay": "10s",
    "failOnDataLoss": "false",
    "trustKeyIndex": "true",
    "selfId": "n0",
    "dataDirs": REPLICA,
    "includeEntryBody": "true",
    "maxBodyBytes": "100",
    "group": "g",
    "peers": "n0-127.0.0.1:1",
    "tlsCert": "cert.pem",
    "tlsKey": "key.pem",
    "tlsCa": "ca.pem",
    "engine": "python",
}
# Options that an option needs to have an effect.
WITH = {
    "groupSize": {"replicas": REPLICA},
    "heal": {"replicas": REPLICA},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "2"},
    "trustKeyIndex": {"topic": "Orders"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's store whose last message is in no queue, and a replica of it next to it."""
    root = tmp_path_factory.mktemp("options") / "store"
    payloads = [
        mq_message("Orders", b"body %d" % number, queue_offset=number, properties=[("KEYS", "key")])
        for number in range(5)
    ]
    written = write_dledger(root, payloads)
    write_consume_queue(root, written.rows[:4])
    dl.rebuild(root, "index")
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"Orders@billing":{0:5}}}')
    write_dledger(root.parent / "replica", payloads, node="n1")
    return root


def error_of(run: Callable[[], object]) -> str:
    """The text of the error that a call ends in, or nothing."""
    try:
        run()
    except DLedgerError as error:
        return str(error)
    return ""


# An entry point: how it is called with a path and options, giving the text of the error.
Entry = Callable[[Path, Options], str]


def scan(path: Path, options: Options) -> str:
    return error_of(lambda: list(dl.open_log(path).scan(**options)))


def opened(path: Path, options: Options) -> str:
    return error_of(lambda: dl.open_log(path, **options))


def findings(path: Path, options: Options) -> str:
    return error_of(Log(str(path), parse_options(options)).findings)


def table(name: str) -> Entry:
    def read(path: Path, options: Options) -> str:
        parsed = parse_options(options)
        return error_of(lambda: list(read_table(Log(str(path), parsed), name)))

    return read


def export(form: str) -> Entry:
    def run(path: Path, options: Options) -> str:
        with tempfile.TemporaryDirectory() as target:
            return error_of(lambda: dl.export(path, target, form, **options))

    return run


def rebuild(path: Path, options: Options) -> str:
    return error_of(lambda: dl.rebuild(path, "index", dry_run=True, **options))


def spark_batch(name: str) -> Entry:
    def read(path: Path, options: Options) -> str:
        source = dl.DefaultSource({"path": str(path), "table": name, **options})
        return error_of(lambda: source.reader(source.schema()))

    return read


def spark_stream(path: Path, options: Options) -> str:
    source = dl.DefaultSource({"path": str(path), **options})
    return error_of(lambda: source.streamReader(whole_schema(source.read_options)))


def spark_group_read(_path: Path, options: Options) -> str:
    source = dl.DefaultSource({"group": "g", "peers": "n0-127.0.0.1:1", **options})
    return error_of(lambda: source.reader(whole_schema(source.read_options)))


def spark_group_stream(_path: Path, options: Options) -> str:
    source = dl.DefaultSource({"group": "g", "peers": "n0-127.0.0.1:1", **options})
    return error_of(lambda: source.streamReader(whole_schema(source.read_options)))


def cluster_read(is_stream: bool) -> Entry:
    def read(_path: Path, options: Options) -> str:
        topics = {} if "topic" in options else {"topicPattern": "a"}
        given = {"nameServer": "127.0.0.1:1", **topics, **options}
        return error_of(lambda: parse_cluster_options(given, is_stream))

    return read


def verb(line: str) -> Entry:
    """A verb of the command line, with the arguments that it needs; the text of the error is on standard error."""

    def run(path: Path, options: Options) -> str:
        name, *arguments = line.split()
        paths = [str(path), *([str(path)] if name == "diff" and "replicas" not in options else [])]
        arguments += [text for name, value in options.items() for text in ("--option", f"{name}={value}")]
        with redirect_stderr(StringIO()) as error, redirect_stdout(StringIO()):
            main([name, *paths, *arguments])
        return error.getvalue()

    return run


def export_verb(form: str) -> Entry:
    def run(path: Path, options: Options) -> str:
        with tempfile.TemporaryDirectory() as target:
            return verb(f"export {target} --to {form}")(path, options)

    return run


ENTRIES: dict[str, tuple[str, Entry]] = {
    "open_log": (SCAN, opened),
    "Log.scan": (SCAN, scan),
    "Log.findings": ("table findings", findings),
    "rebuild": (REBUILD, rebuild),
    "readStream": (STREAM, spark_stream),
    "spark.read of a group": (GROUP_READ, spark_group_read),
    "readStream of a group": (GROUP_STREAM, spark_group_stream),
    "spark.read of a cluster": (CLUSTER_READ, cluster_read(is_stream=False)),
    "readStream of a cluster": (CLUSTER_STREAM, cluster_read(is_stream=True)),
    **{f"read_table {name}": (f"table {name}", table(name)) for name in TABLES[1:]},
    "spark.read log": (SPARK_LOG, spark_batch("log")),
    **{f"spark.read {name}": (f"table {name}", spark_batch(name)) for name in TABLES[1:]},
    **{f"export {form}": (f"an export to {form}", export(form)) for form in FORMS},
    **{f"dledger dump {name}": (f"table {name}", verb(f"dump --json --table {name}")) for name in TABLES},
    **{f"dledger {name}": (f"table {name}", verb(name)) for name in ("segments", "state", "audit", "consumers")},
    "dledger diff": ("table diff", verb("diff")),
    "dledger verify": ("table findings", verb("verify")),
    "dledger recovery": (RECOVERY, verb("recovery")),
    "dledger stats": (STATISTICS, verb("stats")),
    "dledger find": (FIND, verb("find 1 --json")),
    "dledger follow": (FOLLOW, verb("follow --json")),
    "dledger report": (REPORT, verb("report --json")),
    "dledger diff --md5": (DIGESTS, verb("diff --md5")),
    **{f"dledger export {form}": (f"an export to {form}", export_verb(form)) for form in FORMS},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_an_option_without_an_effect_is_refused(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyspark_dledger.cli.verbs.follow._wait", interrupted)
    monkeypatch.setattr("pyspark_dledger.cli.main._abandon_output", lambda: None)
    use, call = ENTRIES[name]
    effective = USES[use]
    wrong = []
    for option, value in VALUES.items():
        if option == "table" and ("dump" in name or "spark.read" in name):
            continue  # the entry point has it already
        options = {key: given for key, given in WITH.get(option, {}).items() if key in effective} | {option: value}
        options = {key: str(store.parent / "replica") if given == REPLICA else given for key, given in options.items()}
        is_taken = option in effective or (option == "table" and use == f"table {value}")
        error = call(store, options)
        is_refused = f"option {option} has no effect on" in error or (option in GROUP and "group" in error)
        if is_taken == is_refused:
            wrong.append((option, error))
    assert not wrong


def test_every_option_has_a_value_to_try() -> None:
    assert list(VALUES) == [option.name for option in OPTIONS]
    for name, value in VALUES.items():
        assert parse_options({name: value}) != ReadOptions(), name


def test_the_error_names_the_option_and_where_it_works(store: Path) -> None:
    expected = "option topic has no effect on table segments, only on table log, consumeQueue, audit, consumers and a "
    assert table("segments")(store, {"topic": "a"}) == f"{expected}stream: leave it out"
    assert scan(store, {"group": "g"}).endswith("only on a live group: leave it out")
    assert "only on spark.read and dledger dump" in scan(store, {"table": "state"})


@pytest.mark.parametrize("entry", [scan, opened, spark_batch("log"), verb("dump")])
def test_options_that_need_others_are_refused_without_them(entry: Entry, store: Path) -> None:
    assert "option groupSize has no effect without option replicas" in entry(store, {"groupSize": "3"})


def test_the_body_of_entries_is_refused_where_the_columns_leave_it_out(store: Path) -> None:
    log = dl.open_log(store)
    with pytest.raises(OptionError, match="option includeEntryBody has no effect on given columns"):
        log.scan(["pos"], includeEntryBody=True)
    assert list(log.scan(["pos", "entryBody"], includeEntryBody=True))
    for line in ("dump", "dump --columns pos", "dump --json --body none", "find 1"):
        assert "option includeEntryBody has no effect" in verb(line)(store, {"includeEntryBody": "true"}), line
    assert verb("dump --columns pos,entryBody")(store, {"includeEntryBody": "true"}) == ""


@pytest.mark.parametrize("verb", ["serve --group g --id n0 --peers n0-127.0.0.1:1 --store", "cluster --store"])
def test_the_lifetime_of_producer_ids_is_refused_without_messages(verb: str, tmp_path: Path) -> None:
    with redirect_stderr(StringIO()) as error:
        assert main([*verb.split(), str(tmp_path / "new"), "--producer-id-expiry-ms", "5"]) == 2
    assert "--producer-id-expiry-ms has no effect without messages" in error.getvalue()
    assert not (tmp_path / "new").exists()


# Which options are read


class Recording(ReadOptions):
    """Options that record which of them are read, other than to copy or check them."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS and sys._getframe(1).f_code.co_name not in {"replace", "check_use", "__eq__"}:
            Recording.read.add(_FIELDS[name])
        return super().__getattribute__(name)


_FIELDS = {option.field: option.name for option in OPTIONS}


def read_by(run: Callable[[Recording], object], **options: Any) -> set[str]:
    recording = Recording(**options)
    Recording.read.clear()
    run(recording)
    return set(Recording.read)


@pytest.mark.parametrize("name", TABLES[1:])
def test_tables_read_the_options_that_they_take(name: str, store: Path) -> None:
    replicas = {"replicas": (str(store.parent / "replica"),)} if name == "diff" else {}
    found = read_by(lambda options: list(read_table(Log(str(store), options), name)), **replicas)
    assert USES[f"table {name}"] - {"engine"} <= found


def test_a_scan_reads_the_options_that_it_takes(store: Path) -> None:
    def scan(options: Recording) -> None:
        list(Log(str(store), options).scan())

    assert USES[SCAN] <= read_by(scan, starting_offsets=Offset("index", 1)) | read_by(scan, starting_timestamp=1)


def test_a_stream_reads_the_options_that_it_takes(store: Path) -> None:
    def read(options: Recording, start: str) -> None:
        chosen = stream_options(options, {start: "1"})
        tail = StoreTail(str(store), chosen, ("pos", "body"))
        for part in tail.plan(NOTHING, tail.latest(NOTHING, NO_LIMITS)):
            list(read_partition(part))

    found = read_by(partial(read, start="startingOffsets"), starting_offsets=Offset("index", 1))
    found |= read_by(partial(read, start="startingTimestamp"), starting_timestamp=1)
    by_spark = {"includeEntryBody", *(name for name in USES[STREAM] if name.endswith(("PerTrigger", "TriggerDelay")))}
    after_a_loss = {"failOnDataLoss"}
    assert USES[STREAM] <= found | by_spark | after_a_loss
