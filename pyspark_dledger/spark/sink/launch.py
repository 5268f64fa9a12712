"""Start a sink process on the driver's machine, or find the one of a stream."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.errors import DLedgerError, OptionError, StoreError
from pyspark_dledger.spark.sink.control import SinkAddress, SinkSettings, send_request
from pyspark_dledger.spark.sink.driver import driver_pid, host_for_tasks
from pyspark_dledger.spark.sink.registry import locked, read_sink, registry_file, write_sink
from pyspark_dledger.spark.sink.sink_store import find_store
from pyspark_dledger.spark.sink.write_options import WriteOptions

_MODULE = "pyspark_dledger.spark.sink.sink_process"
# The shell exits at once, so nobody here has to wait for the process.
_DETACHED = 'exec 3<&0; "$0" -m "$1" <&3 3<&- &'


def start_sink(options: WriteOptions, is_message: bool) -> SinkAddress:
    """Start the process of one job, with its store open. It outlives this process, and ends with the driver.

    Raises StoreError and OptionError if the store cannot be written.
    """
    return start(_settings(options, is_message))


def stream_sink(options: WriteOptions, is_message: bool) -> SinkAddress:
    """Return the process for streams of this driver to that path, started if it does not run."""
    settings = _settings(options, is_message)
    # One process for each driver, store and settings.
    file = registry_file(json.dumps(settings._replace(secret="")._asdict(), sort_keys=True))
    with locked(file):
        found = read_sink(file)
        if found is not None and is_alive(found):
            return found
        sink = start(settings._replace(registry_file=str(file)))
        write_sink(file, sink)
        return sink


def _settings(options: WriteOptions, is_message: bool) -> SinkSettings:
    assert options.path is not None
    store = find_store(options.path, options.self_id, is_message)
    return SinkSettings(
        root=str(store.root),
        self_id=store.self_id,
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


def start(settings: SinkSettings) -> SinkAddress:
    """Start the process in a session of its own: a signal to this process group does not end it."""
    folders = [str(Path(folder).absolute()) for folder in sys.path]
    # NumPy's linear algebra is not used there; its threads would wait busily.
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
        # A process that has already ended writes no line.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(settings._asdict()).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
    process.wait()
    if not line:
        raise DLedgerError("the sink process ended as it started: see standard error")
    outcome = json.loads(line)
    if "error" in outcome:
        raise (OptionError if outcome.get("kind") == "OptionError" else StoreError)(outcome["error"])
    return SinkAddress(settings.host, outcome["port"], outcome["pid"], settings.secret, settings.lease_ms)


def is_alive(sink: SinkAddress) -> bool:
    """Return whether the process runs. Another process may have its port."""
    try:
        send_request(sink, "flush")
    except DLedgerError:
        return False
    return True
