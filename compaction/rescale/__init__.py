"""Changing the number of buckets."""
