"""The size of partitions follows the bytes of the read, the cores of the cluster and the options."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_dledger.log import plan as module
from pyspark_dledger.log.options import parse_options
from pyspark_dledger.log.plan import partition_size

MIB = 1024**2
GIB = 1024**3


@pytest.mark.parametrize(
    ("total", "options", "size"),
    [
        (10 * GIB, {}, 128 * MIB),
        (10 * GIB, {"defaultParallelism": 4}, 128 * MIB),
        (GIB, {"defaultParallelism": 64}, 16 * MIB),
        (GIB + 1, {"defaultParallelism": 64}, 16 * MIB + 1),
        (GIB, {"defaultParallelism": 1000}, 4 * MIB),
        (GIB, {"defaultParallelism": 64, "minPartitions": 128}, 8 * MIB),
        (GIB, {"defaultParallelism": 64, "maxPartitionBytes": "200m"}, 200 * MIB),
        (GIB, {"minPartitions": 2}, 128 * MIB),
        (10, {"minPartitions": 4}, 3),
        (0, {"minPartitions": 4}, 1),
    ],
)
def test_size_of_a_partition(total: int, options: dict[str, Any], size: int) -> None:
    assert partition_size(total, parse_options(options)) == size


@pytest.mark.parametrize(("cores", "total", "size"), [(16, 10_240, 640), (2, 10_240, 1024), (16, 200, 128)])
def test_selective_scan_has_a_partition_for_each_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, total: int, size: int
) -> None:
    """Of the cluster, else of this machine."""
    options = parse_options({"defaultParallelism": cores})
    assert partition_size(total * MIB, options, selective=True) == size * MIB
    monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
    assert partition_size(total * MIB, parse_options({}), selective=True) == size * MIB
    assert partition_size(total * MIB, parse_options({})) == 128 * MIB
