"""Connects ``append``, ``get``, ``metadata`` and ``transfer`` to a group."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from pyspark_dledger.cli.output.stream import note
from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.client import Client, connect
from pyspark_dledger.raft.secret import read_secret
from pyspark_dledger.raft.tls import Tls


def connected(args: argparse.Namespace) -> Client:
    """A client of the group that the arguments name."""
    files = (args.tls_cert, args.tls_key, args.tls_ca)
    if any(files) and not all(files):
        raise OptionError("expected --tls-cert, --tls-key and --tls-ca together, found one or two of them")
    tls = Tls(*map(Path, files)) if all(files) else None
    secret = read_secret(Path(args.secret_file), "secretFile") if args.secret_file else None
    limits = {"timeout_ms": args.timeout_ms, "max_retries": args.max_retries}
    return connect(args.group, args.peers, tls=tls, secret=secret, **limits)


def note_outcome(text: str) -> None:
    """Print an outcome to standard error. An error in printing changes nothing."""
    with suppress(OSError):
        note(text)
