"""What tests of known defects share. Such a test is marked ``xfail`` until its defect is fixed."""

from __future__ import annotations


class DefectShown(AssertionError):
    """The defect that a test is about. The mark expects only this error, so every other failure of the test shows."""


def should(is_met: bool, text: str) -> None:
    """Raise DefectShown with that text unless the expectation is met."""
    if not is_met:
        raise DefectShown(text)
