"""What rooms share that must not import each other: durable files, log records, options."""
