"""Writing: rows to messages, messages to entries."""
