"""Encodes rows as messages, and messages as entries."""
