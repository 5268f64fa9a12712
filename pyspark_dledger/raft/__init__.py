"""Election and replication: a pure core, the wire, the node that joins both to a store, and the client."""
