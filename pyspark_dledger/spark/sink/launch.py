"""Starting the process of an embedded sink, on the driver's machine; and finding that of a stream again."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.spark.sink.driver import driver_pid, host_for_tasks
from pyspark_dledger.spark.sink.embedded import SinkSettings
from pyspark_dledger.spark.sink.lease import SinkProcess, ask
from pyspark_dledger.spark.sink.sink_files import file_of, locked, read_sink, write_sink
from pyspark_dledger.spark.sink.sink_store import place_of
from pyspark_dledger.spark.sink.write_options import WriteOptions

_MODULE = "pyspark_dledger.spark.sink.embedded"
# A Python's module, with this standard input, as a child of nobody here: nobody has to wait for its end.
_DETACHED = 'exec 3<&0; "$0" -m "$1" <&3 3<&- &'


def start_sink(options: WriteOptions, is_message: bool) -> SinkProcess:
    """A process of its own for one job, with its store open. It outlives this one, and ends with the driver.

    Raises StoreError and OptionError where the store cannot be written.
    """
    return start(_settings(options, is_message))


def stream_sink(options: WriteOptions, is_message: bool) -> SinkProcess:
    """The process that serves the streams of this driver to that path, started where there is none.

    Where it listens, and its secret, stand in a file that only this user can read.
    """
    settings = _settings(options, is_message)
    # Of each driver and store, and each way of writing it, where it listens among them.
    file = file_of(json.dumps(settings._replace(secret="")._asdict(), sort_keys=True))
    with locked(file):
        found = read_sink(file)
        if found is not None and is_alive(found):
            return found
        sink = start(settings._replace(file=str(file)))
        write_sink(file, sink)
        return sink


def _settings(options: WriteOptions, is_message: bool) -> SinkSettings:
    assert options.path is not None
    place = place_of(options.path, options.self_id, is_message)
    return SinkSettings(
        root=str(place.root),
        self_id=place.self_id,
        host=options.listen or host_for_tasks(),
        secret=secrets.token_hex(32),
        driver=driver_pid(),
        lease_ms=options.lease_ms,
        flush=options.flush,
        data_file_size=options.data_file_size,
        index_file_size=options.index_file_size,
        is_message=is_message,
        producer_id_expiry_ms=options.producer_id_expiry_ms,
    )


def start(settings: SinkSettings) -> SinkProcess:
    """Start the process, in a session of its own: what ends this one, or its group, does not end it."""
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    # NumPy's linear algebra, which nothing there uses, would start threads that wait busily.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(  # noqa: S603  # this Python
        ["/bin/sh", "-c", _DETACHED, sys.executable, _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        # One that has ended already says so by an empty answer.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings._asdict()).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
    process.wait()
    if not line:
        raise DLedgerError("expected the embedded sink to start, found that it ended at once: standard error says more")
    answer = json.loads(line)
    if "error" in answer:
        raise _error(answer)
    return SinkProcess(settings.host, answer["port"], answer["pid"], settings.secret, settings.lease_ms)


def _error(answer: dict[str, str]) -> DLedgerError:
    return (OptionError if answer.get("kind") == "OptionError" else StoreError)(answer["error"])


def is_alive(sink: SinkProcess) -> bool:
    """Whether it is there, and knows its secret: somebody else may have its port by now."""
    try:
        ask(sink, "flush")
    except DLedgerError:
        return False
    return True
