"""``make wheel``: the wheel installs without a compiler, and Spark reads a store with it from another folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pyspark
import pytest

from pyspark_dledger import __version__
from tools.release import make_index, path_without_compiler, problems, sources

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
INFO = f"pyspark_dledger-{__version__}.dist-info"
INSTALL = {
    line.partition("#")[0].strip()
    for page in ("README.md", "docs/install.md")
    for line in re.findall(r"pip install '?pyspark_dledger[^\n`|]*", (ROOT / page).read_text())
}
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
    return path_without_compiler(tmp_path_factory.mktemp("bin"))


def share_dependencies(python: Path, folder: Path) -> None:
    """Lets an environment have what this one has, except the package, so that pip downloads no Spark."""
    folder.mkdir()
    for each in Path(pyspark.__file__).parent.parent.iterdir():
        if not each.name.startswith(("pyspark_dledger", "__editable__", "_pyspark_dledger")) and each.suffix != ".pth":
            (folder / each.name).symlink_to(each)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{folder}\n")


def test_sdist_and_wheel_are_whole(dist: Path) -> None:
    assert list(problems(dist)) == []


def test_a_wheel_that_lacks_or_adds_a_file_is_no_release(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
        for name in whole.namelist():
            if not name.endswith((".cdx.json", "cli/main.py")):
                archive.writestr(name, whole.read(name))
        archive.writestr("pyspark_dledger/left_over.py", "")
    assert [problem.removeprefix(f"{wheel.name}: ") for problem in problems(tmp_path)] == [
        f"{tmp_path}: expected one sdist and wheels, found 0 and 1",
        f"has no {INFO}/sboms/pyspark_dledger.cdx.json",
        "has no pyspark_dledger/cli/main.py",
        "pyspark_dledger/left_over.py is not of the repository",
    ]


def test_the_bill_of_materials_names_the_headers_that_are_compiled_in(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = json.loads(archive.read(f"{INFO}/sboms/pyspark_dledger.cdx.json"))
    (part,) = found["components"]
    assert (found["bomFormat"], part["name"], part["licenses"][0]["license"]["id"]) == (
        "CycloneDX",
        "pybind11",
        "BSD-3-Clause",
    )
    assert "Wenzel Jakob" in part["licenses"][0]["license"]["text"]["content"]


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is of Linux")
def test_the_wheel_is_for_many_linuxes(wheel: Path) -> None:
    assert "-manylinux_2_" in wheel.name


def test_a_source_build_without_a_compiler_names_the_wheel_that_fits(
    dist: Path, wheel: Path, without_compiler: str, tmp_path: Path
) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    tools = dist.parent / "build" / "wheel-tools" / "bin" / "python"
    pip = (tools, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", tmp_path / "installed")
    done = run(*pip, sdist, cwd=tmp_path, PATH=without_compiler)
    named = re.search(r"the wheel (\S+) needs none: pip install --only-binary", done.stdout + done.stderr)
    assert done.returncode == 1
    assert named is not None, done.stdout + done.stderr
    assert fnmatch(wheel.name, named[1])


@pytest.mark.spark
def test_spark_reads_a_store_after_the_install_lines_of_the_docs(
    wheel: Path, without_compiler: str, case_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path).returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    share_dependencies(python, tmp_path / "dependencies")
    index = make_index(wheel.parent, tmp_path / "index")
    for line in sorted(INSTALL):
        pip = (sys.executable, "-m", "pip", "--python", python, *shlex.split(line)[1:])
        installed = run(*pip, "--no-compile", "--index-url", index, cwd=tmp_path, PATH=without_compiler)
        assert installed.returncode == 0, installed.stdout + installed.stderr

    store = case_folder("mq-53-upgrade")
    done = run(python, "-c", READ, store, cwd=tmp_path, PATH=without_compiler, PYSPARK_PYTHON=str(python))
    assert done.stdout.strip() == "{'commitlog': 543, 'dledger': 539}", done.stderr
    done = run(tmp_path / "venv" / "bin" / "dledger", "stats", "--json", store, cwd=tmp_path, PATH=without_compiler)
    assert (done.returncode, '"entries"' in done.stdout) == (0, True), done.stderr
