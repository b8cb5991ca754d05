"""What a new user does first, with an installed package: a table without Spark and one with it, read both ways.

Run by ``scripts/matrix.sh`` in environments that hold the built wheel and nothing of this repository.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from lakemerge import LakeTable

ROWS = [(1, 10, "late"), (2, 20, "two"), (1, 30, "newest"), (1, 20, "older")]
EXPECTED = [(1, 30, "newest"), (2, 20, "two")]


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def check(rows: list[tuple[object, ...]], what: str) -> None:
    if rows != EXPECTED:
        sys.exit(f"{what}: {rows} is not {EXPECTED}")


def without_spark(folder: Path) -> None:
    table = LakeTable.create(folder, "id BIGINT, at BIGINT, name STRING", key=["id"], ordering=["at"])
    for row in ROWS:
        table.upsert(pa.Table.from_pylist([dict(zip(table.schema.names, row, strict=True))], schema=table.schema))
    check(rows_of(table.to_arrow()), "merged rows without Spark")
    table.compact()
    check(rows_of(LakeTable.open(folder).to_arrow()), "compacted rows without Spark")


def with_spark(folder: Path) -> None:
    from pyspark.sql import SparkSession

    # The environment is not activated, and PYSPARK_PYTHON is not set: create(spark=...) has to mend that.
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    ddl = "id BIGINT, at BIGINT, name STRING"
    table = LakeTable.create(folder, ddl, key=["id"], ordering=["at"], spark=spark)
    for row in ROWS:
        table.upsert(spark.createDataFrame([row], ddl))
    check(sorted(map(tuple, table.to_df().collect())), "merged rows with Spark")
    table.compact()
    check(sorted(map(tuple, table.to_df().collect())), "compacted rows with Spark")
    loaded = spark.read.format("lakemerge").load(str(folder))
    check(sorted(map(tuple, loaded.collect())), "rows of the data source")
    loaded.where("id = 2").write.format("lakemerge").mode("append").save(str(folder))
    changes = spark.readStream.format("lakemerge").option("readChangeFeed", "true").option("startingVersion", 1)
    copy = LakeTable.create(f"{folder}-copy", ddl, key=["id"], ordering=["at"], spark=spark)
    told = changes.load(str(folder)).select("id", "at", "name", "_change_type")
    copy.write_stream(told, checkpoint=f"{folder}-checkpoint", kind_column="_change_type").awaitTermination()
    check(rows_of(copy.to_arrow()), "rows of a table that follows")
    spark.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        without_spark(Path(folder) / "arrow")
        if "--spark" in sys.argv:
            with_spark(Path(folder) / "spark")


if __name__ == "__main__":
    main()
