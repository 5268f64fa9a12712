"""Builds the fuzz targets into build/fuzz: for clang's libFuzzer, or for our own driver with any compiler."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
NATIVE = ROOT / "native"
BUILD = ROOT / "build" / "fuzz"

TARGETS = ("fuzz_scan", "fuzz_walk", "fuzz_codec", "fuzz_append", "fuzz_puts")
# Python's module, and the mapped file, which memory_file.cpp replaces.
LEFT_OUT = {"module.cpp", "module_puts.cpp", "bytes.cpp"}
SANITIZE = "-fsanitize=address,undefined"
FLAGS = [
    "-std=c++17",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    SANITIZE,
]

# Limits for an allocation and for the process: no input of a few hundred KiB needs more.
ENVIRONMENT = {
    "ASAN_OPTIONS": "max_allocation_size_mb=256:hard_rss_limit_mb=2048:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


class BuildError(Exception):
    """A compiler is missing or cannot build the targets; the text says what to do."""


class Toolchain(NamedTuple):
    """A compiler, and whether libFuzzer is the driver."""

    name: str
    command: list[str]
    has_libfuzzer: bool


def standalone() -> Toolchain:
    """The compiler that the package is built with: CXX, g++ or clang++."""
    named = os.environ.get("CXX")
    command = shlex.split(named) if named else [next(filter(shutil.which, ("g++", "clang++")), "g++")]
    return Toolchain("standalone", command, False)


def libfuzzer() -> Toolchain:
    """A clang++ with libFuzzer. Raises BuildError with the names of the packages to install."""
    names = [f"clang++-{version}" for version in range(25, 10, -1)]
    candidates = [os.environ["CXX"]] if "clang" in os.environ.get("CXX", "") else ["clang++", *names]
    found = [name for name in candidates if shutil.which(shlex.split(name)[0])]
    for name in found:
        command = shlex.split(name)
        if _links(command):
            return Toolchain("libfuzzer", command, True)
    raise BuildError(_what_is_missing(found))


def _links(command: list[str]) -> bool:
    """Whether this clang links a target: the libraries of the sanitizers are a separate package."""
    BUILD.mkdir(parents=True, exist_ok=True)
    source = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    arguments = ["-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", str(BUILD / "probe")]
    return (
        subprocess.run([*command, *arguments], input=source, text=True, capture_output=True, check=False).returncode
        == 0
    )


def _what_is_missing(found: list[str]) -> str:
    if not found:
        what, packages = "clang++", "clang libclang-rt-dev (or libclang-rt-14-dev, by clang's version)"
    else:
        version = subprocess.run([found[0], "--version"], capture_output=True, text=True, check=False).stdout
        major = re.search(r"version (\d+)", version)
        what = f"libFuzzer and the sanitizers of {found[0]}"
        packages = f"libclang-rt-{major[1]}-dev" if major else "libclang-rt-dev"
    return (
        f"Something is missing on this machine:\n  {what}: found {', '.join(found) or 'none'}\n"
        f"      Debian, Ubuntu: apt-get install {packages}\n"
        "      Fedora:         dnf install clang compiler-rt\n"
        '      macOS:          brew install llvm && export CXX="$(brew --prefix llvm)/bin/clang++"'
    )


def build(tools: Toolchain, targets: tuple[str, ...] = TARGETS) -> dict[str, Path]:
    """The executable of each target, compiled again if a source, a header or a flag has changed."""
    folder = BUILD / tools.name
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "command.txt"
    flags = shlex.join([*tools.command, *FLAGS])
    if not command.exists() or command.read_text() != flags:
        for old in folder.glob("*.o"):
            old.unlink()
        command.write_text(flags)
    shared = [FOLDER / f"{name}.cpp" for name in ("input", "rows", "memory_file")]
    shared += [] if tools.has_libfuzzer else [FOLDER / "standalone.cpp"]
    shared += [path for path in sorted(NATIVE.glob("*.cpp")) if path.name not in LEFT_OUT]
    sources = [*shared, *(FOLDER / f"{target}.cpp" for target in targets)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = dict(zip(sources, pool.map(lambda source: _compile(tools, source, folder), sources), strict=True))
        common = [str(objects[path]) for path in shared]
        return dict(
            pool.map(lambda target: (target, _link(tools, objects[FOLDER / f"{target}.cpp"], common, folder)), targets)
        )


def _compile(tools: Toolchain, source: Path, folder: Path) -> Path:
    made = folder / f"{source.parent.name}-{source.stem}.o"
    newest = max(path.stat().st_mtime for path in (source, *NATIVE.glob("*.hpp"), *FOLDER.glob("*.hpp")))
    if not made.exists() or made.stat().st_mtime < newest:
        flags = [*FLAGS, "-I", str(NATIVE), "-I", str(FOLDER)]
        if tools.has_libfuzzer:
            # Coverage of the targets' own checks is useless and would cost most of the time.
            flags += ["-O2", "-fsanitize=fuzzer-no-link"] if source.parent == NATIVE else ["-O1"]
        _run([*tools.command, *flags, "-c", str(source), "-o", str(made)])
    return made


def _link(tools: Toolchain, target: Path, common: list[str], folder: Path) -> Path:
    made = folder / target.stem.removeprefix(f"{FOLDER.name}-")
    flags = [*FLAGS, "-fsanitize=fuzzer"] if tools.has_libfuzzer else FLAGS
    _run([*tools.command, *flags, str(target), *common, "-o", str(made), "-lpthread"])
    return made


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")
