"""Raft groups: the core (a state machine), the wire protocol, the node that runs both with a store, and the client."""
