"""What happens to messages after they are sent: transactions, timers, pops, retries, and the trace of one message."""
