"""The command line ``dledger``: the library's own reader in a shell, without Spark."""
