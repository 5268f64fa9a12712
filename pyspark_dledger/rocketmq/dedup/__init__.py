"""Message identities: finding duplicates in the log."""
