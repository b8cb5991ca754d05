"""The mergers that come with LakeMerge. Each has a fixed strategy id."""
