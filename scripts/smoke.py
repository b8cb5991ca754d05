"""What a new user does first, with an installed package: a table without Spark and one with it, read both ways.

Run by ``scripts/matrix.sh`` in environments that hold the built wheel and nothing of this repository.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from lakemerge import LakeTable

ROWS = [(1, 10, "late"), (2, 20, "two"), (1, 30, "newest"), (1, 20, "older")]
EXPECTED = [(1, 30, "newest"), (2, 20, "two")]


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def without_spark(folder: Path) -> None:
    table = LakeTable.create(folder, "id BIGINT, at BIGINT, name STRING", key=["id"], ordering=["at"])
    for row in ROWS:
        table.upsert(pa.Table.from_pylist([dict(zip(table.schema.names, row, strict=True))], schema=table.schema))
    assert rows_of(table.to_arrow()) == EXPECTED
    table.compact()
    assert rows_of(LakeTable.open(folder).to_arrow()) == EXPECTED


def with_spark(folder: Path) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    ddl = "id BIGINT, at BIGINT, name STRING"
    table = LakeTable.create(folder, ddl, key=["id"], ordering=["at"], spark=spark)
    for row in ROWS:
        table.upsert(spark.createDataFrame([row], ddl))
    assert sorted(map(tuple, table.to_df().collect())) == EXPECTED
    assert sorted(map(tuple, spark.read.format("lakemerge").load(str(folder)).collect())) == EXPECTED
    table.compact()
    assert sorted(map(tuple, table.to_df().collect())) == EXPECTED
    spark.stop()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        without_spark(Path(folder) / "arrow")
        if "--spark" in sys.argv:
            with_spark(Path(folder) / "spark")


if __name__ == "__main__":
    main()
