"""Whether the suite runs with the extension of Spark's optimizer: ``make test-spark-versions`` does both."""

from __future__ import annotations

import os

HAS_EXTENSION = "DLEDGER_SPARK_EXTENSION" in os.environ
