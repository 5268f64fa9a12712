"""Prometheus metrics and health of a node, on an HTTP address of their own."""
