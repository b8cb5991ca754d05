"""Where a table's rows stand: buckets, file buckets, and the files that a version refers to."""
