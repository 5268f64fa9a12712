"""The witness of a store's segments: index files, ConsumeQueues and IndexFiles, read when damage is found."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from pyspark_dledger.common.uris import is_remote
from pyspark_dledger.format.spec import Evidence

if TYPE_CHECKING:
    from pyspark_dledger.format.spec import KnownEntries, Segment
    from pyspark_dledger.log.io.store_paths import StorePaths
    from pyspark_dledger.log.witness.known_entries import Answer

_MAX_KEPT_ENTRIES = 2**21
"""Known entries, of 17 bytes each, in all answers that a process keeps."""
_MIN_ANSWER = 64
"""An answer counts at least as so many entries."""


@dataclass(frozen=True)
class StoreWitness:
    """A `spec.Witness`: where the files are that know entries of a store.

    ``node_dir`` is a node's folder with its index and checkpoint, ``root`` the folder with consumequeue and index.
    ``start`` is the position of an entry of the log; what is before it is not looked up. Answers of one ``moment`` are
    kept.
    """

    node_dir: str | None
    root: str | None
    start: int = 0
    moment: str = field(default="", compare=False, repr=False)

    def known_entries(self, segment: Segment) -> KnownEntries:
        """See `spec.Witness`. A file that cannot be read is no witness; a remote one raises StoreError."""
        return self._answer(segment).known

    def evidence(self, segment: Segment) -> Evidence:
        """What the index proves about the end of the log in a DLedger segment."""
        return self._answer(segment).evidence

    def since(self, pos: int) -> StoreWitness:
        """The witness of what begins at `pos`, where an entry of the log is, or later."""
        return replace(self, start=pos)

    def _answer(self, segment: Segment) -> Answer:
        start = max(self.start, segment.base)
        question = (self, start, self.moment, segment.path, segment.end, segment.check_pos, _written(segment.path))
        answer = _ANSWERS.get(question) if self.moment else None
        if answer is None:
            from pyspark_dledger.log.witness.known_entries import look_up  # imports numpy, slow to load

            answer = look_up(segment, start, self.node_dir, self.root)
            if self.moment:
                _ANSWERS.put(question, answer)
        return answer


class _Answers:
    """The last answers of this process, up to `max_entries` known entries in all."""

    def __init__(self, max_entries: int) -> None:
        self._left = max_entries
        self._kept: OrderedDict[tuple[object, ...], Answer] = OrderedDict()
        self._lock = Lock()

    def get(self, question: tuple[object, ...]) -> Answer | None:
        with self._lock:
            if question in self._kept:
                self._kept.move_to_end(question)
            return self._kept.get(question)

    def put(self, question: tuple[object, ...], answer: Answer) -> None:
        with self._lock:
            if question not in self._kept:
                self._kept[question] = answer
                self._left -= _cost(answer)
            while self._left < 0:
                self._left += _cost(self._kept.popitem(last=False)[1])


_ANSWERS = _Answers(_MAX_KEPT_ENTRIES)


def _cost(answer: Answer) -> int:
    return max(len(answer.known.pos), _MIN_ANSWER)


def _written(path: str) -> tuple[int, int] | None:
    """Size and modification time of a local file."""
    if is_remote(path):
        return None
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def witness_of(paths: StorePaths) -> StoreWitness | None:
    """The witness of the store at `paths` at this moment, or None if it has only log files. Nothing is read."""
    if paths.node_dir is None and paths.root is None:
        return None
    node_dir, root = (None if folder is None else str(folder) for folder in (paths.node_dir, paths.root))
    return StoreWitness(node_dir, root, moment=uuid.uuid4().hex)
