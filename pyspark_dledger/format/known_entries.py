"""Entries of a segment that are known from outside it, as from a store's index files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class KnownEntries(NamedTuple):
    """Entries (or old messages) of the log, by the evidence of a witness; stale entries are never among them.

    If the witness knows where the log ends, the last one is all bytes after that, and is not whole.

    Three arrays of one length, sorted by position: the bytes ``[pos, end)`` of each entry, disjoint, in positions of
    the log. ``is_whole`` says that the header at ``pos`` is exactly the one that the witness gives. Otherwise an entry
    stood there, but its header is damaged.
    """

    pos: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    is_whole: npt.NDArray[np.bool_]


def no_known_entries() -> KnownEntries:
    """What a witness knows that knows nothing."""
    import numpy as np  # most readers do not need it

    return KnownEntries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def inside(known: KnownEntries, start: int, end: int) -> KnownEntries:
    """The known entries in ``[start, end)``, as contiguous arrays. Raises ValueError if they are not sorted."""
    import numpy as np

    pos, ends = np.ascontiguousarray(known.pos, np.int64), np.ascontiguousarray(known.end, np.int64)
    is_whole = np.ascontiguousarray(known.is_whole, np.bool_)
    if not len(pos) == len(ends) == len(is_whole):
        raise ValueError(f"expected arrays of one length, found {len(pos)}, {len(ends)} and {len(is_whole)}")
    if (pos >= ends).any() or (pos[1:] < ends[:-1]).any():
        raise ValueError("expected known entries sorted by position and disjoint")
    first, last = int(np.searchsorted(pos, start)), int(np.searchsorted(ends, end, "right"))
    return KnownEntries(pos[first:last], ends[first:last], is_whole[first:last])
