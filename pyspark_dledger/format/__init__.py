"""What the bytes mean: layouts, the reference codec, and the two engines behind the same calls."""
