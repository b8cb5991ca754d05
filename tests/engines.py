"""Other engines, as tests use them."""

from __future__ import annotations

from importlib import resources

import duckdb

__all__ = ["duckdb_with_delta"]


def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """A connection that knows ``delta_scan``. Its extension comes from a package, because tests have no network."""
    package = resources.files("duckdb_extension_delta")
    extension = package / "extensions" / f"v{duckdb.__version__}" / "delta.duckdb_extension"
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    with resources.as_file(extension) as path:
        connection.execute(f"LOAD '{path}'")
    return connection
