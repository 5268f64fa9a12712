"""The extension of Spark's optimizer: queries of dledger tables read only their columns, and are planned each time.

PySpark's data source API has no column pruning (SPARK-51713). The extension is a rule in Java. Spark's own compiler,
Janino, compiles it against the Spark that runs it, so that no JDK is needed.
"""

from __future__ import annotations

import json
import re
import weakref
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_dledger.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXTENSIONS = "pyspark_dledger.spark.DLedgerExtensions"
"""The value of ``spark.sql.extensions``."""

_enabled: weakref.WeakSet[Any] = weakref.WeakSet()


def enable(spark: SparkSession) -> None:
    """Add the extension to a session, once. New sessions of ``spark.newSession()`` need it themselves.

    If this Python thread has no active session, it becomes that: Spark looks for Python data sources only there.

    Raises OptionError for a session of Spark Connect, whose server has to be configured.
    """
    if not hasattr(spark, "_jvm"):
        raise OptionError(
            "expected a session with Spark's JVM in this process, found Spark Connect: configure its server with "
            f"spark.sql.extensions={EXTENSIONS} and the jar that python -m pyspark_dledger.spark.extension writes"
        )
    session: Any = spark
    sessions = getattr(session._jvm, "org.apache.spark.sql.classic.SparkSession")
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(session._jsparkSession)
    if session not in _enabled and EXTENSIONS not in (spark.conf.get("spark.sql.extensions", "") or ""):
        extensions = _loader(session._jvm).loadClass(EXTENSIONS)
        (method,) = (each for each in extensions.getMethods() if each.getName() == "enable")
        arguments = session._sc._gateway.new_array(session._jvm.java.lang.Object, 1)
        arguments[0] = session._jsparkSession
        method.invoke(None, arguments)
        _enabled.add(session)


def _loader(jvm: Any) -> Any:
    """A Java class loader with the compiled classes."""
    classes = jvm.java.util.HashMap()
    for name, code in compiled(jvm).items():
        classes[name.removesuffix(".class").replace("/", ".")] = code
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.org.codehaus.commons.compiler.util.reflect.ByteArrayClassLoader(classes, parent)


def write_jar(path: Path) -> None:
    """Write the jar for the class path of a server, compiled against the PySpark that is installed here."""
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway()
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as jar:
            for name, code in compiled(gateway.jvm).items():
                jar.writestr(name, code)
    finally:
        gateway.shutdown()


def compiled(jvm: Any) -> dict[str, bytes]:
    """The class files by their names in a jar, compiled by `jvm` against its class path."""
    janino, util = jvm.org.codehaus.janino, jvm.org.codehaus.commons.compiler.util.resource
    created = jvm.java.util.HashMap()
    compiler = janino.Compiler()
    compiler.setIClassLoader(
        janino.ClassLoaderIClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    )
    compiler.setClassFileCreator(util.MapResourceCreator(created))
    files = sources()
    constants = _constants()
    given = jvm.java.lang.reflect.Array.newInstance(util.Resource._java_lang_class, len(files))
    for place, source in enumerate(files):
        text = re.sub(r'"@(\w+)@"', lambda match: json.dumps(constants[match[1]]), source.read_text())
        given[place] = util.StringResource(source.name, text)
    compiler.compile(given)
    return {name: bytes(created[name]) for name in sorted(created)}


def _constants() -> dict[str, str]:
    """What the Java files know of Python, by the name of its place in them."""
    from pyspark_dledger.spark.schema import log_schema
    from pyspark_dledger.spark.sink.write_options import WRITE_OPTIONS, write_only_option

    names = (option.name for option in WRITE_OPTIONS if write_only_option(option.name))
    return {"LOG_SCHEMA": log_schema(include_entry_body=True).json(), "WRITE_ONLY": ",".join(names).lower()}


def sources() -> list[Path]:
    """The Java files of the extension."""
    return sorted((Path(__file__).parent / "java").glob("*.java"))
