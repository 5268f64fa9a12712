"""Running the command line, in this process or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class Ran:
    """The output of a command, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def process(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start a command as a process of its own."""
    line = [sys.executable, "-m", "pyspark_dledger", *map(str, arguments)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
