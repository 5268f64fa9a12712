"""Writes a folder in parts: plan, parts, read back, manifest; the same call continues it after a kill."""
