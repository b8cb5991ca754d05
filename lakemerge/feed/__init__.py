"""The change feed: what commits changed, cut into units that a task, a stream or a follower takes one at a time."""
