"""A broker's configuration and state files."""
