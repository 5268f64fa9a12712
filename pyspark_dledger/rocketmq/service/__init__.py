"""The message service of a leader: checked, numbered and deduplicated puts, and what a member keeps for them."""
