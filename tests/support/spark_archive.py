"""An archive of Spark's loaded classes (Java's class data sharing): a JVM that uses it starts in half the time.

`make test` runs it as ``python -m tests.support.spark_archive``: once per version of Java and PySpark, into build/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parent.parent.parent
# Java archives no classes of a class path with files in a folder, so Spark's settings are given in another way.
NO_CONF_DIR = ROOT / "build" / "no-spark-conf"
_LOGGING = f"-Dlog4j2.configurationFile={(ROOT / 'examples' / 'conf' / 'log4j2.properties').as_uri()}"
# An archive of other jars is ignored without a word.
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_WARM_UP = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.range(100).selectExpr("id", "string(id % 7) key")
frame.createOrReplaceTempView("rows")
frame.groupBy("key").count().orderBy("key").collect()
spark.sql("select * from rows a join rows b using (id) where a.key = '1'").collect()
frame.mapInArrow(lambda batches: batches, "id long, key string").write.mode("overwrite").parquet(PATH)
spark.readStream.schema("id long, key string").parquet(PATH).writeStream.format("memory").queryName("q").option(
    "checkpointLocation", PATH + ".checkpoint"
).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def environment() -> dict[str, str]:
    """What Spark's JVM is started with: quiet, and from the archive where there is one."""
    archive = archive_path()
    sharing = f" -XX:SharedArchiveFile={archive}" if archive.exists() and " " not in str(archive) else ""
    return {"SPARK_CONF_DIR": str(NO_CONF_DIR), "SPARK_SUBMIT_OPTS": f"{_LOGGING} {_QUIET}{sharing}"}


def archive_path() -> Path:
    has_java = shutil.which("java") is not None
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr if has_java else ""
    version = re.search(r'version "([^"]+)"', said)
    return ROOT / "build" / f"spark-{pyspark.__version__}-java-{version[1] if version else 'none'}.jsa"


def main() -> None:
    """Make the archive if there is none. Without one everything works, slower."""
    archive = archive_path()
    if archive.exists() or " " in str(archive):
        return
    archive.parent.mkdir(exist_ok=True)
    made = archive.with_suffix(f".{os.getpid()}")
    options = f"{_LOGGING} {_QUIET} -XX:ArchiveClassesAtExit={made}"
    # PYSPARK_PYTHON may be relative, and the program runs in another folder.
    spark = {"SPARK_CONF_DIR": str(NO_CONF_DIR), "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
    variables = {**os.environ, **spark}
    with tempfile.TemporaryDirectory() as folder:
        code = f"PATH = {folder + '/rows'!r}\n{_WARM_UP}"
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, check=False)
    if made.exists():
        made.rename(archive)


if __name__ == "__main__":
    main()
