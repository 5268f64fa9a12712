"""The log for engines that read Arrow: DuckDB, Polars, pandas, pyarrow."""
