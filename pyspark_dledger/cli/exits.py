"""Exit codes."""

CLEAN, FINDINGS, CANNOT = 0, 1, 2
INTERRUPTED = 128 + 2
"""By SIGINT, as a shell counts."""
