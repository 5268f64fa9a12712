"""Finds transfers of a connection that have stopped: responses that nobody reads, and frames that do not end."""

from __future__ import annotations

# A transfer has stopped if fewer bytes than these passed in its timeout.
_MIN_PROGRESS = 64 * 1024


class TransferProgress:
    """Bytes that passed on one connection, and when each direction last made progress. Times are in seconds."""

    def __init__(self) -> None:
        self.sent = self.received = 0
        self._sent_mark = self._received_mark = 0
        self._taken_at = self._received_at = 0.0

    def begin(self, now: float) -> None:
        self._taken_at = self._received_at = now

    def unread(self, unsent: int, now: float, timeout: float) -> str | None:
        """Why the other side does not read: `unsent` bytes were written and not taken."""
        taken = self.sent - unsent
        if not unsent or taken - self._sent_mark >= _MIN_PROGRESS:
            self._sent_mark, self._taken_at = taken, now
        elif now - self._taken_at > timeout:
            return f"expected responses to be read, found {unsent} bytes unread for more than {timeout:g} s"
        return None

    def incomplete(self, is_incomplete: bool, active_at: float, now: float, timeout: float) -> str | None:
        """Why the rest of a frame does not come; `active_at` is the time of the last bytes."""
        if not is_incomplete:
            self._received_mark, self._received_at = self.received, now
        elif self.received - self._received_mark >= _MIN_PROGRESS:
            self._received_mark, self._received_at = self.received, active_at
        elif now - self._received_at > timeout:
            return f"expected the rest of a frame, found fewer than {_MIN_PROGRESS} bytes in {timeout:g} s"
        return None
