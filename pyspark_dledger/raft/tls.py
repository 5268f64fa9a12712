"""TLS between members and clients: both sides show a certificate of one authority, and nobody else gets in."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.errors import OptionError


@dataclass(frozen=True)
class Tls:
    """PEM files: a certificate with its chain, its key, and the authority that every other side's certificate is of.

    Whoever holds a certificate of that authority may act as a client and as a member. A node's certificate has to name
    the host or address by which the others know it.
    """

    cert: Path
    key: Path
    ca: Path

    def server_context(self) -> ssl.SSLContext:
        """For a side that listens: a client without a certificate is refused. Raises OptionError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """For a side that connects: the other side's certificate and host are checked. Raises OptionError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        for name in ("cert", "key", "ca"):
            if not Path(getattr(self, name)).is_file():
                raise OptionError(f"tls {name}: expected a PEM file, found none at {getattr(self, name)}")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.cert, self.key)
            context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise OptionError(
                f"tls: expected a certificate, its key and an authority as PEM in {self.cert}, {self.key} and "
                f"{self.ca}, found what OpenSSL does not take: {error}"
            ) from None
        return context


def tls_of(cert: str | None, key: str | None, ca: str | None) -> Tls | None:
    """TLS with the files that a user's options tlsCert, tlsKey and tlsCa name; None without them.

    Raises OptionError where some of them are missing. The files are looked at where a connection is made.
    """
    given = {"tlsCert": cert, "tlsKey": key, "tlsCa": ca}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if cert is None or key is None or ca is None:
        raise OptionError(f"expected options tlsCert, tlsKey and tlsCa together, found no {' and no '.join(missing)}")
    return Tls(Path(cert), Path(key), Path(ca))
