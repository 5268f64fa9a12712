"""A leader's work: appends, heartbeats, replication, reads, leadership transfer."""
