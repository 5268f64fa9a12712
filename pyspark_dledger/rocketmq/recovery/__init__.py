"""A read-only model of a RocketMQ broker's recovery."""
