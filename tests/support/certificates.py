"""Certificates for tests of TLS, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyspark_dledger.raft.tls import Tls

_KEY = ("-newkey", "rsa:2048", "-nodes")


def make_tls(folder: Path) -> Tls:
    """A certificate for loopback, of an authority of its own. Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates")
    _openssl(folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    return _signed(folder, "node", "n", "subjectAltName=IP:127.0.0.1,DNS:localhost")


def make_client_tls(folder: Path) -> Tls:
    """A certificate for clients only, of the authority that `make_tls` made in that folder."""
    return _signed(folder, "client", "client", "extendedKeyUsage=clientAuth")


def _signed(folder: Path, name: str, subject: str, extension: str) -> Tls:
    (folder / f"{name}.extensions").write_text(f"{extension}\n")
    _openssl(folder, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={subject}")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.extensions")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return Tls(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
