"""Tables as a data source of Spark: ``format("lakemerge")`` for batches and streams, and streams into a table."""
