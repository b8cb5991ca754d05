"""DuckDB with one of its extensions."""

from __future__ import annotations

from importlib import resources

import duckdb

__all__ = ["duckdb_with"]


def duckdb_with(extension: str) -> duckdb.DuckDBPyConnection:
    """A connection with the extension, such as ``delta``. It comes from a package such as ``duckdb_extension_delta``:
    DuckDB would get it from the network."""
    package = resources.files(f"duckdb_extension_{extension}")
    built = package / "extensions" / f"v{duckdb.__version__}" / f"{extension}.duckdb_extension"
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    with resources.as_file(built) as path:
        connection.execute(f"LOAD '{path}'")
    return connection
