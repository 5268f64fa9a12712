"""``dledger --version``: what a bug report needs to know of an installation."""

from __future__ import annotations

import platform
from importlib import import_module

from pyspark_dledger import __version__
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.engine import get_engine


def versions() -> str:
    """A line each for the package, the engine, Python, Arrow, Spark and the platform."""
    facts = {
        "pyspark_dledger": __version__,
        "engine": _engine(),
        "Python": platform.python_version(),
        "Arrow": _version("pyarrow"),
        "Spark": _version("pyspark"),
        "platform": platform.platform(),
    }
    return "".join(f"{name:<16}{value}\n" for name, value in facts.items())


def _engine() -> str:
    """The name of the engine that reads use, and why it is not the native one."""
    try:
        return get_engine("native").NAME
    except OptionError as error:
        return f"python ({error})"


def _version(module: str) -> str:
    """The version of a module, by its import: the Spark of a cluster can be on the path without metadata."""
    try:
        return str(import_module(module).__version__)
    except ImportError as error:
        return "none" if error.name == module else f"cannot be imported ({error})"
