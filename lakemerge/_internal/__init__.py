"""Helpers that the library's packages share. They are not public."""
