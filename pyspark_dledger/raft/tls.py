"""Mutual TLS between members and clients: both sides need a certificate of one certificate authority."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.common.log_records import record
from pyspark_dledger.errors import OptionError

# Returns the context for the next connection.
TlsContext = Callable[[], ssl.SSLContext]


@dataclass(frozen=True)
class Tls:
    """PEM files: a certificate with its chain, its key, and the CA that signed the certificates of all other sides.

    A client of RocketMQ may have no certificate.

    Every holder of a certificate of this CA can act as a client. A node's certificate must name the host or address
    that others use for it.
    """

    cert: Path | None
    key: Path | None
    ca: Path

    def server_context(self) -> ssl.SSLContext:
        """For a listening side: clients without a certificate are rejected. Raises OptionError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def client_context(self) -> ssl.SSLContext:
        """For a connecting side: the other side's certificate and host are checked. Raises OptionError."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def server_contexts(self) -> TlsContext:
        """`server_context` for each next connection: the files are loaded again when they have changed."""
        return _Reloaded(self, self.server_context)

    def client_contexts(self) -> TlsContext:
        """`client_context` for each next connection: the files are loaded again when they have changed."""
        return _Reloaded(self, self.client_context)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        for name in ("cert", "key", "ca"):
            file = getattr(self, name)
            if file is not None and not Path(file).is_file():
                raise OptionError(f"tls {name}: expected a PEM file, found none at {file}")
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
            context.load_verify_locations(self.ca)
        except (ssl.SSLError, OSError) as error:
            raise OptionError(
                f"tls: expected a certificate, its key and a CA as PEM in {self.cert}, {self.key} and {self.ca}, but "
                f"OpenSSL rejects them: {error}"
            ) from None
        return context


class _Reloaded:
    """A context that is made again after one of its files has changed. Files that OpenSSL rejects change nothing."""

    def __init__(self, tls: Tls, make: TlsContext) -> None:
        self._files = [file for file in (tls.cert, tls.key, tls.ca) if file is not None]
        self._make = make
        self._versions = self._found_versions()
        self._context = make()

    def __call__(self) -> ssl.SSLContext:
        versions = self._found_versions()
        if versions != self._versions:
            self._versions = versions
            try:
                self._context = self._make()
                record(logging.INFO, "certificates loaded", files=", ".join(map(str, self._files)))
            except OptionError as error:
                record(logging.ERROR, "certificates not loaded", reason=str(error))
        return self._context

    def _found_versions(self) -> list[tuple[int, ...]]:
        """What changes with a file's content; nothing for a missing file."""
        found: list[tuple[int, ...]] = []
        for file in self._files:
            try:
                status = Path(file).stat()
            except OSError:
                found.append(())
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found


def tls_of(cert: str | None, key: str | None, ca: str | None) -> Tls | None:
    """TLS with the files of the options tlsCert, tlsKey and tlsCa; None without them.

    Raises OptionError if one or two of them are missing.
    """
    given = {"tlsCert": cert, "tlsKey": key, "tlsCa": ca}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if cert is None or key is None or ca is None:
        raise OptionError(f"expected options tlsCert, tlsKey and tlsCa together, found no {' and no '.join(missing)}")
    return Tls(Path(cert), Path(key), Path(ca))
