"""Reading the Parquet files of a table."""
