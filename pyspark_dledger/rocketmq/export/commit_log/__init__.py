"""The export form ``commitlog``: a store for a broker without DLedger."""
