"""What can go wrong with bytes on the wire."""


class WireError(ValueError):
    """Bytes from a peer that cannot be read: nothing behind them on that connection can be trusted, so it is closed."""


class EncodeError(ValueError):
    """A message that cannot be sent in that dialect, or is too large for a frame."""
