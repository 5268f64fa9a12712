"""Start a sink process that is no child of this one, in a session of its own: signals to this group do not end it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from pyspark_dledger.spark.sink.control import SinkSettings

_MODULE = "pyspark_dledger.spark.sink.sink_process"
# The shell exits at once, so nobody here has to wait for the process.
_DETACHED = 'exec 3<&0; "$0" -m "$1" <&3 3<&- &'
_FILES = "/dev/fd"
_STDOUT, _STDERR = 1, 2


def spawn(settings: SinkSettings) -> bytes:
    """Start a new Python. Return the line that the process writes, or nothing if it ended before."""
    # NumPy's linear algebra is not used there; its threads would wait busily.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_folders()), "OPENBLAS_NUM_THREADS": "1"}
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
    return line


def can_fork() -> bool:
    """Return whether this is a worker of PySpark, made by a fork itself, with one thread.

    Other threads would not run in a fork, and locks that they have would stay locked.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    return program is not None and program.name == "pyspark.daemon" and threading.active_count() == 1


def fork(settings: SinkSettings) -> bytes:
    """As `spawn`, without the half second of processor time in which a new Python imports what it needs."""
    # Tasks start no sink: they need not import these modules.
    program = import_module(_MODULE)
    if settings.is_message:
        import pyspark_dledger.rocketmq.service.message_service  # noqa: F401

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _exit_with(lambda: _detached(writing, partial(program.serve, settings)))
    os.close(writing)
    with open(reading, "rb") as stream:
        line = stream.readline()
    # Some parents ignore their children's ends.
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    return line


def _exit_with(code: Callable[[], int]) -> NoReturn:
    """Exit with what `code` returns, or with 1 after an error. Nothing of the parent's calls runs here."""
    exit_code = 1
    try:
        exit_code = code()
    except BaseException:  # noqa: BLE001  # the parent sees no line
        traceback.print_exc()
    finally:
        os._exit(exit_code)


def _detached(output: int, serve: Callable[[], int]) -> int:
    """Run `serve` in a child of this child. Its standard output is `output`."""
    os.setsid()
    if os.fork():
        return 0
    os.dup2(output, _STDOUT)
    nothing = os.open(os.devnull, os.O_RDWR)
    # Objects of the parent may close their descriptors later: each keeps its number.
    for number in map(int, os.listdir(_FILES)):
        if number not in (_STDOUT, _STDERR):
            os.dup2(nothing, number)
    sys.stderr = open(_STDERR, "w", buffering=1, closefd=False)  # noqa: SIM115  # until the process exits
    sys.path[:] = _folders()
    os.chdir("/")
    # The parent's objects are no garbage here.
    gc.freeze()
    return serve()


def _folders() -> list[str]:
    """Where modules are; relative folders are those of this working directory."""
    return [str(Path(folder).absolute()) for folder in sys.path]
