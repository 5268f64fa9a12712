"""The summary of a member: what its log no longer tells once entries have expired."""
