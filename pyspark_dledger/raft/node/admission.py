"""Whether a connection is accepted after its first request, and which members it may act as."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_dledger.raft.hello import MemberHello, read_hello
from pyspark_dledger.raft.node.refused import ConnectionRefusal
from pyspark_dledger.raft.node.roles import Credentials
from pyspark_dledger.raft.secret import Secrets
from pyspark_dledger.raft.wire import ReceivedRequest, WireError


class Admission:
    """Judges one connection. `shown` is what the other side has shown; `refusal` is that of `Roles`."""

    def __init__(
        self,
        secrets: Secrets,
        own_hello: Callable[[], MemberHello] | None,
        refusal: Callable[[Credentials, str], str | None],
        on_hello: Callable[[MemberHello], None],
    ) -> None:
        self.shown = Credentials(None)
        self.lacks_secret = secrets.client is not None
        self._secrets = secrets
        self._own_hello = own_hello
        self._refusal = refusal
        # Called with the hello of a connection that may act as that member.
        self._on_hello = on_hello
        self.refused_for: ConnectionRefusal = "secret"
        # The hello for a sender that is not in the list of members.
        self.told: str | None = None
        self._acts_as: set[str] = set()

    def first_refusal(self, received: ReceivedRequest) -> str | None:
        """Why the connection is closed after its first request: a secret is missing, or the hello is wrong."""
        self.shown = self.shown._replace(has_secret=self._secrets.is_member(received.secret))
        reason = self._secrets.refusal(received.secret)
        if reason is None:
            self.refused_for = "hello"
            reason = self._hello_refusal(received.member)
        self.lacks_secret = self.lacks_secret and reason is not None
        return reason

    def _hello_refusal(self, text: str | None) -> str | None:
        """Why the sender cannot be a member of this group; None if it can, or does not say that it is one."""
        if text is None or self._own_hello is None:
            return None
        try:
            hello = read_hello(text)
        except WireError as error:
            return str(error)
        own = self._own_hello()
        if (reason := own.mismatch(hello)) is not None:
            return reason
        reason = self._refusal(self.shown, hello.id)
        if reason is not None:
            self.told = own.text()
        else:
            self._on_hello(hello)
        return reason

    def forget(self) -> None:
        """Other members: judge again."""
        self._acts_as.clear()

    def member_refusal(self, member_id: str) -> str | None:
        """Why the connection may not act as that member; None if it may."""
        if member_id in self._acts_as:
            return None
        reason = self._refusal(self.shown, member_id)
        if reason is None:
            self._acts_as.add(member_id)
        return reason
