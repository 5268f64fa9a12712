"""The verbs of `dledger`: each has a function for its arguments (``add_VERB``), and ``run_VERB``."""
