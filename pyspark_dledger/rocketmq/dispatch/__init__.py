"""Dispatch: ConsumeQueues and IndexFile from committed messages."""
