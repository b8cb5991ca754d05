"""Builds the documentation site: pages generated from code, and the checks of `make docs`."""
