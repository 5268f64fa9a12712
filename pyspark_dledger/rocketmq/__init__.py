"""RocketMQ around the log: its ConsumeQueue, IndexFile and config, and what the broker does with them."""
