"""The change feed: what commits changed, cut into units. A task, a stream or a follower takes one unit at a time."""
