"""RocketMQ's files around the log: ConsumeQueue, IndexFile and config, and what a broker does with them."""
