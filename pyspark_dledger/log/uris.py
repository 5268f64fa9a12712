"""URIs of stores on remote file systems: which there are, and how they are shown without what is secret in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pyspark_dledger.errors import OptionError

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs")
"""The schemes of `pyarrow.fs.FileSystem.from_uri` that can be read."""

GS_RETRY_SECONDS = 60

# What Hadoop and others call them.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)/*")
# Query parameters that name a place, not a person.
_OPEN_PARAMETERS = frozenset({"endpoint_override", "region", "scheme"})
_MASK = "***"


class Stamp(NamedTuple):
    """What a remote file was when it was listed: its size in bytes, and when it was written, in ns since 1970."""

    size: int
    written_ns: int


@final
class RemoteUri(str):
    """The URI of a remote file or folder, as text without secrets and without query parameters.

    ``store`` is the URI that was given, with all that it takes to reach the file system, and secret if that has secrets
    in it. ``place`` is the file's own path below it, names between slashes, empty for what was given itself; ``..``
    goes up. ``stamp`` is known of a file that was listed.
    """

    store: str
    place: str
    stamp: Stamp | None

    def __new__(cls, store: str, place: str = "", stamp: Stamp | None = None) -> RemoteUri:
        made = super().__new__(cls, _shown(store, place))
        made.store, made.place, made.stamp = store, place, stamp
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteUri, (self.store, self.place, self.stamp)

    def __str__(self) -> str:
        return self

    def __eq__(self, other: object) -> bool:
        # What is shown of two URIs can be the same although they lie on different servers.
        same_store = not isinstance(other, RemoteUri) or (self.store, self.place) == (other.store, other.place)
        return same_store and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def is_remote(path: str) -> bool:
    """Whether a text is the URI of a remote file system."""
    if isinstance(path, RemoteUri):
        return True
    scheme = _SCHEME.match(path)
    return scheme is not None and _known(scheme[1]) in SCHEMES


def as_uri(path: str) -> str:
    """`path`, as a RemoteUri where it is one."""
    return RemoteUri(path) if is_remote(path) and not isinstance(path, RemoteUri) else path


def store_path(path: str) -> str:
    """`path` as a store can be read from it: a local one without ``file:``, or a RemoteUri.

    Raises OptionError for another scheme.
    """
    if is_remote(path):
        return as_uri(path)
    return local_path(path, f"a local path or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")


def local_path(path: str, expected: str = "a local path") -> str:
    """Return `path` without a ``file:`` in front, as Spark's users write it. Raises OptionError for another scheme."""
    scheme = _SCHEME.match(path)
    if scheme is None and not isinstance(path, RemoteUri):
        return path
    name = scheme[1].lower() if scheme is not None else "a URI"
    if name != "file":
        shown = path if isinstance(path, RemoteUri) else _shown(path, "") if "@" in path or "?" in path else path
        raise OptionError(f"path {shown}: expected {expected}, found {name}: copy the store to a local folder")
    return without_file_scheme(path)


def check_local(paths: Iterable[str], why: str) -> None:
    """Raises OptionError for a path of a remote file system; `why`, such as "to follow", a local one is needed."""
    for path in paths:
        if is_remote(path):
            local_path(as_uri(path), f"a local path {why}")


def without_file_scheme(path: str) -> str:
    """A local path, without a ``file:`` in front."""
    scheme = _SCHEME.match(path)
    return f"/{path[scheme.end() :]}" if scheme is not None and scheme[1].lower() == "file" else path


def parsable(store: str) -> str:
    """A given URI as pyarrow takes it: its own name of the scheme, and the path percent-encoded where it has to be.

    One of Google's gets a limit to its retries, which otherwise go on for a quarter of an hour.
    """
    head, question, query = store.partition("?")
    scheme = _SCHEME.match(head)
    assert scheme is not None
    rest = quote(head[len(scheme[1]) :], safe="/:@%!$&'()*+,;=~")
    if _known(scheme[1]) == "gs" and "retry_limit_seconds=" not in query:
        question, query = "?", f"{query}{'&' * bool(query)}retry_limit_seconds={GS_RETRY_SECONDS}"
    return f"{_known(scheme[1])}{rest}{question}{query}"


def secrets_of(store: str) -> list[str]:
    """What is secret in a given URI, both as it stands there and decoded: user, password and most of its parameters."""
    user = store.partition("://")[2].partition("/")[0].rpartition("@")[0]
    found = [part for part in user.split(":") if part]
    found += [value for name, value in parse_qsl(store.partition("?")[2]) if name not in _OPEN_PARAMETERS]
    return [text for secret in found for text in {secret, unquote(secret), quote(secret, safe="")}]


def masked(text: str, store: str) -> str:
    """A message without the secrets of a URI in it."""
    # The shortest last: one secret may stand within another.
    for secret in sorted(secrets_of(store), key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, _MASK)
    return text


def _known(scheme: str) -> str:
    return _OTHER_NAMES.get(scheme.lower(), scheme.lower())


def _shown(store: str, place: str) -> str:
    parts = urlsplit(store.partition("?")[0])
    user, at, host = parts.netloc.rpartition("@")
    # The user of abfs is the container.
    keeps_user = parts.scheme.startswith("abfs") and ":" not in user
    folders = [name for name in parts.path.split("/") if name]
    for name in filter(None, place.split("/")):
        if name == ".." and folders:
            folders.pop()
        else:
            folders.append(name)
    netloc = f"{user if keeps_user else _MASK}{at}{host}" if at else host
    return f"{parts.scheme}://{netloc}/{'/'.join(folders)}" if folders else f"{parts.scheme}://{netloc}"
