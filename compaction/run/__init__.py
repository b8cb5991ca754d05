"""Runs a plan: merges, commits, reports."""
