"""What becomes of a put before it is entries: the words between a member of a group and the application that it serves.

They stand here because the application (`rocketmq`) and the member (`raft`) know nothing of each other.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Bodies


class Admitted(NamedTuple):
    """A put that may be appended. Nothing has changed before `Application.appended` is called.

    ``bodies`` is what becomes entries, None where every body is there already. ``least_commit`` is the highest index of
    an entry that is there already: the put is acknowledged when that is committed, too; -1 without one.
    ``details`` is the application's own.
    """

    bodies: Bodies | None
    least_commit: int
    details: object


class Refused(NamedTuple):
    """A put that is not appended: a `ResponseCode`, and what is wrong, for the log."""

    code: int
    reason: str
