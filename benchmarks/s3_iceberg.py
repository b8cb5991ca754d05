"""The process of Iceberg in the benchmark of object storage: it does what lines of JSON ask, on Spark.

    python -m benchmarks.s3_iceberg s3://bucket/namespace ENDPOINT KEY SECRET SCRATCH

It runs in the environment that ``make bench`` makes for Iceberg. Iceberg's own S3 client does all requests. The catalog
is a local SQLite file. So what a catalog service would be asked is not counted, as if it cost nothing. Caches of tables
are off: each step asks the store for what it needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare import iceberg
from benchmarks.compare.on_spark import pruned, session
from benchmarks.compare.queries import normalised
from benchmarks.tpch import LINEITEM

__all__ = ["main"]

_CATALOG, _TABLE = "store", "store.bench.lines"
_MERGE = (
    "MERGE INTO {table} t USING source s ON {keys} WHEN MATCHED AND s.{ordering} >= t.{ordering} "
    "THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
)


def main(arguments: Sequence[str]) -> None:
    url, endpoint, key, secret, scratch = arguments
    catalog = f"spark.sql.catalog.{_CATALOG}"
    settings: Mapping[str, str] = {
        "spark.sql.extensions": iceberg.SETTINGS["spark.sql.extensions"],
        "spark.jars.packages": f"{iceberg.JAR},{iceberg.AWS_JAR},{iceberg.SQLITE_JAR}",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{catalog}.uri": f"jdbc:sqlite:{scratch}/catalog.db",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{catalog}.warehouse": url,
        f"{catalog}.cache-enabled": "false",
        f"{catalog}.s3.endpoint": endpoint,
        f"{catalog}.s3.path-style-access": "true",
        f"{catalog}.s3.access-key-id": key,
        f"{catalog}.s3.secret-access-key": secret,
        f"{catalog}.client.region": "us-east-1",
    }
    Path(scratch).mkdir(parents=True, exist_ok=True)
    spark = session(Path(scratch), settings)

    def rows(path: str) -> Any:
        return spark.read.schema(LINEITEM.ddl).parquet(path)

    def load(path: str, file_bytes: int) -> None:
        rows(path).createOrReplaceTempView("source")
        properties = {**iceberg.PROPERTIES, "write.target-file-size-bytes": str(file_bytes)}
        told = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"CREATE NAMESPACE {_TABLE.rpartition('.')[0]}")
        spark.sql(f"CREATE TABLE {_TABLE} USING iceberg TBLPROPERTIES ({told}) AS SELECT * FROM source")

    def upsert(path: str) -> None:
        rows(path).createOrReplaceTempView("source")
        keys = " AND ".join(f"t.{name} = s.{name}" for name in LINEITEM.key)
        spark.sql(_MERGE.format(table=_TABLE, keys=keys, ordering=LINEITEM.ordering))

    def answer(columns: Sequence[str], condition: str | None, over: str) -> object:
        found = pruned(spark.table(_TABLE), columns, condition)
        if not over:
            # Every row with all columns, as the other comparison takes them.
            return normalised([[found._jdf.queryExecution().toRdd().count()]])
        found.createOrReplaceTempView("answered")
        return normalised(spark.sql(over).collect())

    def compact() -> None:
        options = "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
        spark.sql(
            f"CALL {_CATALOG}.system.rewrite_data_files(table => '{_TABLE.partition('.')[2]}', options => {options})"
        )

    calls: Mapping[str, Callable[..., object]] = {
        "ready": lambda: None,
        "load": load,
        "open": lambda: len(spark.table(_TABLE).schema),
        "upsert": upsert,
        "answer": answer,
        "compact": compact,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps({"answer": calls[asked.pop("do")](**asked)}), flush=True)  # noqa: T201 - the parent reads it


if __name__ == "__main__":
    main(sys.argv[1:])
