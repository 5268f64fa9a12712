"""Reading stores and printing their rows."""
