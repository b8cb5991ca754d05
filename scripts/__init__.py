"""Programs of the Makefile."""
