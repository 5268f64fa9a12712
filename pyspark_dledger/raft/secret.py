"""The shared secret that a node can require from every connection."""

from __future__ import annotations

import hmac

from pyspark_dledger.errors import OptionError

_MAX_LENGTH = 1000


def check_secret(secret: str | None) -> None:
    """Raises OptionError for an invalid secret; the error does not show it."""
    if secret is None:
        return
    if not isinstance(secret, str):
        raise OptionError(f"secret: expected a text, found {type(secret).__name__}")
    if not (secret.isascii() and secret.isprintable() and 0 < len(secret) <= _MAX_LENGTH):
        raise OptionError(
            f"secret: expected 1 to {_MAX_LENGTH} printable ASCII characters, found another text of length "
            f"{len(secret)}: make one with secrets.token_urlsafe"
        )


def is_same(given: str | None, secret: str) -> bool:
    """Whether `given` is the secret, compared in constant time."""
    return given is not None and hmac.compare_digest(given.encode(errors="replace"), secret.encode())
