"""The Spark data source ``dledger``; nothing outside this package imports pyspark."""

NEEDS_PYSPARK = "needs PySpark 4.0 or newer: pip install 'pyspark>=4.0,<5' (the extra spark)"
