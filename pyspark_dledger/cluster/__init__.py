"""Running RocketMQ clusters: name servers, routes, offsets of queues, and messages as their brokers send them.

Spark's part is in `spark.cluster`.
"""
