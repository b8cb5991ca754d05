"""What a new user does first, with an installed package: a table without Spark, one with it, and one in a catalog, each
read in all ways. Spark 4.0 only reads, and refuses the rest by name.

Run by ``scripts/matrix.sh`` and ``scripts/release.py`` in environments that hold the built wheel and nothing of this
repository. ``--spark`` tries Spark, too, ``--extra NAME`` what an extra is for, and ``--frames`` pandas and polars.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import lakemerge
from lakemerge import DependencyMissingError, LakeTable
from lakemerge.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

ROWS = [(1, 10, "late"), (2, 20, "two"), (1, 30, "newest"), (1, 20, "older")]
EXPECTED = [(1, 30, "newest"), (2, 20, "two")]
DDL = "id BIGINT, at BIGINT, name STRING"
WRITES = (
    "INSERT INTO lake.db.t VALUES (3, 10, 'three')",
    "INSERT OVERWRITE lake.db.t VALUES (3, 10, 'three')",
    "UPDATE lake.db.t SET name = 'upd', at = 40 WHERE id = 1",
    """MERGE INTO lake.db.t t USING (SELECT 2L AS id, 50L AS at, 'mrg' AS name UNION ALL SELECT 5L, 50L, 'five') s
    ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *""",
    "DELETE FROM lake.db.t WHERE id = 3",
    "DELETE FROM lake.db.t",
    "TRUNCATE TABLE lake.db.t",
    "CREATE TABLE lake.db.copy TBLPROPERTIES ('key' = 'id') AS SELECT * FROM lake.db.t",
)
"""Statements that write rows. A Spark that only reads refuses each."""


CLOUDS = {
    "s3": ("s3://bucket/t", "s3fs"),
    "gcs": ("gs://bucket/t", "gcsfs"),
    "azure": ("az://container/t", "adlfs"),
}
"""A URL and the package that an extra brings for it."""
AZURITE = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;BlobEndpoint=http://localhost:1/a;"
"""An account that nobody asks."""


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def check(rows: Sequence[tuple[object, ...]], what: str, expected: Sequence[tuple[object, ...]] = EXPECTED) -> None:
    if rows != expected:
        sys.exit(f"{what}: {rows} is not {expected}")


def without_spark(folder: Path) -> None:
    table = LakeTable.create(folder, "id BIGINT, at BIGINT, name STRING", key=["id"], ordering=["at"])
    for row in ROWS:
        table.upsert(pa.Table.from_pylist([dict(zip(table.schema.names, row, strict=True))], schema=table.schema))
    check(rows_of(table.to_arrow()), "merged rows without Spark")
    table.compact()
    check(rows_of(LakeTable.open(folder).to_arrow()), "compacted rows without Spark")


def with_spark(spark: SparkSession, folder: Path) -> None:
    # The environment is not activated, and PYSPARK_PYTHON is not set: create(spark=...) has to mend that.
    table = LakeTable.create(folder, DDL, key=["id"], ordering=["at"], spark=spark)
    for row in ROWS:
        table.upsert(spark.createDataFrame([row], DDL))
    check(sorted(map(tuple, table.to_df().collect())), "merged rows with Spark")
    table.compact()
    check(sorted(map(tuple, table.to_df().collect())), "compacted rows with Spark")
    loaded = spark.read.format("lakemerge").load(str(folder))
    check(sorted(map(tuple, loaded.collect())), "rows of the data source")
    loaded.where("id = 2").write.format("lakemerge").mode("append").save(str(folder))
    changes = spark.readStream.format("lakemerge").option("readChangeFeed", "true").option("startingVersion", 1)
    copy = LakeTable.create(f"{folder}-copy", DDL, key=["id"], ordering=["at"], spark=spark)
    told = changes.load(str(folder)).select("id", "at", "name", "_change_type")
    copy.write_stream(told, checkpoint=f"{folder}-checkpoint", kind_column="_change_type").awaitTermination()
    check(rows_of(copy.to_arrow()), "rows of a table that follows")


def with_catalog(spark: SparkSession, warehouse: Path) -> None:
    """A round of SQL."""
    lakemerge.catalog(spark, "lake", warehouse=warehouse)

    def sql(statement: str) -> list[tuple[object, ...]]:
        return [tuple(row) for row in spark.sql(statement).collect()]

    sql("CREATE NAMESPACE lake.db")
    sql(f"CREATE TABLE lake.db.t ({DDL}) USING lakemerge TBLPROPERTIES ('key' = 'id', 'ordering' = 'at')")
    table = LakeTable.open(warehouse / "db" / "t")
    schema = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
    for row in ROWS:  # one commit each, so that versions are 1 to 4
        table.upsert(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True))], schema=schema))
    check(sorted(sql("SELECT * FROM lake.db.t")), "rows of the catalog")
    check(sorted(sql(f"TABLE lakemerge.`{warehouse}/db/t`")), "rows of the catalog of paths")
    check(
        sorted(sql("SELECT * FROM lake.db.t VERSION AS OF 2 WHERE id = 1 UNION ALL SELECT 1, 30, 'newest'")),
        "an earlier version",
        [(1, 10, "late"), (1, 30, "newest")],
    )
    check(sql("SELECT name FROM lake.db.t WHERE id = 2 AND at > 5"), "a filter", [("two",)])
    check(sql("SHOW TABLES IN lake.db"), "the tables", [("db", "t", False)])
    loaded = spark.read.format("lakemerge").load(str(warehouse / "db" / "t"))
    check(sorted(map(tuple, loaded.collect())), "rows of the data source beside a catalog")
    check(sorted(map(tuple, LakeTable.open(warehouse / "db" / "t").to_df().collect())), "rows of to_df")
    refuses(spark, "CREATE TABLE of_session (id BIGINT) USING lakemerge", "spark_catalog has no LakeMerge tables")
    if can_write(spark):
        writes(spark, warehouse)
    else:
        for statement in WRITES:
            refuses(spark, statement, f"needs Spark 4.1 or newer, and this is {spark.version}")
        check(sorted(sql("SELECT * FROM lake.db.t")), "rows that nothing has changed")
    sql("ALTER TABLE lake.db.t ADD COLUMN note STRING")
    check(sql("SELECT note FROM lake.db.t WHERE id = 1"), "an added column", [(None,)])
    compacted = {row[0] for row in sql("CALL lake.system.compact(table => 'db.t')")}
    if "file_slices" not in compacted:
        sys.exit(f"CALL compact said {compacted}")
    sql("DROP TABLE lake.db.t")
    check(sql("SHOW TABLES IN lake.db"), "the tables after a drop", [])


def writes(spark: SparkSession, warehouse: Path) -> None:
    insert, overwrite, update, merge, delete, _, truncate, copy = WRITES

    def rows(table: str = "t") -> list[tuple[object, ...]]:
        return sorted(tuple(row) for row in spark.table(f"lake.db.{table}").collect())

    for statement in (insert, update, merge):
        spark.sql(statement)
    merged = [(1, 40, "upd"), (2, 50, "mrg"), (3, 10, "three"), (5, 50, "five")]
    check(rows(), "rows after INSERT, UPDATE and MERGE", merged)
    spark.sql(copy)
    check(rows("copy"), "rows of CREATE TABLE AS SELECT", merged)
    spark.sql("DROP TABLE lake.db.copy")
    spark.sql(delete)
    check(rows(), "rows after DELETE", [row for row in merged if row[0] != 3])
    spark.sql(truncate)
    check(rows(), "rows after TRUNCATE", [])
    spark.sql(overwrite)
    check(rows(), "rows after INSERT OVERWRITE", [(3, 10, "three")])
    spark.sql("INSERT INTO lake.db.t VALUES (1, 60, 'last')")
    check(rows(), "rows at the end", [(1, 60, "last"), (3, 10, "three")])


def only_reads(spark: SparkSession, folder: Path) -> None:
    """What Spark 4.0 does with a table that was written without it."""
    try:
        LakeTable.open(folder, spark=spark)
    except DependencyMissingError as error:
        if "needs PySpark 4.1 or newer" not in str(error):
            sys.exit(f"open with a session was refused with: {error}")
    else:
        sys.exit("open with a session was not refused")


def with_extra(extra: str, folder: Path) -> None:
    """What an extra is for, on the table of :func:`without_spark` where it needs one."""
    table = LakeTable.open(folder / "arrow")
    if extra == "cli":
        command = Path(sys.executable).parent / "lakemerge"
        out = subprocess.run([command, "show", folder / "arrow", "--json"], check=True, capture_output=True).stdout  # noqa: S603
        check([(json.loads(out)["version"],)], "the version that the command line shows", [(table.version,)])
    elif extra == "query":
        found = table.query('SELECT * FROM self WHERE "at" > 20')
        check(rows_of(found), "rows of a query", EXPECTED[:1])
        found = table.query('SELECT * FROM self WHERE "at" > 20', sandbox=True)
        check(rows_of(found), "rows of a query from outside", EXPECTED[:1])
    elif extra == "ingest":
        with_avro(table, folder)
    elif extra == "sketches":
        with_sketches(folder)
    elif extra == "openlineage":
        with_openlineage(table, folder)
    elif extra == "testing":
        from lakemerge.testing import fixtures

        check([(callable(fixtures.lake),)], "the fixture for tests", [(True,)])
    else:
        url, package = CLOUDS[extra]
        importlib.import_module(package)
        options = {"connection_string": AZURITE} if extra == "azure" else {}
        check([(open_store(url, options).url,)], "the store of a URL", [(url,)])


def with_openlineage(table: LakeTable, folder: Path) -> None:
    from openlineage.client import OpenLineageClient

    from lakemerge.openlineage import emit

    told = folder / "events"
    end = emit(OpenLineageClient(config={"transport": {"type": "file", "log_file_path": str(told), "append": True}}))
    table.compact()
    end()
    events = [json.loads(line) for line in told.read_text().splitlines()]
    check([(event["eventType"],) for event in events], "events of a compaction", [("START",), ("COMPLETE",)])


def with_frames(folder: Path) -> None:
    """Frames of what is installed beside the wheel: pandas 3, which Spark does not take yet, and polars."""
    import pandas as pd
    import polars as pl

    columns = {"id": [1, 2], "at": [10, 20], "name": ["one", "two"]}
    for frame in (pd.DataFrame(columns), pl.DataFrame(columns)):
        name = type(frame).__module__.partition(".")[0]
        table = LakeTable.create(folder / name, DDL, key=["id"], ordering=["at"])
        table.upsert(frame)
        check(rows_of(table.to_arrow()), f"rows of {name}", [(1, 10, "one"), (2, 20, "two")])


def with_avro(table: LakeTable, folder: Path) -> None:
    import fastavro

    from lakemerge.ingest import Files

    landing = folder / "landing"
    landing.mkdir()
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}, {"name": "name", "type": "string"}]
    with (landing / "one.avro").open("wb") as file:
        schema = {"type": "record", "name": "row", "fields": fields}
        fastavro.writer(file, schema, [{"id": 2, "at": 30, "name": "landed"}])
    table.ingest("landing", Files(landing, format="avro")).run()
    check(rows_of(table.to_arrow()), "rows after an Avro file", [EXPECTED[0], (2, 30, "landed")])


def with_sketches(folder: Path) -> None:
    import datasketches

    fields = {"aggregates": {"seen": "theta_sketch"}}
    schema = "id BIGINT, seen BINARY"
    table = LakeTable.create(folder / "sketches", schema, key=["id"], merger="aggregate", options=fields)
    for name in ("one", "two", "two"):
        sketch = datasketches.update_theta_sketch()
        sketch.update(name)
        table.upsert(pa.table({"id": [1], "seen": [sketch.compact().serialize()]}, table.schema))
    [state] = table.to_arrow()["seen"].to_pylist()
    check([(datasketches.compact_theta_sketch.deserialize(state).get_estimate(),)], "a sketch of names", [(2.0,)])


def refuses(spark: SparkSession, statement: str, message: str) -> None:
    from pyspark.errors import AnalysisException

    try:
        spark.sql(statement)
    except AnalysisException as error:
        if message in str(error):
            return
        sys.exit(f"{statement!r} was refused with: {error}")
    sys.exit(f"{statement!r} was not refused")


def can_write(spark: SparkSession) -> bool:
    return not spark.version.startswith("4.0.")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        without_spark(Path(folder) / "arrow")
        if "--extra" in sys.argv:
            with_extra(sys.argv[sys.argv.index("--extra") + 1], Path(folder))
        if "--frames" in sys.argv:
            with_frames(Path(folder))
        if "--spark" not in sys.argv:
            return
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
        if can_write(spark):
            with_spark(spark, Path(folder) / "spark")
        else:
            only_reads(spark, Path(folder) / "arrow")
        with_catalog(spark, Path(folder) / "lake")
        spark.stop()


if __name__ == "__main__":
    main()
