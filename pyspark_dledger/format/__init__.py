"""Formats of files: layouts, the reference codec, and two engines with the same calls."""
