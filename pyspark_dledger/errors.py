"""Errors that users see: one sentence each, with what was expected, what was found, and what to do."""


class DLedgerError(Exception):
    """Base of every error that this package raises on purpose."""


class OptionError(DLedgerError, ValueError):
    """An option, a column or a schema that cannot be honoured."""


class StoreError(DLedgerError):
    """A path that holds no readable store, or a store that cannot answer what was asked."""


class UnreadableError(StoreError):
    """A file or folder that exists but cannot be read.

    ``path`` names it and ``reason`` is the system's. ``offset`` is the byte where a read failed, None where the file
    cannot be opened.
    """

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{path}: cannot be read{where} ({reason}): check its type, its permissions and its disk")
        self.path = path
        self.reason = reason
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.reason, self.offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnreadableError) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())


class DataLossError(StoreError):
    """A stream's log that no longer holds what was read, or what would be read next; see failOnDataLoss."""


class MalformedError(DLedgerError):
    """A row with a problem, read with ``mode=FAILFAST``."""


class StoreInUseError(StoreError):
    """A store that another process writes."""


class DiskFullError(StoreError):
    """A store without room for an append. Nothing was appended; appends succeed again when there is room."""


class InconsistentError(StoreError):
    """Entries that do not continue the end of a log."""


class IndexRangeError(StoreError, LookupError):
    """An index that a log does not hold: expired, not yet written, or not yet committed."""


class _ResponseError(DLedgerError):
    """``code`` is a `ResponseCode` of DLedger, ``leader_id`` the leader that the member named."""

    def __init__(self, text: str, code: int, leader_id: str | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.leader_id = leader_id

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code, self.leader_id)


class GroupError(_ResponseError):
    """A group that refused a request or could not be reached: nothing was changed, and it may be tried again."""


class ClusterError(DLedgerError):
    """A RocketMQ cluster that could not be reached, or that rejected a request."""


class UnknownOutcomeError(_ResponseError):
    """An append or a transfer that was sent and not answered: it may be done, now or later, or never.

    No GroupError, so that who tries those again does not append twice.
    """
