"""The stored frames and readings equal those of the real Java classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.interop import wire_frames


def stored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stored_frames_equal_java_output() -> None:
    written = wire_frames.java_frames()
    assert written == stored(wire_frames.FRAMES)


def test_stored_readings_equal_java_output() -> None:
    read = wire_frames.java_readings()
    assert read == stored(wire_frames.READS)
