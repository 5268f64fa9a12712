"""Loading and recovery of a store when it starts."""
