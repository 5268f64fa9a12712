"""Metrics and health of a node, over HTTP on the loopback address."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families

from tests.support.groups import HOST

_OPENER = build_opener(ProxyHandler({}))


class Page(NamedTuple):
    """A response to ``GET``."""

    status: int
    body: bytes

    @property
    def row(self) -> Any:
        return json.loads(self.body)


def get(port: int, path: str) -> Page:
    try:
        with _OPENER.open(f"http://{HOST}:{port}{path}", timeout=10) as response:
            return Page(response.status, response.read())
    except HTTPError as error:
        with error:
            return Page(error.code, error.read())


def scrape(port: int) -> dict[str, float]:
    """The samples of a node as ``name`` or ``name{VALUE,VALUE}``, with the values of its labels."""
    page = get(port, "/metrics")
    assert page.status == 200
    samples = {}
    for family in text_string_to_metric_families(page.body.decode()):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def reason(port: int, path: str = "/readyz") -> str:
    """Why a node is not ready; "" if it is."""
    page = get(port, path)
    assert page.body.count(b"\n") == 1
    assert page.status == (200 if page.row["ok"] else 503)
    return page.row.get("reason", "")
