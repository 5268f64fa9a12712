"""What the verbs about a running group share."""
