"""Tables about the log's own files."""
