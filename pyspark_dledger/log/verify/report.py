"""Collects the findings about a store, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_dledger.log.io.rocks_database import UnreadDatabaseError
from pyspark_dledger.log.tables.table import relative_file
from pyspark_dledger.log.verify.findings import CODES, Finding, UnlistedFindings

if TYPE_CHECKING:
    from pyspark_dledger.errors import UnreadableError
    from pyspark_dledger.log.io.store_paths import StorePaths

# Findings listed for each code and file; a further one stands for the others.
MAX_LISTED = 100
_MORE = f"at most {MAX_LISTED} listed"


class Report:
    """Collects findings: at most `MAX_LISTED` for each code and file; the others are counted."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._listed: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unreadable: set[tuple[str, int | None]] = set()

    def add(
        self,
        code: str,
        path: Path | str,
        text: str = "",
        *,
        offset: int | None = None,
        index: int | None = None,
        pos: int | None = None,
        size: int | None = None,
    ) -> None:
        """Add a finding; `text` is "expected X, found Y", or only one of the halves."""
        file = self._shown(path)
        self._counts[code, file] += 1
        if self._counts[code, file] <= MAX_LISTED:
            expected, found = split_text(text)
            known = self._finding(code, file, expected, found)
            self._listed.append(replace(known, offset=offset, index=index, pos=pos, size=size))

    def add_unreadable(self, error: UnreadableError) -> None:
        """Add a finding for what cannot be read; several checks may read it.

        None for a database that is remote, or that needs a library: `not_checked` names it.
        """
        if isinstance(error, UnreadDatabaseError):
            return
        key = (self._shown(error.path), error.offset)
        if key not in self._unreadable:
            self._unreadable.add(key)
            self.add("unreadableFile", error.path, error.reason, offset=error.offset)

    def add_uncounted(self, code: str, path: Path | str, count: int) -> None:
        """Count further findings of a code and file that are not listed."""
        if count > 0:
            file = self._shown(path)
            self._counts[code, file] = max(self._counts[code, file], MAX_LISTED) + count

    def only_counts(self, code: str, path: Path | str) -> bool:
        """Count a further finding, and return True, if those of a code and file are no longer listed."""
        is_full = self._counts[code, self._shown(path)] >= MAX_LISTED
        self._counts[code, self._shown(path)] += is_full
        return is_full

    def findings(self) -> list[Finding]:
        """The findings by file and offset, then the counts of those that are not listed."""
        more = [
            UnlistedFindings(
                **vars(self._finding(code, file, _MORE, f"{count - MAX_LISTED} more")), unlisted=count - MAX_LISTED
            )
            for (code, file), count in self._counts.items()
            if count > MAX_LISTED
        ]
        return sorted(self._listed, key=_file_and_offset) + sorted(more, key=_file_and_offset)

    def _finding(self, code: str, file: str, expected: str | None, found: str | None) -> Finding:
        known = CODES[code]
        return Finding(
            known.severity, code, self._paths.node, file, None, None, None, None, expected, found, known.java_does
        )

    def _shown(self, path: Path | str) -> str:
        return relative_file(self._paths, str(path))


def split_text(text: str) -> tuple[str | None, str | None]:
    """The two halves of "expected X, found Y"; another text counts as found."""
    expected, separator, found = text.removeprefix("expected ").partition(", found ")
    if separator and text.startswith("expected "):
        return expected, found
    return None, text.removeprefix("found ") or None


def _file_and_offset(finding: Finding) -> tuple[str, int]:
    return finding.file, -1 if finding.offset is None else finding.offset
