"""A run's claim of its job: while it lasts, the leader takes new messages of the job from this run only.

A claim ends with the leadership, or when another run claims the job. Puts name the term of the claim, so that no other
leader takes them. A new leader's claim says what other runs have written until then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark_dledger.common.response_codes import ResponseCode
from pyspark_dledger.errors import DLedgerError, GroupError, UnknownOutcomeError
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.encode.identities import CLAIM
from pyspark_dledger.raft.client import Client
from pyspark_dledger.raft.client.results import PutResult

T = TypeVar("T")

# Then the leader changes too often.
_MAX_CLAIMS = 10


class ClaimEndedError(DLedgerError):
    """The leader has changed since the claim. Some messages of the put may be in the log."""


class JobClaim:
    """A claim of the job of ``producer`` by ``run``. ``title`` is for messages."""

    def __init__(self, client: Client, title: str, producer: bytes, run: int) -> None:
        self._client, self._title = client, title
        self._producer, self._run = producer, run
        self.renew()

    def renew(self) -> None:
        """Claim the job at the present leader."""
        state = self._client.producer(self._producer, self._run, CLAIM)
        self.is_repeated = state.other_runs > 0
        self._term = state.term

    def put(self, bodies: Bodies, queue_nums: int) -> PutResult:
        """Put messages of the job. Raises ClaimEndedError, and what `Client.put_messages` raises."""
        try:
            return self._client.put_messages(bodies, queue_nums, term=self._term)
        except (GroupError, UnknownOutcomeError) as error:
            if error.code != ResponseCode.EXPIRED_TERM:
                raise
            raise ClaimEndedError(str(error)) from None

    def repeated(self, work: Callable[[], T], *, is_first_run: bool) -> T:
        """Do work that puts messages, again with a new claim after each change of the leader.

        Raises DLedgerError if this is the first run and another one wrote before the claim.
        """
        for _ in range(_MAX_CLAIMS):
            if is_first_run and self.is_repeated:
                raise DLedgerError(
                    f"another run wrote messages of {self._title} at the same time: end it, and repeat this one"
                )
            try:
                return work()
            except ClaimEndedError as error:
                ended = error
                self.renew()
        raise ended
