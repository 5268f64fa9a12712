"""The ranges of Java's integers, and of its times."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

MIN_TIMESTAMP, MAX_TIMESTAMP = -62135596800000, 253402300799999
"""The years 1 to 9999, which Spark and Python support, in milliseconds since 1970. A time outside is null."""


def microseconds(milliseconds: int) -> int | None:
    """A Java time (ms) as a value of a timestamp column; None outside the years 1 to 9999."""
    return milliseconds * 1000 if MIN_TIMESTAMP <= milliseconds <= MAX_TIMESTAMP else None
