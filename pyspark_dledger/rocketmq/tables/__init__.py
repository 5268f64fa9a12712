"""The registry of tables, and the tables of a broker's files."""
