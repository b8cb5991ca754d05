"""The values that the calls of a table return."""
