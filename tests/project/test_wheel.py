"""``make wheel``: the wheel installs without a compiler, and Spark reads a store with it from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pyspark
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = ("*.so", "*.py[cod]", "__pycache__", "*.egg-info")
COMPILERS = ("cc", "c++", "gcc*", "g++*", "clang*", "ld", "*-linux-gnu-*", "c89*", "c99*")
READ = """
import sys
from pyspark.sql import SparkSession
import pyspark_dledger

assert pyspark_dledger.__file__.startswith(sys.prefix), pyspark_dledger.__file__
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = session.config("spark.sql.shuffle.partitions", "1").getOrCreate()
log = spark.read.format("dledger").load(sys.argv[1])
print(dict(log.groupBy("source").count().collect()))
"""


def run(*line: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment that names neither this checkout nor the tests' own Python."""
    dropped = ("PYTHON", "PYSPARK", "VIRTUAL_ENV")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
    return subprocess.run(
        list(map(str, line)), cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False
    )


def sources() -> Iterator[PurePosixPath]:
    """What the repository contains; in an unpacked sdist, what that contains."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.rstrip("\0").split("\0")
        yield from (PurePosixPath(name) for name in names if (ROOT / name).exists())
        return
    for path in ROOT.rglob("*"):
        name = path.relative_to(ROOT)
        if path.is_file() and not any(fnmatch(part, each) for part in name.parts for each in (*MADE, ".*", "build")):
            yield PurePosixPath(name)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make wheel`` fills, in a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    probe = run(sys.executable, "-m", "pip", "download", "--no-deps", "--dest", folder / "probe", "build", cwd=folder)
    if probe.returncode:
        pytest.skip(f"pip reaches no package index: {probe.stderr.strip().splitlines()[-1]}")
    copy = folder / "a checkout"
    for name in sources():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    objects = folder / "objects"
    if (built := ROOT / "build" / f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}").is_dir():
        shutil.copytree(built, objects)
    options = {"DLEDGER_OPTIMIZATION": "-O0", "DLEDGER_OBJECTS": str(objects), "PIP_NO_COMPILE": "1"}
    made = run("make", "wheel", cwd=copy, PYTHON=sys.executable, **options)
    assert made.returncode == 0, made.stdout + made.stderr
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with everything but compilers."""
    folder = tmp_path_factory.mktemp("bin")
    for program in (path for place in os.environ["PATH"].split(os.pathsep) for path in Path(place).glob("*")):
        link = folder / program.name
        if not any(fnmatch(program.name, compiler) for compiler in COMPILERS) and not link.is_symlink():
            link.symlink_to(program)
    assert not any(shutil.which(name, path=str(folder)) for name in ("cc", "gcc", "g++", "clang", "clang++"))
    return str(folder)


def share_dependencies(python: Path, folder: Path) -> None:
    """Lets an environment have what this one has, except the package, so that pip downloads no Spark."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.parent.iterdir():
        if not each.name.startswith(("pyspark_dledger", "__editable__", "_pyspark_dledger")) and each.suffix != ".pth":
            (folder / each.name).symlink_to(each)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{folder}\n")


def test_the_wheel_is_whole(wheel: Path) -> None:
    wanted = {str(name) for name in sources() if name.parts[0] in ("pyspark_dledger", "pyspark_rocketmq")}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    extension = {name for name in found if name.startswith("pyspark_dledger/_native.") and name.endswith(".so")}
    assert len(extension) == 1
    assert found - extension == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
def test_the_wheel_is_for_many_linuxes(wheel: Path) -> None:
    assert "-manylinux_2_" in wheel.name


def test_the_sdist_has_what_builds_and_tests_need(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        found = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    # Hidden files are of the repository, not of the package.
    assert {name for name in sources() if not name.parts[0].startswith(".")} - found == set()


@pytest.mark.spark
def test_spark_reads_a_store_with_the_wheel(
    wheel: Path, without_compiler: str, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path).returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    share_dependencies(python, tmp_path / "dependencies")
    wanted = (f"{wheel}[spark]", f"pyspark=={pyspark.__version__}")
    pip = (sys.executable, "-m", "pip", "--python", python)
    installed = run(*pip, "install", "--no-compile", *wanted, cwd=tmp_path, PATH=without_compiler)
    assert installed.returncode == 0, installed.stdout + installed.stderr

    store = case_folder("mq-53-upgrade")
    done = run(python, "-c", READ, store, cwd=tmp_path, PATH=without_compiler, PYSPARK_PYTHON=str(python))
    assert done.stdout.strip() == "{'commitlog': 543, 'dledger': 539}", done.stderr
    done = run(tmp_path / "venv" / "bin" / "dledger", "stats", "--json", store, cwd=tmp_path, PATH=without_compiler)
    assert (done.returncode, '"entries"' in done.stdout) == (0, True), done.stderr
