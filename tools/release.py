"""Checks the files of a release: ``python -m tools.release check|try|notes|recipe``; see release.yml."""

from __future__ import annotations

import argparse
import configparser
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from pyspark_dledger import __version__

ROOT = Path(__file__).resolve().parent.parent
NAME = "pyspark_dledger"
PACKAGES = (NAME, "pyspark_rocketmq")
FILES = f"{NAME}-{__version__}*"
MADE = ("*.so", "*.py[cod]", "__pycache__", "*.egg-info", "build", "dist", ".*")
COMPILERS = ("cc", "c++", "gcc*", "g++*", "clang*", "ld", "*-linux-gnu-*", "c89*", "c99*")
PLATFORMS = (
    *("manylinux_*_x86_64", "manylinux_*_aarch64", "musllinux_*_x86_64", "musllinux_*_aarch64"),
    *("macosx_*_x86_64", "macosx_*_arm64"),
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
        if path.is_file() and not any(fnmatch(part, made) for part in name.parts for made in MADE):
            yield PurePosixPath(name)


def problems(dist: Path) -> Iterator[str]:
    """What is wrong with the sdist and the wheels in a folder."""
    sdists, wheels = sorted(dist.glob(f"{FILES}.tar.gz")), sorted(dist.glob(f"{FILES}.whl"))
    if len(sdists) != 1 or not wheels:
        yield f"{dist}: expected one sdist and wheels, found {len(sdists)} and {len(wheels)}"
    expected = set(sources())
    for sdist in sdists:
        with tarfile.open(sdist) as archive:
            packed = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
        # Hidden files are of the repository, not of the package.
        for name in sorted({name for name in expected if not name.parts[0].startswith(".")} - packed):
            yield f"{sdist.name}: has no {name}"
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            yield from (f"{wheel.name}: {problem}" for problem in _wheel_problems(archive, expected))


def _wheel_problems(wheel: zipfile.ZipFile, expected: set[PurePosixPath]) -> Iterator[str]:
    info = f"{NAME}-{__version__}.dist-info"
    found = {name for name in wheel.namelist() if not name.endswith("/")}
    needed = {f"{info}/{name}" for name in ("METADATA", "licenses/LICENSE", f"sboms/{NAME}.cdx.json")}
    needed |= {str(name) for name in expected if name.parts[0] in PACKAGES}
    yield from (f"has no {name}" for name in sorted(needed - found))
    # auditwheel adds libraries that a system may lack.
    extras = {name for name in found - needed if not name.startswith((f"{info}/", f"{NAME}.libs/"))}
    extensions = {name for name in extras if fnmatch(name, f"{NAME}/_native.*.so")}
    if len(extensions) != 1:
        yield f"expected one extension, found {len(extensions)}"
    yield from (f"{name} is not of the repository" for name in sorted(extras - extensions))
    if needed <= found:
        metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
        materials = json.loads(wheel.read(f"{info}/sboms/{NAME}.cdx.json"))
        named = {"METADATA": metadata["Version"], "SBOM": materials["metadata"]["component"]["version"]}
        yield from (f"{file}: expected {__version__}, found {version}" for file, version in named.items()
                    if version != __version__)  # fmt: skip


def missing_wheels(dist: Path) -> Iterator[str]:
    """The wheels that a release has to have and that are not in a folder."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    for python in re.findall(r"Python :: 3\.(\d+)", setup["metadata"]["classifiers"]):
        for platform in PLATFORMS:
            pattern = f"{NAME}-{__version__}-cp3{python}-cp3{python}-{platform}.whl"
            if not any(dist.glob(pattern)):
                yield f"{dist}: has no {pattern}"


def notes(changelog: str, version: str, base: str = "") -> str:
    """The section of a version, without its heading; links to pages of the repository begin with `base`."""
    found = re.search(rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md: expected a section '## {version}'")
    return re.sub(r"\]\((?!https?:)", f"]({base}", found[1].strip()) + "\n"


def recipe(template: str, dist: Path, base: str) -> str:
    """The whole recipe for conda-forge, for the sdist in `dist`, which is published at `base`."""
    (sdist,) = dist.glob(f"{FILES}.tar.gz")
    checksum = hashlib.sha256(sdist.read_bytes()).hexdigest()
    values = {"VERSION": __version__, "SDIST": f"{base}{sdist.name}", "SHA256": checksum}
    whole = template.partition("schema_version")
    return whole[1] + re.sub("|".join(values), lambda place: values[place[0]], whole[2])


def path_without_compiler(folder: Path) -> str:
    """A PATH with everything but compilers, as links in a folder."""
    for program in (path for place in os.environ["PATH"].split(os.pathsep) for path in Path(place).glob("*")):
        link = folder / program.name
        if not any(fnmatch(program.name, compiler) for compiler in COMPILERS) and not link.is_symlink():
            link.symlink_to(program)
    if any(shutil.which(name, path=str(folder)) for name in ("cc", "gcc", "g++", "clang", "clang++")):
        raise SystemExit("expected a PATH without compilers, found one")
    return str(folder)


def make_index(dist: Path, folder: Path) -> str:
    """The URL of a package index, made in a folder, that has the files of `dist`."""
    page = folder / NAME.replace("_", "-")
    page.mkdir(parents=True)
    links = (f'<a href="{file.resolve().as_uri()}">{file.name}</a>' for file in sorted(dist.glob(FILES)))
    (page / "index.html").write_text("\n".join(links))
    return folder.as_uri()


def try_wheel(dist: Path) -> None:
    """Install the package from a local index into a fresh environment without a compiler, and read a store."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTHON")}
        environment["PATH"] = path_without_compiler(folder / "bin")
        venv.create(folder / "venv", with_pip=True)
        index = make_index(dist, folder / "index")
        python = folder / "venv" / "bin" / "python"
        install = ("-m", "pip", "install", "-qq", "--extra-index-url", index, NAME)
        for line in (install, (str(ROOT / "tools" / "smoke.py"),)):
            subprocess.run([python, *line], cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["check", "try", "notes", "recipe"])
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--tag", help="check: all wheels are there, and this tag and CHANGELOG.md name the version")
    parser.add_argument(
        "--base", default="", help="the address of the repository's pages (notes), or of the sdist (recipe)"
    )
    args = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if args.task == "try":
        try_wheel(args.dist)
    elif args.task == "notes":
        sys.stdout.write(notes(changelog, __version__, args.base))
    elif args.task == "recipe":
        sys.stdout.write(recipe((ROOT / "packaging" / "recipe.yaml").read_text(), args.dist, args.base))
    else:
        found = list(problems(args.dist))
        if args.tag:
            found += missing_wheels(args.dist)
            if args.tag != f"v{__version__}":
                found.append(f"expected tag v{__version__}, found {args.tag}")
            if not re.search(rf"^## {re.escape(__version__)}$", changelog, re.MULTILINE):
                found.append(f"CHANGELOG.md: expected a heading '## {__version__}', without '(unreleased)'")
        sys.stdout.writelines(f"{problem}\n" for problem in found)
        sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
