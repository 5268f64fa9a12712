"""Real processes under real faults: `python -m tests.chaos` or `make chaos`; the suite runs a short form."""
