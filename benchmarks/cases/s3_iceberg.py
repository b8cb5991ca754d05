"""Iceberg in the benchmark of object storage, on Spark, in the environment that ``make bench`` makes for it.

Iceberg's own S3 client does all requests. The catalog is a local SQLite file. So what a catalog service would be asked
is not counted, as if it cost nothing. Caches of tables are off: each step asks the store for what it needs.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.compare import iceberg
from benchmarks.compare.engine import Place
from benchmarks.compare.on_spark import session

__all__ = ["Table"]

_CATALOG, _BELOW = "store", "bench.lines"


class Table(iceberg.Iceberg):
    """The one table of a bucket."""

    def __init__(self, url: str, endpoint: str, key: str, secret: str, scratch: str) -> None:
        catalog = {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            "uri": f"jdbc:sqlite:{scratch}/catalog.db",
            "jdbc.schema-version": "V1",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "warehouse": url,
            "cache-enabled": "false",
            "s3.endpoint": endpoint,
            "s3.path-style-access": "true",
            "s3.access-key-id": key,
            "s3.secret-access-key": secret,
            "client.region": "us-east-1",
        }
        prefix = f"spark.sql.catalog.{_CATALOG}"
        settings = {
            "spark.sql.extensions": iceberg.SETTINGS["spark.sql.extensions"],
            "spark.jars.packages": f"{iceberg.JAR},{iceberg.AWS_JAR},{iceberg.SQLITE_JAR}",
            prefix: "org.apache.iceberg.spark.SparkCatalog",
            **{f"{prefix}.{name}": value for name, value in catalog.items()},
        }
        Path(scratch).mkdir(parents=True, exist_ok=True)
        super().__init__(session(Path(scratch), settings))
        self.spark.sql(f"CREATE NAMESPACE {_CATALOG}.{_BELOW.partition('.')[0]}")

    def table(self, place: Place) -> str:
        return f"{_CATALOG}.{_BELOW}"

    def open(self, place: Place) -> int:
        return len(self.spark.table(self.table(place)).schema)

    def update_where(self, place: Place, assignment: str, condition: str) -> None:
        self.spark.sql(f"UPDATE {self.table(place)} SET {assignment} WHERE {condition}")

    def delete_where(self, place: Place, condition: str) -> None:
        self.spark.sql(f"DELETE FROM {self.table(place)} WHERE {condition}")

    def _rewrite(self, place: Place, options: str) -> None:
        self.spark.sql(f"CALL {_CATALOG}.system.rewrite_data_files(table => '{_BELOW}'{options})")
