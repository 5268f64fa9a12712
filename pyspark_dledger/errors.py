"""Errors that users see: one sentence each, with what was expected, what was found, and what to do."""


class DLedgerError(Exception):
    """Base of every error that this package raises on purpose."""


class OptionError(DLedgerError, ValueError):
    """An option, a column or a schema that cannot be honoured."""


class StoreError(DLedgerError):
    """A path that holds no readable store, or a store that cannot answer what was asked."""


class MalformedError(DLedgerError):
    """A row with a problem, read with ``mode=FAILFAST``."""
