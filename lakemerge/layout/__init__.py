"""Where a table's rows stand: buckets, file slices, and the files that a version refers to."""
