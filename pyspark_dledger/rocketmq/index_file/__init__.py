"""RocketMQ's IndexFile: the index of message keys."""
