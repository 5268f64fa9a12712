"""What a store does with the files that it finds when it starts."""
