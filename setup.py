"""Builds the extension ``pyspark_dledger._native``; everything else is declared in setup.cfg."""

import json
import os
import platform
import shutil
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCES = sorted(str(path) for path in Path("native").glob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("native").glob("*.hpp"))
# A warning of a compiler that we do not know must not stop a user's build, so the Makefile asks for errors.
WARNINGS = ["-Wall", "-Wextra", *(["-Werror"] if os.environ.get("DLEDGER_WERROR") == "1" else [])]

# For the tests of the wheel: they take object files that are up to date, and need no fast code.
OPTIMIZATION = os.environ.get("DLEDGER_OPTIMIZATION", "-O3")

# A folder that stays, one per Python: an editable install would else compile everything again in a fresh one.
OBJECTS = f"build/{sys.implementation.cache_tag}-{sysconfig.get_platform()}"

# Where release.yml builds wheels: machines by system. They are for each Python that a classifier names.
MACHINES = {"Darwin": ("arm64", "x86_64"), "Linux": ("aarch64", "x86_64")}


def outdated(target: str, source: str) -> bool:
    """Tell whether the object file `target` is older than its source, any header or this file."""
    object_file = Path(target)
    if not object_file.exists():
        return True
    return object_file.stat().st_mtime < max(Path(path).stat().st_mtime for path in (source, __file__, *HEADERS))


def without_compiler(package: Distribution) -> str:
    """What to do without a compiler: the name of the wheel that fits this Python and machine, if there is one."""
    python, system, machine = f"{sys.version_info[0]}.{sys.version_info[1]}", platform.system(), platform.machine()
    if (
        machine not in MACHINES.get(system, ())
        or f"Programming Language :: Python :: {python}" not in package.get_classifiers()
    ):
        return f"there is no wheel for Python {python} on {system} {machine}, so install a compiler"
    kind = "macosx" if system == "Darwin" else "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    tag = f"cp{python.replace('.', '')}"
    wheel = f"{package.get_name()}-{package.get_version()}-{tag}-{tag}-{kind}_*_{machine}.whl"
    return f"the wheel {wheel} needs none: pip install --only-binary {package.get_name()} {package.get_name()}"


def bill_of_materials(package: Distribution) -> dict[str, Any]:
    """What the extension contains besides the package's own code: pybind11's headers. As CycloneDX."""
    headers = distribution("pybind11")
    texts = [path.read_text() for path in headers.files or () if path.name == "LICENSE"]
    licence = {"id": "BSD-3-Clause", **({"text": {"content": texts[0]}} if texts else {})}
    own, foreign = f"pkg:pypi/pyspark-dledger@{package.get_version()}", f"pkg:pypi/pybind11@{headers.version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(own, [{"expression": package.metadata.license_expression}])},
        "components": [component(foreign, [{"license": licence}])],
        "dependencies": [{"ref": own, "dependsOn": [foreign]}, {"ref": foreign}],
    }


def component(purl: str, licences: list[dict[str, Any]]) -> dict[str, Any]:
    """A library of a bill of materials, by its package URL."""
    name, _, version = purl.rpartition("/")[2].partition("@")
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": licences}


class BuildExtension(build_ext):
    """Compiles the extension. Without a compiler, the error names the wheel that needs none."""

    def build_extensions(self) -> None:
        compiler = getattr(self.compiler, "compiler_so_cxx", self.compiler.compiler_so)[0]
        if shutil.which(compiler) is None:
            raise CompileError(f"no compiler {compiler} for C++ is here: {without_compiler(self.distribution)}")
        super().build_extensions()


class BuildWheel(bdist_wheel):
    """Packs a wheel with its bill of materials (PEP 770)."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        super().write_wheelfile(wheelfile_base, *arguments)
        folder = Path(wheelfile_base, "sboms")
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(self.distribution), indent=1)
        (folder / "pyspark_dledger.cdx.json").write_text(text)


# By itself setuptools compiles one file after the other, and always all of them.
ParallelCompile("DLEDGER_BUILD_JOBS", needs_recompile=outdated).install()

setup(
    cmdclass={"bdist_wheel": BuildWheel, "build_ext": BuildExtension},
    ext_modules=[
        Pybind11Extension(
            "pyspark_dledger._native",
            SOURCES,
            depends=[*HEADERS, "setup.py"],
            cxx_std=17,
            # Foreign headers are system headers: no warnings from them.
            extra_compile_args=[
                *("-isystem", pybind11.get_include()),
                *("-isystem", sysconfig.get_path("include")),
                *(OPTIMIZATION, *WARNINGS, "-fvisibility=hidden"),
            ],
        )
    ],
    options={"build_ext": {"build_temp": os.environ.get("DLEDGER_OBJECTS", OBJECTS)}},
)
