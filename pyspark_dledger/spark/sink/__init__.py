"""Sinks: writing a DataFrame to a path or a group."""
