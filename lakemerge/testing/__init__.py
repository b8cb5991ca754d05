"""Suites and doubles for those who extend LakeMerge; they need pytest."""
