"""What a store's other files know about the entries of a damaged segment."""
