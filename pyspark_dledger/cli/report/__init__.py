"""The HTML report about one store."""

MARKER = "dledger report"
"""The generator in the head of a page. A later report may replace a page that has it."""
