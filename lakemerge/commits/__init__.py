"""All kinds of commits of a table, and the one way to make them."""
