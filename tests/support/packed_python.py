"""A Python environment with the package for a driver, and its archive for executors, as a user packs a venv."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent.parent
# They are large, and not needed.
_LEFT_OUT = ("include", "tests", "__pycache__")
_PACKED = ("pyspark_dledger", "crcmod", "pyarrow", "numpy", "numpy.libs", "sitecustomize.py")
# A machine of a cluster has its own.
_OF_SPARK = ("pyspark", "py4j")
# PySpark looks for pandas where a query with Arrow is made, not where it runs.
_OF_THE_DRIVER = ("pandas", "dateutil", "pytz", "six.py")


def make_environment(folder: Path) -> Path:
    """Return the new environment ``folder/environment``. It links to this one's packages."""
    environment = folder / "environment"
    packages = environment / _PACKAGES
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    for name in ("python", "python3"):
        (environment / "bin" / name).symlink_to(f"{sys.base_prefix}/bin/python3")
    (environment / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
    for name in (*_PACKED, *_OF_SPARK, *_OF_THE_DRIVER):
        (packages / name).symlink_to(_installed(name))
    return environment


def pack(environment: Path, archive: Path) -> None:
    """Write the archive of an environment."""
    with tarfile.open(archive, "w:gz", compresslevel=0) as tar:
        for name in ("pyvenv.cfg", "bin"):
            tar.add(environment / name, name)
        for name in _OF_SPARK:
            tar.add(environment / _PACKAGES / name, f"{_PACKAGES}/{name}")
        for name in _PACKED:
            tar.add((environment / _PACKAGES / name).resolve(), f"{_PACKAGES}/{name}", filter=_needed)


_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if any(Path(member.name).name.startswith(name) for name in _LEFT_OUT) else member


def _installed(name: str) -> Path:
    own = {"pyspark_dledger": ROOT, "sitecustomize.py": ROOT / "tests" / "support" / "spark_python"}
    return own.get(name, Path(pa.__file__).parent.parent) / name
