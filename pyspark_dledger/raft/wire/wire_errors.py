"""Errors of encoding and decoding messages."""


class WireError(ValueError):
    """Unreadable bytes from a peer. The bytes after them cannot be trusted, so the connection is closed."""


class EncodeError(ValueError):
    """A message that the dialect cannot carry, or that is too large for a frame."""
