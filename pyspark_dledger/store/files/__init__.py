"""The files of a writable store."""
