"""Text as Java decodes and hashes it, and hosts as text."""

from __future__ import annotations

import re
import struct

# Java replaces an encoded surrogate once, CPython each of its bytes (JDK 8 to 21, UTF_8.Decoder.malformedN).
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


def decode_utf8(data: bytes) -> str:
    """Java's ``new String(data, UTF_8)``: malformed parts become U+FFFD."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, data).decode(errors="replace")


def is_utf8(path: str) -> bool:
    """Whether a path of the file system is UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in path)


def escaped_path(path: str) -> str:
    r"""A path that can be printed: invalid UTF-8 bytes as ``\xe9``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``, which is of UTF-16 units: a character above U+FFFF counts as two."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", units):
        value = 31 * value + unit & 0xFFFFFFFF
    return (value ^ 0x80000000) - 0x80000000


def ipv6_text(address: bytes) -> str:
    """16 bytes as in RFC 5952: lower case, the first of the longest runs of zero groups as ``::``."""
    if address.startswith(_IPV4_MAPPED):
        return "::ffff:" + ".".join(map(str, address[12:]))
    groups = [f"{group:x}" for group in struct.unpack(">8H", address)]
    runs = [(length, start) for start in range(8) if (length := _zeros_from(groups, start)) >= 2]
    if not runs:
        return ":".join(groups)
    length, start = max(runs, key=lambda run: run[0])
    return ":".join(groups[:start]) + "::" + ":".join(groups[start + length :])


def _zeros_from(groups: list[str], start: int) -> int:
    end = start
    while end < len(groups) and groups[end] == "0":
        end += 1
    return end - start


def host_text(host: bytes) -> str:
    """A message's host, address (4 or 16 bytes) and port (4 bytes, signed), as ``ip:port`` or ``[ip]:port``."""
    address = host[:-4]
    (port,) = struct.unpack(">i", host[-4:])
    if len(address) == 4:
        return f"{'.'.join(map(str, address))}:{port}"
    return f"[{ipv6_text(address)}]:{port}"
