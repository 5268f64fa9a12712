"""Asks the real Java classes how they write and read messages; ``python -m tests.interop.wire_frames`` stores it.

The answers are tests/raft/wire/java-frames.jsonl and java-reads.jsonl. tests/raft/test_wire.py uses them.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.interop.java_stores import prepare

VERSION = "0.3.1.2"
DATA = Path(__file__).resolve().parent.parent / "raft" / "wire"
FRAMES = DATA / "java-frames.jsonl"
READS = DATA / "java-reads.jsonl"

ENTRY = '{"body":"aGk=","bodyCrc":0,"chainCrc":0,"channel":0,"index":5,"magic":1,"pos":9,"size":50,"term":1}'
_HEART_BEATS = (
    *("{}", "null", "", "  ", "[]", "1", '"x"'),
    *(f'{{"term":{value}}}' for value in ("5", '"5"', "5.0", "5.9", "1e3", "null", "true", '""', '"abc"', '"null"')),
    *(f'{{"term":{value}}}' for value in ('" 5"', '"+5"', '"1,234"', '"5.0"', "-0", "007", "+5", "5L", "0x10")),
    *(f'{{"term":{value}}}' for value in ("NaN", "Infinity", "[5]", "{}", "-9223372036854775808", "1e400", "1.5e1")),
    *(f'{{"term":{value}}}' for value in ("9223372036854775807", "9223372036854775808", "-9223372036854775809")),
    *('{"term":99999999999999999999999}', '{"term":5,"code":1,"term":6}', '{"term":"99999999999999999999"}'),
    *(f'{{"code":{value}}}' for value in ("2147483647", "2147483648", "4294967296", '"404"', "404.0", "null", "5.5")),
    *(f'{{"group":{value}}}' for value in ("5", "true", "null", '[1,"a"]', '{"a":1}', '"\\ud800"', '"\\u4e2d"', '""')),
    *(f'{{"group":{value}}}' for value in ('"a\\/b"', '"\\x41"', '"tab\there"', '"a\nb"', '"\\ud83d\\ude00"', "'g'")),
    *('{group:"g"}', '{"group":"g",}', '{"group":"g"} x', '{"group":"g"}{}', '\ufeff{"group":"g"}', '{"group"'),
    *('\n\t {"group":"g"}\r\n ', '{"group":"a","group":"b"}', '{"GROUP":"g"}', '{"remote_id":"n1"}', '{"group":"g"'),
    *('{"group":"g","unknown":[1,{"a":[2]}]}', '/*c*/{"group":"g"}', '{"@type":"java.lang.Object","group":"g"}'),
)
_VOTES = ('"ACCEPT"', '"accept"', "0", "1", "11", "12", "-1", '"1"', '"REJECT_ALREADY__HAS_LEADER"', '"NO"', "null")
_BODIES = (
    *('"aGk="', '"aGk"', '"aGk=="', '"aG k="', '"aG\\nk="', '"a"', '"ab"', '"abc"', '"=aGk"', '"aGk=aGk="', '"-_-_"'),
    *('"+/+/"', '"!!!!"', '""', "null", "5", "{}", "x'6869'", '"\\u0061Gk="', "true", '"aGk=\\n"', '" aGk="', '"aGl="'),
    *("[104,105]", "[104,-1]", "[300]", '["a"]', "[]", '"a\\u4e2dk="', '"===="', '"aG=k"'),
)
_PUSHES = (
    *("{}", '{"commitIndex":-2}', '{"commitIndex":null}'),
    *(f'{{"type":{value}}}' for value in ('"COMMIT"', '"commit"', "1", "3", "4", '"INSTALL_SNAPSHOT"', "null")),
    *(f'{{"entry":{value}}}' for value in (ENTRY, "null", "{}", "[]", '"x"', '{"body":null,"index":3}')),
    *(f'{{"entry":{value}}}' for value in (ENTRY.replace('"index":5', '"index":"5"'), '{"body":"aGk=","index":5}')),
    f'{{"entry":{ENTRY.replace("50", "77")}}}',
    f'{{"entry":{ENTRY.replace(":0,", ":null,")}}}',
    *(f'{{"batchEntry":{value}}}' for value in (f"[{ENTRY}]", ENTRY, "null", "[null]", "[]", "[5]")),
    f'{{"batchEntry":[{ENTRY},{ENTRY.replace(":5", ":6")}],"entry":{ENTRY.replace(":5", ":7")}}}',
    f'{{"batchEntry":[{ENTRY}],"totalSize":77,"count":9,"firstEntryIndex":4,"batch":false}}',
    f'{{"batchEntry":[{ENTRY}],"entry":{{"$ref":"$.batchEntry[0]"}}}}',
    f'{{"entry":{{"$ref":"$.batchEntry[0]"}},"batchEntry":[{ENTRY}]}}',
    f'{{"entry":{ENTRY},"batchEntry":[{{"$ref":"$.entry"}}]}}',
    f'{{"type":"COMPARE","batchEntry":[{ENTRY}],"entry":{{"$ref":"$.batchEntry[0]"}}}}',
    f'{{"entry":{{"$ref":"$.batchEntry[7]"}},"batchEntry":[{ENTRY}]}}',
    *(f'{{"entry":{{"$ref":{path}}}}}' for path in ('"$"', '".."', '"@"', '"$.nothing"', "5")),
    f'{{"type":"COMMIT","entry":{ENTRY}}}',
    f'{{"type":"COMPARE","batchEntry":[{ENTRY}]}}',
    f'{{"type":"APPEND","entries":[{ENTRY}],"preLogIndex":4,"preLogTerm":1}}',
)
_GETS = (
    "{}",
    '{"entries":[]}',
    '{"entries":null}',
    f'{{"entries":[{ENTRY}]}}',
    '{"entries":[null]}',
    '{"entries":[{}]}',
)
_PEERS = ("null", "{}", '{"n0":5}', '{"n0":null}', '{n0:"a"}', "[]", '"x"', '{"b":"1","a":"2"}', '{5:"x"}')
BODIES = (
    *(("HeartBeatRequest", body) for body in _HEART_BEATS),
    *(("VoteResponse", f'{{"voteResult":{value}}}') for value in (*_VOTES, '""', "1.0", "true", "[]")),
    *(("AppendEntryRequest", f'{{"body":{value}}}') for value in _BODIES),
    *(("PushEntryRequest", body) for body in _PUSHES),
    *(("GetEntriesResponse", body) for body in _GETS),
    *(("MetadataResponse", f'{{"peers":{value}}}') for value in _PEERS),
    *(("PushEntryResponse", body) for body in ("{}", '{"index":null}', '{"index":"7"}', '{"count":3}')),
    *(("GetEntriesRequest", body) for body in ("{}", '{"beginIndex":3}', '{"beginIndex":"3","indexList":[1,2]}')),
)
"""Bodies that Java rarely or never writes, each with the class that reads it."""


def _run(mode: str, lines: list[str]) -> list[list[str]]:
    """Runs WireFrames on lines of input and returns the fields of its output lines. Skips the test without Java."""
    command = ["java", "-cp", prepare("WireFrames", VERSION, VERSION), "WireFrames", mode]
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, check=True
    )
    return [line.split("\t") for line in done.stdout.splitlines()]


def java_frames() -> list[dict[str, Any]]:
    """Returns frames that Java writes, with names, request codes and opaques. Skips the test without Java."""
    names = ("name", "code", "opaque", "frame")
    return [
        dict(zip(names, (name, int(code), int(opaque), frame), strict=True))
        for name, code, opaque, frame in _run("write", [])
    ]


def java_readings(bodies: tuple[tuple[str, str], ...] = BODIES) -> list[dict[str, Any]]:
    """Reads each body as a class and writes it again, in Java. None: Java throws. Skips the test without Java."""
    lines = [f"{kind}\t{base64.b64encode(body.encode()).decode()}" for kind, body in bodies]
    answers = [
        base64.b64decode(answer).decode() if outcome == "reads" else None for outcome, answer in _run("read", lines)
    ]
    return [{"kind": kind, "body": body, "java": answer} for (kind, body), answer in zip(bodies, answers, strict=True)]


def _store(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    _store(FRAMES, java_frames())
    _store(READS, java_readings())
