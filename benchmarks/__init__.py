"""Runs that measure LakeMerge, each checked against an answer computed without it."""
