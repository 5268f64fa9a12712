"""Damaged stores by class, state of the index files, and seed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.support import golden
from tests.support.witnesses.oracle import Verdict, judge
from tests.support.witnesses.originals import GENERATED, Original, golden_names, unpacked

PER_STORE = 5
"""So many damages of each generated store."""
GOLDEN_CLASSES = ("raw", "mq")
CLASSES = (*GENERATED, *GOLDEN_CLASSES)


class Stores:
    """Makes undamaged stores below a folder, and keeps the last generated one and all goldens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._goldens: dict[golden.Golden, Original] = {}
        self._generated: dict[str, tuple[int, Original]] = {}

    def store(self, kind: str, seed: int) -> Original:
        if kind in GOLDEN_CLASSES:
            names = golden_names(f"{kind}-")
            name = names[seed % len(names)]
            if name not in self._goldens:
                self._goldens[name] = unpacked(name, self._folder / "goldens")
            return self._goldens[name]
        number = seed // PER_STORE
        if kind not in self._generated or self._generated[kind][0] != number:
            root = self._folder / kind
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            self._generated[kind] = number, GENERATED[kind](random.Random(f"{kind}/{number}"), root)
        return self._generated[kind][1]

    def verdict(self, kind: str, mode: str, seed: int, thorough: bool = True) -> Verdict:
        """The verdict on one store, damaged by a seed."""
        original = self.store(kind, seed)
        if mode != "intact" and not (original.key_folders if mode == "keys" else original.index_files):
            mode = "intact"
        return judge(random.Random(f"{kind}/{mode}/{seed}"), original, mode, thorough)
