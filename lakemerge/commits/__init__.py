"""The commits that a table knows, and the one way to make them."""
