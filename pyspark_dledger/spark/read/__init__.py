"""Batch readers."""
