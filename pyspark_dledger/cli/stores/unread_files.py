"""The files of a store that cannot be read, as findings of verbs that answer what they can without them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark_dledger.common.plurals import counted
from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.errors import StoreError, UnreadableError
from pyspark_dledger.log import Log
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.io.readable_files import unreadable_files, unreadable_segments

if TYPE_CHECKING:
    from pyspark_dledger.log.recovery.silent_damage import SilentDamage


class UnreadFiles:
    """What cannot be read of a store: segments and other files, those in folders `names` or with one as their name.

    Without `names`, all files.
    """

    def __init__(self, log: Log, names: tuple[str, ...] = ()) -> None:
        self._log = log
        self._names = frozenset(names)

    @cached_property
    def segments(self) -> dict[int, UnreadableError]:
        """The segments that cannot be read, by their base."""
        return {} if is_remote(self._log.path) else unreadable_segments(self._log.segments, self._log.path)

    @cached_property
    def errors(self) -> list[UnreadableError]:
        # In a remote store the read itself fails.
        others = () if is_remote(self._log.path) else unreadable_files(self._log.paths)
        return [*self.segments.values(), *(error for error in others if self._is_wanted(error))]

    def _is_wanted(self, error: UnreadableError) -> bool:
        root = self._log.paths.root or self._log.paths.node_dir
        path = path_of(error.path)
        parts = path.relative_to(root).parts if root is not None and path.is_relative_to(root) else path.parts
        return not self._names or not self._names.isdisjoint(parts)

    def add(self, error: UnreadableError) -> None:
        """Add what a read found."""
        if error.path not in {each.path for each in self.errors}:
            self.errors.append(error)

    def texts(self) -> list[str]:
        """Each file and the reason."""
        return [f"{error.path}: {error.reason}" for error in self.errors]

    def lines(self, question: str) -> Iterator[str]:
        """That nothing can tell the answer to `question`, and each file; nothing if all can be read."""
        if self.errors:
            yield f"{self._log.path}: cannot tell {question}: {counted(len(self.errors), 'file')} cannot be read"
            yield from (f"  {text}" for text in self.texts())

    def silent_damage(self) -> list[SilentDamage]:
        """The damaged entries of the segments that can be read; none if the log's end cannot be found."""
        from pyspark_dledger.log.recovery.silent_damage import silent_damage

        try:
            return list(silent_damage(self._log, self.segments))
        except StoreError:
            if self.errors:
                return []
            raise
