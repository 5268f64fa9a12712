"""Programs for the developers of this project."""
