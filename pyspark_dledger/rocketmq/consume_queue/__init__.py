"""ConsumeQueues: units, files, and writing them."""
