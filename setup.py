"""Builds the extension ``pyspark_dledger._native``; everything else is declared in setup.cfg."""

import os
import sys
import sysconfig
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

SOURCES = sorted(str(path) for path in Path("native").glob("*.cpp"))
HEADERS = sorted(str(path) for path in Path("native").glob("*.hpp"))
# A warning of a compiler that we do not know must not stop a user's build, so the Makefile asks for errors.
WARNINGS = ["-Wall", "-Wextra", *(["-Werror"] if os.environ.get("DLEDGER_WERROR") == "1" else [])]

# For the tests of the wheel: they take object files that are up to date, and need no fast code.
OPTIMIZATION = os.environ.get("DLEDGER_OPTIMIZATION", "-O3")

# A folder that stays, one per Python: an editable install would else compile everything again in a fresh one.
OBJECTS = f"build/{sys.implementation.cache_tag}-{sysconfig.get_platform()}"


def outdated(target: str, source: str) -> bool:
    """Tell whether the object file `target` is older than its source, any header or this file."""
    object_file = Path(target)
    if not object_file.exists():
        return True
    return object_file.stat().st_mtime < max(Path(path).stat().st_mtime for path in (source, __file__, *HEADERS))


# By itself setuptools compiles one file after the other, and always all of them.
ParallelCompile("DLEDGER_BUILD_JOBS", needs_recompile=outdated).install()

setup(
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
