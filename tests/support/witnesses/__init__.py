"""Damaged stores, and what must still be read from them: `make witnesses`."""
