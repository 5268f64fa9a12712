"""The JSON header of a frame (``RemotingCommand``), and rejections of the remoting layer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark_dledger.raft.wire.json_values import integer, parse_object, quote
from pyspark_dledger.raft.wire.wire_errors import WireError

SYSTEM_ERROR = 1
SYSTEM_BUSY = 2
REQUEST_CODE_NOT_SUPPORTED = 3
NO_PERMISSION = 16
# DLedger's responses always have 200; the result is in the body. 0 is remoting's own success.
SUCCESS = 200
_SUCCESSES = (SUCCESS, 0)

_RESPONSE = 1
_ONE_WAY = 2
_OFFER_KEY = "dledgerBinary"
_OFFER = "1"
_SECRET_KEY = "dledgerSecret"  # noqa: S105  # the name of a key
_MEMBER_KEY = "dledgerMember"
_MAX_REMARK = 1000
# Matches nearly every header. Parsing it as JSON takes several times as long.
_USUAL = re.compile(
    rb'\{"code":(0|[1-9][0-9]{0,8}),"flag":([0-9]),"language":"[A-Z]{1,9}","opaque":(-?(?:0|[1-9][0-9]{0,8})),'
    rb'"serializeTypeCurrentRPC":"JSON","version":(?:0|[1-9][0-9]{0,3})\}'
)


@dataclass(slots=True)
class Rejection:
    """A response of the remoting layer, below DLedger's messages (``RemotingSysResponseCode``).

    The request was not executed, except perhaps after `SYSTEM_ERROR`. `NO_PERMISSION` comes from a node that requires a
    secret. ``remark`` is the peer's reason.
    """

    code: int
    remark: str


def not_supported(request_code: int) -> Rejection:
    """The rejection of a request code that this version does not know."""
    return Rejection(REQUEST_CODE_NOT_SUPPORTED, f"request code {request_code} is not supported")


class Header(NamedTuple):
    """A JSON header; ``code`` is the request code, or the remoting code of a response.

    ``secret`` is the secret of a request. It is never logged. ``member`` is the hello of a member.
    """

    code: int
    opaque: int
    is_response: bool = False
    is_one_way: bool = False
    offers_binary: bool = False
    remark: str | None = None
    secret: str | None = None
    member: str | None = None

    @property
    def is_success(self) -> bool:
        return self.code in _SUCCESSES


def encode_header(header: Header) -> bytes:
    """The header as fastjson writes it: keys sorted, nulls omitted."""
    fields = [f'"{_OFFER_KEY}":"{_OFFER}"'] if header.offers_binary else []
    if header.secret is not None:
        fields.append(f'"{_SECRET_KEY}":{quote(header.secret)}')
    if header.member is not None:
        fields.append(f'"{_MEMBER_KEY}":{quote(header.member)}')
    offer = f'"extFields":{{{",".join(fields)}}},' if fields else ""
    flag = _RESPONSE * header.is_response | _ONE_WAY * header.is_one_way
    remark = f'"remark":{quote(header.remark[:_MAX_REMARK])},' if header.remark is not None else ""
    return (
        f'{{"code":{header.code},{offer}"flag":{flag},"language":"PYTHON","opaque":{header.opaque},{remark}'
        '"serializeTypeCurrentRPC":"JSON","version":0}'
    ).encode()


def decode_header(data: memoryview) -> Header:
    """Raises WireError unless it is a JSON object with code and opaque."""
    usual = _USUAL.fullmatch(data)
    if usual is not None:
        flag = int(usual[2])
        return Header(int(usual[1]), int(usual[3]), bool(flag & _RESPONSE), bool(flag & _ONE_WAY))
    fields = parse_object(data, "a frame header")
    if fields is None or fields.get("code") is None or fields.get("opaque") is None:
        raise WireError(f"expected a frame header with code and opaque, found {bytes(data[:100])!r}")
    flag = integer(fields.get("flag") or 0, "flag", 32)
    remark = fields.get("remark")
    return Header(
        code=integer(fields["code"], "code", 32),
        opaque=integer(fields["opaque"], "opaque", 32),
        is_response=bool(flag & _RESPONSE),
        is_one_way=bool(flag & _ONE_WAY),
        offers_binary=_has_offer(fields.get("extFields")),
        secret=_text(fields.get("extFields"), _SECRET_KEY),
        member=_text(fields.get("extFields"), _MEMBER_KEY),
        remark=_printable(remark[:_MAX_REMARK]) if isinstance(remark, str) else None,
    )


def _printable(remark: str) -> str:
    """The text with question marks for halves of surrogate pairs, which logs cannot encode."""
    return remark.encode(errors="replace").decode()


def _has_offer(ext_fields: Any) -> bool:
    """A later version may offer several versions, separated by commas."""
    offer = ext_fields.get(_OFFER_KEY) if isinstance(ext_fields, dict) else None
    return isinstance(offer, str) and _OFFER in offer.split(",")


def _text(ext_fields: Any, key: str) -> str | None:
    text = ext_fields.get(key) if isinstance(ext_fields, dict) else None
    return text if isinstance(text, str) else None
