"""Test suites and test doubles for those who extend LakeMerge. They need pytest."""
