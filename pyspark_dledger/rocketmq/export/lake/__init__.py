"""Appends what was committed since the last run to an Iceberg or a Delta table, exactly once."""
