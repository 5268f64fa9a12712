"""A broker's files other than the log: configuration, state, ConsumeQueues and IndexFiles."""
