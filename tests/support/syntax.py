"""The syntax tree of a module of this project."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of the module at `path`.

    The garbage collector waits: a finalizer that formats a traceback parses source, too, and parsing within parsing is
    a SystemError up to Python 3.12 (python/cpython issue 106905).
    """
    source = path.read_text(encoding="utf-8")
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
