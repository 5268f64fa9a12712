"""Mutual TLS between members and clients: both sides need a certificate of one certificate authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.errors import OptionError


@dataclass(frozen=True)
class Tls:
    """PEM files: a certificate with its chain, its key, and the CA that signed the certificates of all other sides.

    Every holder of a certificate of this CA can act as a client and as a member. A node's certificate must name the
    host or address that others use for it.
    """

    cert: Path
    key: Path
    ca: Path

    def server_context(self) -> ssl.SSLContext:
        """For a listening side: clients without a certificate are rejected. Raises OptionError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """For a connecting side: the other side's certificate and host are checked. Raises OptionError."""
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
                f"tls: expected a certificate, its key and a CA as PEM in {self.cert}, {self.key} and {self.ca}, but "
                f"OpenSSL rejects them: {error}"
            ) from None
        return context


def tls_of(cert: str | None, key: str | None, ca: str | None) -> Tls | None:
    """TLS with the files of the options tlsCert, tlsKey and tlsCa; None without them.

    Raises OptionError if one or two of them are missing. The files are read for each connection.
    """
    given = {"tlsCert": cert, "tlsKey": key, "tlsCa": ca}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if cert is None or key is None or ca is None:
        raise OptionError(f"expected options tlsCert, tlsKey and tlsCa together, found no {' and no '.join(missing)}")
    return Tls(Path(cert), Path(key), Path(ca))
