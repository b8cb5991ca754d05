"""Every statement that the page lists as refused is refused at once, by name, and changes nothing; others run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from lakemerge import LakeTable
from tests.guides import text_of
from tests.spark.connector.lake import Lake, is_from_4_2

KEY = "TBLPROPERTIES ('key' = 'id')"
OURS, SCHEMA, INPUT = "LAKEMERGE_UNSUPPORTED", "LAKEMERGE_SCHEMA", "LAKEMERGE_INPUT"
FEATURE = "UNSUPPORTED_FEATURE.TABLE_OPERATION"
PARTITIONS = "INVALID_PARTITION_OPERATION.PARTITION_MANAGEMENT_IS_UNSUPPORTED"
V1_ONLY = "NOT_SUPPORTED_COMMAND_FOR_V2_TABLE"
VIEWS = "MISSING_CATALOG_ABILITY.VIEWS"
REFUSED = {
    f"CREATE TABLE {{}}.db.x (id INT) USING delta {KEY}": (INPUT, "write USING lakemerge"),
    f"CREATE TABLE {{}}.db.x (id INT) USING parquet {KEY}": (INPUT, "write USING lakemerge"),
    f"CREATE TABLE {{}}.db.x (id INT, at DATE) PARTITIONED BY (days(at)) {KEY}": (OURS, "without a function"),
    f"CREATE TABLE {{}}.db.x (id INT, v INT) PARTITIONED BY (v) {KEY}": (SCHEMA, "must be a key column"),
    f"CREATE TABLE {{}}.db.x (id INT) CLUSTERED BY (id) INTO 4 BUCKETS {KEY}": (OURS, "without a function"),
    f"CREATE TABLE {{}}.db.x (id INT) CLUSTER BY (id) {KEY}": (OURS, "cluster_by"),
    f"CREATE TABLE {{}}.db.x (id INT) LOCATION '/tmp/x' {KEY}": (INPUT, "leave out LOCATION"),
    f"CREATE EXTERNAL TABLE {{}}.db.x (id INT) {KEY}": (INPUT, "EXTERNAL"),
    f"CREATE TABLE {{}}.db.x (id INT) OPTIONS (a 'b') {KEY}": (INPUT, "use TBLPROPERTIES"),
    f"CREATE TABLE {{}}.db.x (id INT, v INT DEFAULT 3) {KEY}": (FEATURE, "default value"),
    f"CREATE TABLE {{}}.db.x (id INT, v INT GENERATED ALWAYS AS (id + 1)) {KEY}": (FEATURE, "generated columns"),
    f"CREATE TABLE {{}}.db.x (id BIGINT GENERATED ALWAYS AS IDENTITY) {KEY}": (FEATURE, "identity column"),
    f"CREATE TABLE {{}}.a.b.x (id INT) {KEY}": (INPUT, "not nested"),
    f"CREATE TABLE {{}}.db.x (id INT, v VARIANT) {KEY}": (SCHEMA, "variant"),
    f"CREATE TABLE {{}}.db.x (id INT, v STRING COLLATE UTF8_LCASE) {KEY}": (SCHEMA, "collated"),
    "ALTER TABLE {}.db.t ADD COLUMN d INT DEFAULT 3": (OURS, "no default values"),
    "ALTER TABLE {}.db.t ALTER COLUMN n SET DEFAULT 3": (OURS, "no default values"),
    "ALTER TABLE {}.db.t ALTER COLUMN n DROP DEFAULT": (OURS, "no default values"),
    "ALTER TABLE {}.db.t ALTER COLUMN n SET NOT NULL": ("_LEGACY_ERROR_TEMP_2330", "non-nullable"),
    "ALTER TABLE {}.db.t ALTER COLUMN n TYPE INT": ("NOT_SUPPORTED_CHANGE_COLUMN", "."),
    "ALTER TABLE {}.db.t CLUSTER BY (id)": (OURS, "ClusterBy"),
    "ALTER TABLE {}.db.t SET LOCATION '/tmp/x'": (SCHEMA, "'location' cannot be changed"),
    "ALTER TABLE {}.db.t SET TBLPROPERTIES ('key' = 'n')": (SCHEMA, "'key' cannot be changed"),
    "ALTER TABLE {}.db.t SET TBLPROPERTIES ('buckets' = '4')": (SCHEMA, "rescale"),
    "ALTER TABLE {}.db.t ADD PARTITION (n = 1)": (PARTITIONS, "partition management"),
    "SHOW PARTITIONS {}.db.t": (PARTITIONS, "partition management"),
    "TRUNCATE TABLE {}.db.t PARTITION (n = 1)": (PARTITIONS, "partition management"),
    "MSCK REPAIR TABLE {}.db.t": (V1_ONLY, "."),
    "LOAD DATA INPATH '/tmp/x' INTO TABLE {}.db.t": (V1_ONLY, "."),
    "ANALYZE TABLE {}.db.t COMPUTE STATISTICS": (V1_ONLY, "."),
    "CREATE VIEW {}.db.v AS SELECT * FROM {}.db.t": (VIEWS, "does not support views"),
    "CREATE INDEX i ON {}.db.t (n)": ("_LEGACY_ERROR_TEMP_1332", "CreateIndex"),
    "SELECT * FROM {}.db.t.branch_main": (INPUT, "not nested"),
    "ALTER NAMESPACE {}.db SET PROPERTIES ('a' = 'b')": (OURS, "no properties"),
    "INSERT INTO {}.db.`t$history` SELECT * FROM {}.db.`t$history`": (FEATURE, "."),
    "DELETE FROM {}.db.`t$history`": ("_LEGACY_ERROR_TEMP_1121", "does not support deletes"),
}
FROM_4_1 = {
    f"CREATE TABLE {{}}.db.x (id INT PRIMARY KEY) {KEY}": (OURS, "CHECK constraints only"),
    f"CREATE TABLE {{}}.db.x (id INT, v INT UNIQUE) {KEY}": (OURS, "CHECK constraints only"),
    f"CREATE TABLE {{}}.db.x (id INT REFERENCES {{}}.db.t (id)) {KEY}": (OURS, "CHECK constraints only"),
    "ALTER TABLE {}.db.t ADD PRIMARY KEY (id)": (OURS, "CHECK constraints only"),
    (
        "MERGE WITH SCHEMA EVOLUTION INTO {}.db.t t USING (SELECT 1L AS id, 'q' AS extra) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET *"
    ): ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "."),
}


def test_statements_that_are_refused(lake: Lake, spark: SparkSession) -> None:
    table = lake.made()
    wrong = []
    # Spark 4.1 does not know the statement for tables of a catalog.
    like = {"CREATE TABLE {}.db.x LIKE {}.db.t": (None if is_from_4_2(spark) else "PARSE_SYNTAX_ERROR", "LIKE")}
    for statement, (condition, message) in {**REFUSED, **FROM_4_1, **like}.items():
        try:
            lake(statement)
        except PySparkException as error:
            if error.getCondition() != condition or not re.search(message, str(error)):
                wrong.append(f"{statement}: {error.getCondition()} {str(error)[:200]}")
        else:
            wrong.append(f"{statement}: not refused")
    assert not wrong, "\n".join(wrong)
    assert lake("SHOW TABLES IN {}.db") == [("db", "t", False)]
    assert table.version == 1


def test_statements_that_run(lake: Lake, spark: SparkSession) -> None:
    lake.made()
    for statement in (
        "SHOW TABLE EXTENDED IN {}.db LIKE '*'", "SHOW COLUMNS IN {}.db.t", "SHOW PROCEDURES IN {}.system",
        "DESCRIBE PROCEDURE {}.system.compact", "DESCRIBE TABLE EXTENDED {}.db.t", "DESCRIBE TABLE {}.db.t state",
        "CACHE TABLE {}.db.t", "UNCACHE TABLE {}.db.t", "REFRESH TABLE {}.db.t",
        "EXPLAIN EXTENDED MERGE INTO {}.db.t t USING {}.db.t s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ):  # fmt: skip
        lake(statement)
    lake("INSERT INTO {}.db.t BY NAME SELECT 4 AS id, 5 AS at")
    lake("INSERT INTO {}.db.t (id, at) SELECT 5, 5")
    lake("INSERT INTO {}.db.t TABLE {}.db.t")
    assert [row[0] for row in lake.rows] == [1, 2, 3, 4, 5]
    lake("CREATE OR REPLACE TEMPORARY VIEW few AS SELECT * FROM {}.db.t WHERE id < 3")
    lake("DELETE FROM {}.db.t WHERE id IN (SELECT id FROM few)")
    assert [row[0] for row in lake.rows] == [3, 4, 5]
    lake("USE {}.db")
    try:
        assert lake("SELECT count(*) FROM t") == [(3,)]
        lake("ALTER TABLE t RENAME TO v")
        lake("ALTER TABLE v RENAME TO db.u")
    finally:
        lake("USE spark_catalog.default")
    assert lake("SHOW TABLES IN {}.db") == [("db", "u", False)]
    lake("CREATE NAMESPACE {}.other")
    lake("ALTER TABLE {}.db.u RENAME TO {}.other.t")
    assert lake("SELECT count(*) FROM {}.other.t VERSION AS OF 1") == [(3,)]
    lake.refused("SELECT * FROM {}.db.u", "TABLE_OR_VIEW_NOT_FOUND")
    lake.made()
    lake.refused("ALTER TABLE {}.db.t RENAME TO {}.other.t", "TABLE_OR_VIEW_ALREADY_EXISTS")
    lake.refused("ALTER TABLE {}.db.none RENAME TO {}.db.x", "TABLE_OR_VIEW_NOT_FOUND")
    lake.refused("ALTER TABLE {}.db.t RENAME TO {}.nowhere.t", "SCHEMA_NOT_FOUND")


def test_what_the_table_asks_for_follows_each_write(lake: Lake, spark: SparkSession) -> None:
    """Other engines see each write as soon as it returns, however it was written."""
    lake.made(**{"lakemerge.publish": "deletionVectors", "lakemerge.publish.maxLag": "0s"})
    path, publishing = (
        str(lake.folder / "db" / "t"),
        "'lakemerge.publish' = 'rewrite', 'lakemerge.publish.maxLag' = '0s'",
    )
    frame = spark.sql("SELECT 5L AS id, 'f' AS state, 5L AS at, 5L AS n")
    writes: list[tuple[str, Callable[[], object], int]] = [
        ("INSERT", lambda: lake("INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)"), 4),
        ("UPDATE", lambda: lake("UPDATE {}.db.t SET n = 9 WHERE id = 4"), 4),
        ("MERGE", lambda: lake(
            "MERGE INTO {}.db.t t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 8"), 4),
        ("DELETE", lambda: lake("DELETE FROM {}.db.t WHERE id = 2"), 3),
        ("append", lambda: frame.write.format("lakemerge").mode("append").save(path), 4),
        ("overwrite", lambda: lake("INSERT OVERWRITE {}.db.t VALUES (7, 'o', 70, 7), (8, 'o', 70, 7)"), 2),
        ("DELETE all", lambda: lake("DELETE FROM {}.db.t"), 0),
        ("INSERT again", lambda: lake("INSERT INTO {}.db.t VALUES (4, 'd', 400, 4)"), 1),
        ("TRUNCATE", lambda: lake("TRUNCATE TABLE {}.db.t"), 0),
    ]  # fmt: skip
    for name, write, rows in writes:
        write()
        detail = lake.table.detail()
        assert (detail.unpublished_slices, len(_seen_by_others(path, "id"))) == (0, rows), name
    lake(
        "CREATE TABLE {}.db.c TBLPROPERTIES ('key' = 'id', 'ordering' = 'at', "
        f"{publishing}) AS SELECT 1L AS id, 1L AS at, 'a' AS v"
    )
    copy = str(lake.folder / "db" / "c")
    lake("UPDATE {}.db.c SET v = 'b'")
    assert _seen_by_others(copy, "v") == ["b"]
    lake(
        "CREATE OR REPLACE TABLE {}.db.c TBLPROPERTIES ('key' = 'id', 'lakemerge.maintenance.inline' = 'true', "
        f"{publishing}) AS SELECT 2L AS id, 'c' AS v"
    )
    assert _seen_by_others(copy, "v") == ["c"]


def _seen_by_others(path: str, column: str) -> list[object]:
    found = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT {column} FROM t")
    return list(pa.table(found.read_all())[column].to_pylist())


def test_a_command_on_few_bytes_does_not_look_for_its_keys_first(lake: Lake) -> None:
    lake.made()
    lake("CREATE OR REPLACE TEMPORARY VIEW few AS SELECT explode(array(1L, 9L)) AS id")
    for statement in (
        "UPDATE {}.db.t SET n = n + 1 WHERE id < 3",
        "MERGE INTO {}.db.t t USING few s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = 8",
    ):
        [[plan]] = lake(f"EXPLAIN FORMATTED {statement}")
        assert "WriteDelta" in plan
        assert "Subquer" not in plan, plan


def test_tasks_delete_all_rows(lake: Lake) -> None:
    table = lake.made()
    [[plan]] = lake("EXPLAIN DELETE FROM {}.db.t")
    assert "WriteDelta" in plan
    lake("DELETE FROM {}.db.t")
    assert lake.rows == []
    assert next(entry.operation for entry in table.history()) == "DELETE"


def test_frames(lake: Lake, spark: SparkSession) -> None:
    frame = spark.sql("SELECT 5 AS id, 2 AS v")
    name = f"{lake.name}.db.w"
    frame.writeTo(name).tableProperty("key", "id").create()
    frame.selectExpr("id + 1 AS id", "v").writeTo(name).append()
    frame.selectExpr("id + 2 AS id", "v").write.mode("append").saveAsTable(name)
    frame.selectExpr("id + 3 AS id", "v").write.insertInto(name)
    assert sorted(row.id for row in spark.table(name).collect()) == [5, 6, 7, 8]
    frame.write.mode("overwrite").insertInto(name)
    assert [row.id for row in spark.table(name).collect()] == [5]
    frame.writeTo(name).tableProperty("key", "v").replace()
    frame.writeTo(name).tableProperty("key", "v").createOrReplace()
    assert LakeTable.open(lake.folder / "db" / "w").key == ("v",)
    source = spark.sql("SELECT 9 AS id, 9 AS v").alias("s")
    source.mergeInto(name, expr(f"{name}.v = s.v")).whenNotMatched().insertAll().merge()
    assert sorted(row.id for row in spark.table(name).collect()) == [5, 9]
    assert spark.catalog.tableExists(name)
    assert not spark.catalog.tableExists(f"{lake.name}.db.none")


def test_the_page_names_the_tests_that_run_a_statement() -> None:
    """Each line of the table of statements names a test that is there."""
    table = text_of("sql.md").partition("## Statements")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    assert len(lines) > 20
    folder = Path(__file__).parent
    for line in lines:
        file, _, test = line.rstrip(" |").rpartition("| ")[2].strip("`").partition("::")
        assert f"def {test}(" in (folder / file).read_text(), line
