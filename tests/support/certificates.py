"""Certificates for tests of TLS, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyspark_dledger.raft.tls import Tls


def make_tls(folder: Path) -> Tls:
    """A certificate for loopback, of an authority of its own. Skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command makes the certificates")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    key = ("-newkey", "rsa:2048", "-nodes")
    _openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    _openssl(folder, "req", *key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    _openssl(folder, "x509", "-req", "-in", "node.csr", "-out", "node.pem", *signed)
    return Tls(folder / "node.pem", folder / "node.key", folder / "ca.pem")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
