"""Dispatch: builds ConsumeQueues and IndexFiles from committed messages."""
