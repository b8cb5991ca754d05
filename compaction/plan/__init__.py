"""Planning a compaction."""
