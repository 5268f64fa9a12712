"""A store's files, local or remote: where they are, and direct reads of single entries and units."""
