"""The stored frames and readings equal those of the real Java classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop import wire_frames
from tests.interop.java_stores import JavaMissing


def stored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_stored_frames_equal_java_output() -> None:
    try:
        written = wire_frames.java_frames()
    except JavaMissing as reason:
        pytest.skip(f"no Java DLedger to write messages: {reason}")
    assert written == stored(wire_frames.FRAMES)


def test_stored_readings_equal_java_output() -> None:
    try:
        read = wire_frames.java_readings()
    except JavaMissing as reason:
        pytest.skip(f"no Java DLedger to read messages: {reason}")
    assert read == stored(wire_frames.READS)
