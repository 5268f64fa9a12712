"""``--redact``: nothing of an application or a network leaks."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Ran
from tests.support.damage import write_at
from tests.support.generate import Store, mq_message, write_dledger

Json = dict[str, Any]


def secrets_of(rows: list[Json]) -> set[str]:
    """Texts in which an application or a network would be recognized."""
    found: set[str] = set()
    for row in rows:
        body = base64.b64decode(row["body"] or "")
        found |= {row["body"] or "", body.hex(), body.decode(errors="replace"), str(row["messageCrc"])}
        for name in ("topic", "tags", "keys", "uniqKey", "offsetMsgId", "bornHost", "storeHost"):
            found.add(row[name] or "")
        for name, value in (row["properties"] or {}).items():
            found |= {value, name if not name.isupper() else ""}
        found |= {host.rpartition(":")[0] for host in (row["bornHost"] or "", row["storeHost"] or "")}
    return {text for text in found if len(text) > 5 and text not in ("default", "message")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["--json", "--body=text", "--body=hex", "--columns=properties,body,topic,storeHost,problem"]
)
def test_redacted_rows_leak_nothing(form: str, case_folder: Callable[[str], Path], run: Callable[..., Ran]) -> None:
    path = case_folder("mq-53-single")
    secrets = secrets_of(run("dump", path, "--json").rows)
    assert len(secrets) > 2000
    redacted = run("dump", path, "--redact", form).out
    # A digest may by chance hold the digits of a short number.
    rest, replaced = re.subn(r"redacted:[0-9a-f]{16}:\d+", "redacted", redacted)
    assert replaced > 200
    assert [text for text in secrets if text in rest] == []


def test_redacted_values_can_be_matched_within_a_run_only(broker: Store, run: Callable[..., Ran]) -> None:
    first, second = (run("dump", broker.path, "--json", "--redact").rows for _ in range(2))
    assert len({row["topic"] for row in first}) == 1
    assert len({row["body"] for row in first}) == 8
    assert first[0]["topic"] != second[0]["topic"]
    assert first[0]["body"].endswith(":6")
    assert first[0]["properties"]["KEYS"] == first[0]["keys"]
    assert (first[3]["queueOffset"], first[3]["storeTimestamp"]) == (3, "2023-11-14T22:13:23.000Z")


def test_columns_can_be_kept(broker: Store, run: Callable[..., Ran]) -> None:
    row = run("dump", broker.path, "--json", "--redact", "--keep", "topic,tags").rows[0]
    assert row["topic"] == "Orders"
    assert row["keys"].startswith("redacted:")


def test_a_crc_in_a_problem_is_redacted(tmp_path: Path, run: Callable[..., Ran]) -> None:
    store = write_dledger(tmp_path, [mq_message("T", b"body")])
    write_at(store.segments[0].path, store.rows[0]["pos"] + 48 + 8, b"\x01")
    plain, redacted = (run("dump", store.path, "--json", *more).rows[0]["problem"] for more in ([], ["--redact"]))
    assert re.search(r"message CRC \d+", plain)
    assert not re.search(r"\d{5}", redacted)


@pytest.mark.parametrize("table", ["consumeQueue", "indexFile", "findings", "segments"])
def test_names_of_topics_do_not_leak_from_other_tables(
    table: str, case_folder: Callable[[str], Path], run: Callable[..., Ran]
) -> None:
    out = run("dump", case_folder("mq-53-single"), "--table", table, "--redact").out
    assert "Topic" not in out
    assert "consumequeue" not in out
