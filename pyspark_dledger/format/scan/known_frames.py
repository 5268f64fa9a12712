"""The entries of a segment that its witness knows, by position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyspark_dledger.format.scan.frames import Frame, Frames


class KnownFrame(NamedTuple):
    """An entry of the log in ``[pos, end)``; without ``frame`` its header is damaged."""

    pos: int
    end: int
    frame: Frame | None


class KnownFrames:
    """Looks up known entries. The first lookup asks the witness, and later ones of the same file do not."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames

    def at(self, pos: int) -> KnownFrame | None:
        """The known entry with the byte at ``pos``."""
        known = self._frames.data.known_entries
        number = int(np.searchsorted(known.pos, pos, "right")) - 1
        return self._get(number) if number >= 0 and pos < known.end[number] else None

    def after(self, pos: int) -> KnownFrame | None:
        """The first known entry that begins after ``pos``, in the bytes that the file has."""
        known = self._frames.data.known_entries
        stop = int(np.searchsorted(known.pos, self._frames.data.end))
        for number in range(int(np.searchsorted(known.pos, pos, "right")), stop):
            if found := self._get(number):
                return found
        return None

    def accepts(self, last: Frame, frame: Frame) -> bool:
        """Whether a frame that does not follow ``last`` is of the log: known, or not contradicted by known ones."""
        known = self.at(frame.pos)
        if known is None:
            following = self.after(frame.pos)
            return following is None or following.pos >= frame.end
        if (known.pos, known.end) != (frame.pos, frame.end):
            return False
        # Only the index is damaged. A lower term is that of an entry which an earlier log left at this position.
        is_later = not last.header or not frame.header or frame.header.term >= last.header.term
        return known.frame is not None or is_later

    def _get(self, number: int) -> KnownFrame | None:
        """A known entry; None if it should be whole and is not, so that its end is doubtful."""
        known = self._frames.data.known_entries
        pos, end = int(known.pos[number]), int(known.end[number])
        if not known.is_whole[number]:
            return KnownFrame(pos, end, None)
        frame = self._frames.at(pos)
        return KnownFrame(pos, end, frame) if frame and frame.end == end else None
