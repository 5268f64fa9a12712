"""Tables about the files of the log."""
