"""Every name and codec of what a table holds on disk (docs/table-format.md)."""
