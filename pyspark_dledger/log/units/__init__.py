"""Dispatched units, which a broker makes of messages, and stored units, which its files have: one comparison."""
