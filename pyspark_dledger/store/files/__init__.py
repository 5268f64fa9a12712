"""The files of a store that this process writes."""
