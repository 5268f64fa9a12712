"""Duplicate detection: which message identities are in the log, and at which index."""
