"""Erases keys from a table and from what it remembers."""
