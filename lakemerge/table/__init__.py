"""A table: how it is opened, made, altered and described, and what a user calls (:mod:`lakemerge.table.table`)."""
