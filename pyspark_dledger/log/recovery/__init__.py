"""A model of what the Java store does when it is opened, for each version."""
