"""Tailing a log: offsets, limits, lost data, and the tail of a store on disk."""
