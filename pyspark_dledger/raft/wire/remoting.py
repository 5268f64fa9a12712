"""The JSON header of a frame (``RemotingCommand``), and rejections of the remoting layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

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


class Command(NamedTuple):
    """The JSON header of any frame (``RemotingCommand``); ``code`` is that of a request or of its response."""

    code: int
    opaque: int
    is_response: bool = False
    is_one_way: bool = False
    remark: str | None = None
    fields: Mapping[str, str] = MappingProxyType({})

    @property
    def is_success(self) -> bool:
        return self.code in _SUCCESSES

    @property
    def offers_binary(self) -> bool:
        """A later version may offer several versions, separated by commas."""
        return _OFFER in self.fields.get(_OFFER_KEY, "").split(",")

    @property
    def secret(self) -> str | None:
        """The secret of a request. It is never logged."""
        return self.fields.get(_SECRET_KEY)

    @property
    def member(self) -> str | None:
        """The hello of a member."""
        return self.fields.get(_MEMBER_KEY)


def hello_fields(offers_binary: bool, secret: str | None, member: str | None) -> dict[str, str]:
    """What a hello, or a response to one, has in the fields of its header."""
    found = {_OFFER_KEY: _OFFER if offers_binary else None, _SECRET_KEY: secret, _MEMBER_KEY: member}
    return {name: value for name, value in found.items() if value is not None}


def encode_command(command: Command) -> bytes:
    """The header as fastjson writes it: nulls and empty maps are omitted."""
    fields = ",".join(f"{quote(name)}:{quote(value)}" for name, value in command.fields.items())
    extension = f'"extFields":{{{fields}}},' if fields else ""
    flag = _RESPONSE * command.is_response | _ONE_WAY * command.is_one_way
    remark = f'"remark":{quote(command.remark[:_MAX_REMARK])},' if command.remark is not None else ""
    return (
        f'{{"code":{command.code},{extension}"flag":{flag},"language":"PYTHON","opaque":{command.opaque},{remark}'
        '"serializeTypeCurrentRPC":"JSON","version":0}'
    ).encode()


def decode_command(data: memoryview) -> Command:
    """Raises WireError unless it is a JSON object with code and opaque."""
    usual = _USUAL.fullmatch(data)
    if usual is not None:
        flag = int(usual[2])
        return Command(int(usual[1]), int(usual[3]), bool(flag & _RESPONSE), bool(flag & _ONE_WAY))
    values = parse_object(data, "a frame header")
    if values is None or values.get("code") is None or values.get("opaque") is None:
        raise WireError(f"expected a frame header with code and opaque, found {bytes(data[:100])!r}")
    flag = integer(values.get("flag") or 0, "flag", 32)
    remark, fields = values.get("remark"), values.get("extFields")
    return Command(
        code=integer(values["code"], "code", 32),
        opaque=integer(values["opaque"], "opaque", 32),
        is_response=bool(flag & _RESPONSE),
        is_one_way=bool(flag & _ONE_WAY),
        remark=_printable(remark[:_MAX_REMARK]) if isinstance(remark, str) else None,
        fields={name: value for name, value in fields.items() if isinstance(value, str)}
        if isinstance(fields, dict)
        else {},
    )


def _printable(remark: str) -> str:
    """The text with question marks for halves of surrogate pairs, which logs cannot encode."""
    return remark.encode(errors="replace").decode()
