"""Fixtures that more than one file of tests uses."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from pyspark_dledger import enable
from pyspark_dledger.format.engine import Engine, get_engine
from tests.support import golden, spark_archive
from tests.support.extension import HAS_EXTENSION
from tests.support.spark_cluster import SHORT_LIVED

# The suite gives the same answer in every run, also on a busy machine; `make properties` draws other examples.
_UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
settings.register_profile("suite", derandomize=True, max_examples=30, deadline=None, suppress_health_check=_UNHURRIED)
settings.register_profile("random", settings.get_profile("suite"), derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("suite")

gc.disable()  # until the tests are collected

LONG = ("slow", "java", "spark")
"""Markers of tests that take long."""

MAX_DISK_USAGE = 0.85
"""Above it, brokers and nodes delete their oldest files or reject writes, and tests fail for no visible reason."""

# A shell that starts the tests in the background ignores these signals, and child processes would inherit that.
for ignored, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, handler)

# Each of the workers and of hundreds of processes would else compile the tests, or the package, again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Spark and the Java judges run for minutes: less compilation makes them faster.
for name, flags in {**SHORT_LIVED, **spark_archive.environment()}.items():
    os.environ.setdefault(name, flags)
# Spark's workers import the sitecustomize of this folder.
_WORKERS = str(Path(__file__).parent / "support" / "spark_python")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_WORKERS, os.environ.get("PYTHONPATH"))))


def pytest_sessionstart() -> None:
    """Stop on a disk that is too full for brokers and nodes."""
    folder = tempfile.gettempdir()
    disk = shutil.disk_usage(folder)
    usage = disk.used / (disk.used + disk.free)
    if usage > MAX_DISK_USAGE:
        pytest.exit(
            f"the disk of {folder} is {usage:.0%} full, and nodes and brokers need {1 - MAX_DISK_USAGE:.0%} free: "
            "delete files, or set TMPDIR to a folder on another disk",
            returncode=1,
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Few workers start Spark, if files are run side by side."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.support.scheduling import SharedSessions

    return SharedSessions(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """Three workers more than processors: tests also wait for clocks, timers and other processes."""
    return (os.cpu_count() or 1) + 3


def pytest_collection_finish() -> None:
    """Garbage is searched in what the tests make, not in the modules and the thousands of collected tests."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts Spark or Java, and mix the files: while some wait for others' clocks, the rest compute.

    Files that take long are in the first third, so that no worker waits for the last one.
    """
    is_long: dict[Path, bool] = {}
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if "interop" in item.path.parts:
            item.add_marker("java")
        is_long[item.path] = is_long.get(item.path, False) or any(mark.name in LONG for mark in item.iter_markers())
    root = Path(__file__).parent
    places = {path: crc32(bytes(path.relative_to(root))) / (3 if found else 1) for path, found in is_long.items()}
    items.sort(key=lambda item: (places[item.path], item.path))


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def reader(engine: str) -> Engine:
    return get_engine(engine)


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests without a power loss: waiting for the disk would take most of their time."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture
def folder() -> Iterator[Callable[[], Path]]:
    """Gives a new empty folder at every call, for the many examples of one test."""
    with tempfile.TemporaryDirectory() as root:
        count = iter(range(10**6))

        def new() -> Path:
            path = Path(root) / str(next(count))
            path.mkdir()
            return path

        yield new


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Spark's workers must be the Python that has this package. A relative path, as in the Makefile.
    os.environ["PYSPARK_PYTHON"] = os.path.relpath(sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    if HAS_EXTENSION:
        enable(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> None:
    """Make the session active in this thread: without one, Spark finds no Python data source for a write."""
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").createDataFrame([(1,)], "number int")


@pytest.fixture(scope="session", autouse=True)
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the unpacked golden cases. Every file is checked at the end: nothing may change them."""
    folder = golden.originals = tmp_path_factory.mktemp("goldens")
    yield folder
    golden.originals = None
    for case in folder.iterdir():
        path, before = golden.original(case.name, folder)
        assert golden.fingerprint(path) == before, f"reading changed something in {path}"


@pytest.fixture(scope="session")
def case_folder(originals: Path) -> Callable[[str], Path]:
    """Gives the unpacked folder of a golden case, to be read only."""
    return lambda case: golden.original(case, originals)[0]
