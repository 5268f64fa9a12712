"""Clients that connect to a hostile server."""

from __future__ import annotations

import pytest

import pyspark_dledger as dl
from pyspark_dledger.errors import DLedgerError
from tests.known_defects import DefectShown
from tests.support.fake_members import FakeMember, fakes


@pytest.mark.parametrize("address", ["\x1b[31mevil\u202e\n:1", "a..b:1", "x" * 64 + ":1", "a b:1", "x." * 200 + ":1"])
def test_hostile_address_of_a_member_is_an_error_of_the_group(address: str) -> None:
    fake = FakeMember(leader_id="n1")
    fake.peers = {"n0": f"127.0.0.1:{fake.port}", "n1": address}
    with fakes(fake) as peers, dl.connect("g", peers, timeout_ms=300, max_retries=0) as client:
        try:
            client.get(0)
        except DLedgerError:
            return
        except ValueError as error:
            raise DefectShown(repr(error)) from None
