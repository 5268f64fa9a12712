"""The message service of a leader: checked, numbered and deduplicated puts."""
