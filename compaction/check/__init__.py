"""Checks a table."""
