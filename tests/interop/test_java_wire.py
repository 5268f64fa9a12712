"""What is stored of Java's frames is what Java writes and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop import wire_frames
from tests.interop.java_stores import JavaMissing


def stored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_stored_frames_are_what_java_writes() -> None:
    try:
        written = wire_frames.written()
    except JavaMissing as reason:
        pytest.skip(f"no Java DLedger to write messages: {reason}")
    assert written == stored(wire_frames.FRAMES)


def test_the_stored_readings_are_what_java_reads() -> None:
    try:
        read = wire_frames.read()
    except JavaMissing as reason:
        pytest.skip(f"no Java DLedger to read messages: {reason}")
    assert read == stored(wire_frames.READS)
