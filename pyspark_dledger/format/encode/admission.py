"""The result of a put's admission: the Raft member and the application share these values, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

from pyspark_dledger.format.encode.encoded import Bodies


class Admitted(NamedTuple):
    """A put that can be appended. The application changes nothing before its ``appended`` is called.

    ``bodies`` become entries; None if the log has all of them already. ``min_commit_index`` is the highest index of
    those in the log, or -1: the put is acknowledged when that entry is committed too. Only the application uses
    ``details``.
    """

    bodies: Bodies | None
    min_commit_index: int
    details: object


class Rejected(NamedTuple):
    """A put that is not appended: a `ResponseCode`, and the reason for the log."""

    code: int
    reason: str


class DiskNeededError(Exception):
    """A request that must not wait for the disk would have to. Nothing was appended."""
