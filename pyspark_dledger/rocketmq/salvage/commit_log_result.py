"""A salvage whose result is a CommitLog without DLedger: a salvage to a folder next to the target, then an export.

Both continue an interrupted run of the same. The folder between is deleted at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark_dledger.common.durable import write_durably
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import StoreError
from pyspark_dledger.log.io.salvage_fillers import LOST_FILE
from pyspark_dledger.log.io.unfinished import MANIFEST
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.salvage.plan import open_sources
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.log.verify.verify_store import verify
from pyspark_dledger.rocketmq.export.export_job import export
from pyspark_dledger.rocketmq.export.forms import Progress
from pyspark_dledger.rocketmq.export.target_folder import FINISHED, read_json
from pyspark_dledger.rocketmq.salvage.salvage_job import (
    DECIDED_FILE,
    SalvageReport,
    SalvageRequest,
    finished_report,
    salvage_store,
    target_path,
)
from pyspark_dledger.rocketmq.work_parts import MapParts, map_here

_FORM = "commitlog"


def salvage(
    request: SalvageRequest,
    target: str | os.PathLike[str],
    *,
    run: MapParts = map_here,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write one store from the sources to the folder `target`, which is new or has an interrupted salvage of the same.

    Raises OptionError for wrong options; StoreError if a source or the target cannot be used, if copies differ and
    nothing decides, and if the result differs when it is read back.
    """
    as_store = replace(request, store_as=None)
    is_converted = request.store_as == _FORM and any(
        store.ledger_segments for store in open_sources(request.sources, request.engine)
    )
    if not is_converted:
        return salvage_store(as_store, target, run=run, progress=progress)
    began = time.monotonic()
    folder = target_path(target)
    between = folder.with_name(f"{folder.name}.dledger")
    is_exported = _is_exported(folder, between)
    salvaged = finished_report(as_store, between) or salvage_store(as_store, between, run=run, progress=progress)
    if not is_exported:
        export(between, folder, _FORM, run=run, progress=progress, engine=request.engine)
    report = _report(salvaged, folder, request.engine, began)
    for name in (LOST_FILE, DECIDED_FILE):
        if (between / name).exists():
            write_durably(folder / name, "".join(_with_old_positions(between / name)).encode())
    shutil.rmtree(between)
    return report


def _is_exported(folder: Path, between: Path) -> bool:
    """Whether an interrupted salvage already wrote the target. Raises StoreError if it has anything else."""
    names = os.listdir(folder) if folder.is_dir() else []
    state = read_json(folder / MANIFEST).get("state") if MANIFEST in names else None
    if state is None and names and not between.exists():
        raise StoreError(f"{folder}: expected a new or empty folder, found {', '.join(sorted(names)[:8])}")
    if state == FINISHED and not between.exists():
        raise StoreError(f"{folder}: expected a new or empty folder, found a finished salvage or export")
    return state == FINISHED


def _report(salvaged: SalvageReport, folder: Path, engine: str, began: float) -> SalvageReport:
    exported = read_json(folder / MANIFEST)["report"]
    found = (finding for finding in verify(StoreView(str(folder), ReadOptions(engine=engine))))
    notes = [note for note in salvaged.notes if not note.startswith("currterm")]
    if exported["skipped"]:
        first = exported["first_skipped"][0]
        notes.append(f"not in the result: {counted(exported['skipped'], 'entry')} that are no messages; first {first}")
    return replace(
        salvaged,
        target=str(folder),
        node=None,
        entries=exported["rows"],
        parts=exported["parts"],
        resumed=exported["resumed"],
        bytes=exported["bytes"],
        seconds=round(time.monotonic() - began, 3),
        findings=tuple(str(finding) for finding in found if finding.severity != "info"),
        notes=tuple(dict.fromkeys([*notes, *exported["notes"]])),
        broker_conf=exported["broker_conf"],
    )


def _with_old_positions(file: Path) -> Iterator[str]:
    """The rows of a list; positions are those in the log of DLedger, and are named so."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row: dict[str, Any] = json.loads(line)
        yield f"{json.dumps({('dledgerPos' if name == 'pos' else name): value for name, value in row.items()})}\n"
