"""URIs of stores on remote file systems: which schemes are known, and how a URI is shown without its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, final
from urllib.parse import parse_qsl, quote, unquote

from pyspark_dledger.common.java_text import escaped_path, is_utf8
from pyspark_dledger.errors import OptionError

SCHEMES = ("s3", "gs", "abfs", "abfss", "hdfs", "viewfs")
"""The schemes of `pyarrow.fs.FileSystem.from_uri` that can be read."""

GS_RETRY_SECONDS = 60

# Names that Hadoop and others use.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):(?=/)/*")
# After these comes a bucket, never a port. In the others ``user:password`` differs from ``host:port``.
_BUCKETS = ("s3", "gs")
_HOST_AND_PORT = re.compile(r"[^:]*:\d*|\[[0-9A-Fa-f:.]*\](:\d*)?")
_USERS = re.compile(r"(:/+)[^\s\"',]*@")
_QUERIES = re.compile(r"(:/[^\s\"',?]*)\?[^\s\"',]*")
_UNQUOTED = "/:@%!$&'()*+,;=~"
# Query parameters that are not secret.
_OPEN_PARAMETERS = frozenset({"endpoint_override", "region", "scheme"})
_MASK = "***"


class Stamp(NamedTuple):
    """A remote file's size in bytes and time of change in ns since 1970, from a listing."""

    size: int
    written_ns: int


@final
class RemoteUri(str):
    """The URI of a remote file or folder, as text without secrets and without query parameters.

    ``store`` is the URI that the user gave; it can have secrets. ``subpath`` is the path below it, empty for the store
    itself; ``..`` goes up. ``stamp`` is set for a file that was listed.
    """

    store: str
    subpath: str
    stamp: Stamp | None

    def __new__(cls, store: str, subpath: str = "", stamp: Stamp | None = None) -> RemoteUri:
        made = super().__new__(cls, _shown(store, subpath))
        made.store, made.subpath, made.stamp = store, subpath, stamp
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return RemoteUri, (self.store, self.subpath, self.stamp)

    def __str__(self) -> str:
        return self

    def __eq__(self, other: object) -> bool:
        # URIs on different servers can be shown as the same text.
        same_store = not isinstance(other, RemoteUri) or (self.store, self.subpath) == (other.store, other.subpath)
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
    """`path`, as a RemoteUri if it names a remote file system. Raises OptionError for a malformed URI."""
    if isinstance(path, RemoteUri) or not is_remote(path):
        return path
    given = _divided(path)
    shown = _shown(path, "")
    if any(mark in given.user for mark in "/?#"):
        raise OptionError(f"path {shown}: expected %2F, %3F and %23 for /, ? and # before the @")
    if _known(given.scheme) in _BUCKETS and given.slashes != "//":
        raise OptionError(f"path {shown}: expected two slashes before the bucket, found {len(given.slashes)}")
    return RemoteUri(path)


def unlisted(path: str) -> str:
    """`path` without the stamp of its listing, which says that the file existed."""
    return RemoteUri(path.store, path.subpath) if isinstance(path, RemoteUri) else path


def is_in_bucket(store: str) -> bool:
    """Whether a URI begins with the name of a bucket."""
    return _known(_divided(store).scheme) in _BUCKETS


def store_path(path: str) -> str:
    """`path` for reading: a local path without ``file:``, or a RemoteUri.

    Raises OptionError for another scheme.
    """
    if is_remote(path):
        return as_uri(path)
    return local_path(path, f"a local path or one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}")


def local_path(path: str, expected: str = "a local path") -> str:
    """`path` without the ``file:`` that Spark's users write. Raises OptionError for another scheme."""
    scheme = _SCHEME.match(path)
    if scheme is None and not isinstance(path, RemoteUri):
        return path
    name = scheme[1].lower() if scheme is not None else "a URI"
    if name != "file":
        shown = path if isinstance(path, RemoteUri) else _shown(path, "")
        raise OptionError(f"path {shown}: expected {expected}, found {name}: copy the store to a local folder")
    return without_file_scheme(path)


def local_target(path: str, name: str = "target") -> str:
    """`path` of a folder to write, without ``file:``; errors call it `name`.

    Raises OptionError for a URI, and for a path that is not UTF-8.
    """
    scheme = _SCHEME.match(path)
    if scheme is not None and scheme[1].lower() != "file":
        raise OptionError(
            f"{name} {_shown(path, '')}: expected a local folder to write to, found a URI: write to a local folder, "
            "and copy that"
        )
    if not is_utf8(path):
        raise OptionError(
            f"{name} {escaped_path(path)}: expected a path in UTF-8, found bytes that are not: choose another"
        )
    return without_file_scheme(path)


def check_local(paths: Iterable[str], why: str) -> None:
    """Raises OptionError for a remote path; `why`, such as "to follow", says what needs a local one."""
    for path in paths:
        if is_remote(path):
            local_path(as_uri(path), f"a local path {why}")


def without_file_scheme(path: str) -> str:
    """A local path without ``file:``."""
    scheme = _SCHEME.match(path)
    return f"/{path[scheme.end() :]}" if scheme is not None and scheme[1].lower() == "file" else path


def is_local(path: str) -> bool:
    """Whether a text is a local path, also with ``file:``."""
    scheme = _SCHEME.match(path)
    return not isinstance(path, RemoteUri) and (scheme is None or scheme[1].lower() == "file")


def parsable(store: str) -> str:
    """A URI in the form that pyarrow parses: its name of the scheme, and the path percent-encoded.

    A ``gs`` URI gets a limit for retries, which by default take a quarter of an hour.
    """
    given = _divided(store)
    scheme, query = _known(given.scheme), given.query
    if scheme == "gs" and "retry_limit_seconds=" not in query:
        query += f"{'&' if query else '?'}retry_limit_seconds={GS_RETRY_SECONDS}"
    user = f"{given.user}@" if given.user else ""
    return f"{scheme}:{given.slashes}{quote(user + given.place, safe=_UNQUOTED)}{query}"


def secrets_of(store: str) -> list[str]:
    """The secrets in a URI: user, password and most parameters, each as written, decoded and encoded."""
    given = _divided(store)
    found = [part for part in (given.user, *given.user.split(":")) if part]
    for pair in given.query[1:].split("&"):
        name, _, value = pair.partition("=")
        if name not in _OPEN_PARAMETERS:
            found += [value, *(decoded for _, decoded in parse_qsl(pair))]
    return [
        text for secret in found for text in {secret, unquote(secret), quote(secret, safe=""), quote(secret, _UNQUOTED)}
    ]


def masked(text: str, store: str) -> str:
    """A message with the secrets of a URI masked."""
    # The shortest last: one secret can be part of another.
    for secret in sorted(secrets_of(store), key=len, reverse=True):
        if len(secret) > 2:
            text = text.replace(secret, _MASK)
    return text


def without_secrets(text: str) -> str:
    """A text with the user and the query of each URI in it masked."""
    return _QUERIES.sub(rf"\1?{_MASK}", _USERS.sub(rf"\1{_MASK}@", text))


class _Divided(NamedTuple):
    """The parts of a URI: ``scheme:slashes user@ place query``."""

    scheme: str
    slashes: str
    user: str
    place: str
    query: str


def _divided(store: str) -> _Divided:
    """The parts of a URI, also if its secrets have characters that should be encoded."""
    scheme = _SCHEME.match(store)
    assert scheme is not None
    rest = store[scheme.end() :]
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = host.rpartition("@")
    is_cut = ":" in host and (_known(scheme[1]) in _BUCKETS or not _HOST_AND_PORT.fullmatch(host))
    if not at and is_cut:
        user, at, _ = rest.rpartition("@")
        user = user if at else host
    place, question, query = rest[len(user) + len(at) :].partition("?")
    return _Divided(scheme[1], store[scheme.end(1) + 1 : scheme.end()], user, place, question + query)


def _known(scheme: str) -> str:
    return _OTHER_NAMES.get(scheme.lower(), scheme.lower())


def _shown(store: str, subpath: str) -> str:
    given = _divided(store)
    host, *folders = given.place.partition("#")[0].split("/")
    folders = [name for name in folders if name]
    for name in filter(None, subpath.split("/")):
        if name == ".." and folders:
            folders.pop()
        else:
            folders.append(name)
    # The user of abfs is the container.
    keeps_user = given.scheme.lower().startswith("abfs") and ":" not in given.user
    user = f"{given.user if keeps_user else _MASK}@" if given.user else ""
    return "/".join((f"{given.scheme.lower()}:{given.slashes}{user}{host}", *folders))
