"""``python -m pyspark_dledger.spark.extension JAR`` writes the jar of the extension."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark_dledger.spark.extension import EXTENSIONS, write_jar

if len(sys.argv) != 2:
    sys.exit("usage: python -m pyspark_dledger.spark.extension JAR")
try:
    write_jar(Path(sys.argv[1]))
except ModuleNotFoundError as error:
    sys.exit(f"expected PySpark, found no module {error.name}: run the Python of the server, or install its PySpark")
print(f"Wrote {sys.argv[1]}: set spark.jars to it, and spark.sql.extensions to {EXTENSIONS}")
