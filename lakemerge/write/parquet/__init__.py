"""Writing the Parquet files of a table."""
