"""Identities that other runs of a job find, in encoded messages."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_dledger.format.encode.encoded import Bodies, PutSettings
from pyspark_dledger.format.encode.identities import (
    content_keys,
    numbered_id,
    read_ids,
    replace_ids,
    run_tag,
    runs_of,
    tagged,
    words_of,
)
from pyspark_dledger.format.engine import get_engine

PRODUCER = b"producer"
ROWS = [b"a", b"b", b"a", b"", b"longer"]


@pytest.fixture(params=["native", "python"])
def encoded(request: pytest.FixtureRequest) -> Bodies:
    engine = get_engine(request.param)
    batch = pa.record_batch({"topic": ["T"] * len(ROWS), "body": pa.array(ROWS, pa.binary())})
    return engine.encode_messages(batch, PutSettings(PRODUCER, 0, bytes(8), bytes(8), {"T": 4}), engine.new_ordinals())


def test_identities_are_those_that_a_leader_reads(encoded: Bodies) -> None:
    ids = read_ids(encoded)
    assert get_engine().read_puts(encoded).ids == b"".join(PRODUCER + row.tobytes() for row in ids)
    changed = replace_ids(encoded, b"PRODUCER", tagged(ids, 5, 6))
    assert get_engine().read_puts(changed).ids == b"".join(b"PRODUCER" + row.tobytes() for row in tagged(ids, 5, 6))
    assert replace_ids(changed, PRODUCER, ids) == encoded


def test_a_run_and_a_partition_change_no_content(encoded: Bodies) -> None:
    ids = read_ids(encoded)
    run = run_tag("a run")
    one, other = tagged(ids, run, 0), tagged(ids, run_tag("another"), 2**20 - 1)
    assert set(runs_of(one[:, 0], one[:, 1]).tolist()) == {run}
    assert len({row.tobytes() for found in (one, other, tagged(ids, run, 1)) for row in found}) == 3 * len(ROWS)
    assert content_keys(one) == content_keys(other)
    assert len(set(content_keys(one))) == len(ROWS)
    assert (words_of(one.tobytes()) == one).all()


def test_a_number_is_the_first_word() -> None:
    assert numbered_id(2**63 - 1)[0, 0] == 2**63 - 1
    assert numbered_id(1)[0, 1] != numbered_id(2)[0, 1]
