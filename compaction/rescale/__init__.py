"""Changes the number of buckets."""
