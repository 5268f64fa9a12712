"""A live group as a source: its committed entries, parts of them for tasks, and a batch read."""
