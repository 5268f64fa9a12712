"""Compares the replicas of one log."""
