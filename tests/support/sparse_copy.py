"""Copies of stores with their holes: an index file of a broker has 160 MiB of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from pyspark_dledger.log.io.files import data_extents


def copy_tree(source: str | Path, target: str | Path, **options: Any) -> Path:
    """Copy a folder with its holes and times; `options` are those of `shutil.copytree`."""
    return Path(shutil.copytree(source, target, copy_function=copy_file, **options))


def copy_file(source: str, target: str) -> None:
    """Copy a file with its holes and times."""
    with open(source, "rb") as one, open(target, "wb") as two:
        size = os.fstat(one.fileno()).st_size
        for start, end in data_extents(one.fileno(), 0, size):
            one.seek(start)
            two.seek(start)
            two.write(one.read(end - start))
        two.truncate(size)
    shutil.copystat(source, target)
