"""The writing side: a log on disk or in memory that one process owns, in the bytes of the Java DLedger."""
