"""The secret that a node may want of everybody who connects."""

from __future__ import annotations

import hmac

from pyspark_dledger.errors import OptionError

_LONGEST = 1000


def check_secret(secret: str | None) -> None:
    """Raises OptionError for what cannot be sent as a secret; the error does not show it."""
    if secret is None:
        return
    if not isinstance(secret, str):
        raise OptionError(f"secret: expected a text, found {type(secret).__name__}")
    if not (secret.isascii() and secret.isprintable() and 0 < len(secret) <= _LONGEST):
        raise OptionError(
            f"secret: expected 1 to {_LONGEST} printable ASCII characters, found another text of {len(secret)}: make "
            "one with secrets.token_urlsafe"
        )


def is_same(given: str | None, secret: str) -> bool:
    """Whether that is the secret, in a time that does not tell how much of it is right."""
    return given is not None and hmac.compare_digest(given.encode(errors="replace"), secret.encode())
