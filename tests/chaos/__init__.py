"""Faults of real processes: `python -m tests.chaos` or `make chaos`; tests/raft/test_chaos.py is a short run."""
