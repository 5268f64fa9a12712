"""Execute notebooks and keep their outputs: ``python notebooks/run.py [NOTEBOOK...]``, by default all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
CELL_TIMEOUT = 300
"""Seconds that a cell may take; generous, for busy machines."""


def execute(path: Path) -> nbformat.NotebookNode:
    """Run the notebook at `path` with this Python; return it with its outputs, and leave the file as it is.

    Raises nbclient.exceptions.CellExecutionError if a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as settings:
        client = NotebookClient(
            notebook,
            timeout=CELL_TIMEOUT,
            resources={"metadata": {"path": str(HERE)}},
            extra_arguments=["--IPKernelApp.log_level=40"],  # errors
        )
        # No settings and no history of the user: each run gives the same outputs.
        client.execute(env={**os.environ, "IPYTHONDIR": settings, "JUPYTER_CONFIG_DIR": settings})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main(names: list[str]) -> None:
    for path in [Path(name) for name in names] or sorted(HERE.glob("*.ipynb")):
        notebook = execute(path)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
