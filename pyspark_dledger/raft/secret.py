"""The shared secrets that a node can require: of every connection, and of members."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_dledger.errors import OptionError

_MAX_LENGTH = 1000
_GIVE = "give it with --secret-file, of members with --member-secret-file, in Python with connect(secret=...)"


@dataclass(frozen=True)
class Secrets:
    """What a connection must send: ``client`` to be accepted, ``member`` to act as a member. None: not required."""

    client: str | None = field(default=None, repr=False)
    member: str | None = field(default=None, repr=False)

    @property
    def of_links(self) -> str | None:
        """What this node sends to other members."""
        return self.member or self.client

    def is_member(self, given: str | None) -> bool:
        return self.member is not None and is_same(given, self.member)

    def rejection(self, given: str | None) -> str | None:
        """Why a connection with that secret is rejected; None if it is not."""
        if self.is_member(given) or (self.client is not None and is_same(given, self.client)):
            return None
        if self.client is None and (given is None or self.member is None):
            return None
        found = "none" if given is None else "another"
        return f"expected the secret of this node in the first request, found {found}: {_GIVE}"


NO_SECRETS = Secrets()


def check_secret(secret: str | None, name: str = "secret") -> None:
    """Raises OptionError for an invalid secret; the error does not show it."""
    if secret is None:
        return
    if not isinstance(secret, str):
        raise OptionError(f"{name}: expected a text, found {type(secret).__name__}")
    if not (secret.isascii() and secret.isprintable() and 0 < len(secret) <= _MAX_LENGTH):
        raise OptionError(
            f"{name}: expected 1 to {_MAX_LENGTH} printable ASCII characters, found another text of length "
            f"{len(secret)}: make one with secrets.token_urlsafe"
        )


def read_secret(file: Path, name: str) -> str:
    """The secret in the first line of a file. Raises OptionError, which names the option `name`."""
    try:
        with file.open("rb") as opened:
            lines = opened.read(4 * _MAX_LENGTH).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise OptionError(f"{name}: {file} cannot be read: {error.strerror}") from None
    if len(lines) != 1:
        raise OptionError(f"{name}: expected one line in {file}, found {len(lines)}")
    check_secret(lines[0], name)
    return lines[0]


def is_same(given: str | None, secret: str) -> bool:
    """Whether `given` is the secret, compared in constant time."""
    return given is not None and hmac.compare_digest(given.encode(errors="replace"), secret.encode())
