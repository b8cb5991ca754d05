"""Filters: from a SQL condition or an Arrow expression to rows, and to files that need not be read."""
