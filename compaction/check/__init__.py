"""Checking a table."""
