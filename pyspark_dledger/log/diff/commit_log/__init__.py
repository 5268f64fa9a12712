"""Compares CommitLogs: of master and slaves, of controller mode, and those before DLedger, by their bytes."""
