"""How a process reaches a cluster: its name servers, credentials and TLS."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_dledger.format.encode.encoded import Buffer
from pyspark_dledger.raft.peers import Address
from pyspark_dledger.raft.tls import Tls


@dataclass(frozen=True)
class Credentials:
    """Of an account of the cluster's ACL. `token` is that of a temporary account."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def signed(self, fields: Mapping[str, str], body: Buffer) -> dict[str, str]:
        """The fields of a request with its signature: HMAC-SHA1 over all values in the order of their names."""
        found = {**fields, "AccessKey": self.access_key}
        if self.token is not None:
            found["SecurityToken"] = self.token
        content = "".join(found[name] for name in sorted(found)).encode() + body
        digest = hmac.new(self.secret_key.encode(), content, hashlib.sha1).digest()
        return {**found, "Signature": base64.b64encode(digest).decode()}


@dataclass(frozen=True)
class ClusterAddress:
    """It is pickled: each task connects itself. `tls` names files on the task's machine."""

    name_servers: tuple[Address, ...]
    credentials: Credentials | None = field(default=None, repr=False)
    tls: Tls | None = None

    def __str__(self) -> str:
        return ";".join(map(str, self.name_servers))
