"""The Spark data source ``dledger``; nothing outside this package imports pyspark."""
