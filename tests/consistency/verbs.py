"""Runs verbs in this process and reads what they print as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark_dledger.cli.main import main

Row = dict[str, Any]
AFTER_ALL = 2**62
"""Stands for positions after the end of every log that nothing names."""


@dataclass(frozen=True)
class Ran:
    """What a verb printed, and its exit code."""

    verb: str
    code: int
    out: str = field(repr=False)
    err: str = field(repr=False)

    @cached_property
    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    @property
    def notes(self) -> list[str]:
        return self.err.splitlines()


class Crash(AssertionError):
    """A verb raised something that is no error for users."""


def run(folder: Path, verb: str, *arguments: object, as_json: bool = True) -> Ran:
    """Run a verb as in that folder, by default with --json."""
    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([verb, *map(str, arguments), *(["--json"] if as_json else [])])
    except SystemExit as error:
        code = int(error.code or 0)
    except Exception as error:
        raise Crash(f"{verb} {' '.join(map(str, arguments))}: {type(error).__name__}: {error}") from error
    finally:
        os.chdir(before)
    return Ran(verb, code, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Verdict:
    """The verdict of `diff` on one kind of log, and its rows."""

    ran: Ran
    group: Row
    rows: list[Row]

    @property
    def members(self) -> list[Row]:
        return self.group["members"]


def diff(folder: Path, stores: Sequence[str], kind: str) -> Verdict | None:
    """The verdict on one kind of log; None if there is none."""
    ran = run(folder, "diff", *stores)
    groups = [row for row in ran.rows if row.get("verdict") == "group" and row["log"] == kind]
    rows = [row for row in ran.rows if row.get("verdict") != "group"]
    return Verdict(ran, groups[0], rows) if groups else None


def listed_numbers(text: str) -> list[tuple[int, int]]:
    """Ranges as in ``cannot tell for 6 entries, 3, 22, 87 to 88: ...``."""
    found = re.search(r"cannot tell for (?:[\d,]+ (?:entry|entries|bytes?), )?(?:positions )?([\d, to]+)", text)
    return [(int(one), int(two or one)) for one, two in re.findall(r"(\d+)(?: to (\d+))?", found[1])] if found else []


def listed_ends(text: str) -> list[tuple[int, int]]:
    """Ranges after the end of each log, as in ``the entries 24 to 27: committed, and in no source``."""
    entries = re.findall(r"the entries (\d+) to (\d+): committed", text)
    positions = re.findall(r"positions (\d+) to (\d+): a source shows that messages were there", text)
    unknown = [(AFTER_ALL, AFTER_ALL)] if "which no replica has: " in text else []
    return [*((int(first), int(last)) for first, last in [*entries, *positions]), *unknown]


def own_name(name: str, stores: Sequence[str]) -> str:
    """The store that a verb means by a name: a path, the last part of one, or a node id."""
    last = Path(name).name
    return next((each for each in (last, f"dledger-{last}") if each in stores), last.removeprefix("dledger-"))
