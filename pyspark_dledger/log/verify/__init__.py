"""What is wrong with a store: the catalogue (`findings`), the checks, and what runs them all (`store`)."""
