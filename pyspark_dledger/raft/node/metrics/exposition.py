"""Metrics as text, by prometheus_client."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_dledger.common.histogram import Histogram
from pyspark_dledger.raft.node.metrics.catalogue import COUNTER, METRICS
from pyspark_dledger.raft.node.metrics.catalogue import Metric as Declared
from pyspark_dledger.raft.node.metrics.watched_node import Values

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(Collector):
    """Renders values, and those of the process (``process_...``, on Linux)."""

    def __init__(self) -> None:
        self._values: Values = {}
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def render(self, values: Values) -> bytes:
        self._values = values
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing: metrics of a node change with its role."""
        return ()

    def collect(self) -> Iterator[Metric]:
        for metric in METRICS:
            if (value := self._values.get(metric.name)) is not None:
                yield _family(metric, value)


def disk_room(folders: Iterable[Path]) -> Values:
    """Free and total bytes of the folders' disks; a folder that cannot be asked is left out."""
    free: dict[tuple[str, ...], float] = {}
    size: dict[tuple[str, ...], float] = {}
    for folder in folders:
        try:
            usage = shutil.disk_usage(folder)
        except OSError:
            continue
        free[str(folder),], size[str(folder),] = usage.free, usage.total
    return {"dledger_disk_free_bytes": free, "dledger_disk_size_bytes": size}


def _family(metric: Declared, value: float | Mapping[tuple[str, ...], float] | Histogram) -> Metric:
    if isinstance(value, Histogram):
        bounds = (*(repr(bound) for bound in value.bounds), "+Inf")
        # A copy: the thread that observes may go on.
        buckets = list(zip(bounds, accumulate(list(value.counts)), strict=True))
        return HistogramMetricFamily(metric.name, metric.doc, buckets=buckets, sum_value=value.total)
    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.doc, labels=metric.labels)
    for labels, number in value.items() if isinstance(value, Mapping) else (((), value),):
        family.add_metric(labels, number)
    return family
