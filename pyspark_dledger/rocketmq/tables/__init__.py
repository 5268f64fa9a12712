"""The registry of tables, and the tables `audit` and `consumers`."""
