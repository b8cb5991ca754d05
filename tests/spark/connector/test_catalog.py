"""The catalog: names, definitions, reads, and statements that write beside other writers."""

from __future__ import annotations

import datetime as dt
import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import lakemerge
from lakemerge import FrameError, InputError, LakeTable
from tests.guides import blocks, run
from tests.spark.connector.lake import NEEDS_DELTA, Lake, is_from_4_2, new_name, upserted

# Names and definitions


def test_the_guide_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        session = spark.newSession()
        patch.setattr(spark, "sql", session.sql)
        run("catalog.md", blocks("catalog.md"), folder=str(tmp_path), spark=session)
        [shown] = session.sql("SELECT state FROM lake.shop.orders WHERE id = 1").collect()
        assert shown.state == "paid"


def test_the_statements_of_the_page_run(lake: Lake) -> None:
    page, constraints, changes = blocks("sql.md", "sql")

    def run_all(text: str) -> list[list[tuple[object, ...]]]:
        statements = [part.strip() for part in text.replace("lake.", f"{lake.name}.").split(";\n") if part.strip()]
        return [lake(statement) for statement in statements]

    *_, old, history = run_all(page)
    assert [row[:2] for row in old] == [(1, "new"), (2, "new")]
    assert min(history) == (0, "CREATE TABLE")
    rows = lake("SELECT id, state, at FROM {}.shop.orders ORDER BY id")
    assert rows == [(1, "paid", 20), (2, "new", 10)]
    run_all(constraints)
    if is_from_4_2(lake.spark):
        every, some, later = run_all(changes)
        assert len(every) == len(later) > len(some) == 3


def test_rules_in_sql(lake: Lake) -> None:
    """The merger ``expression`` by table properties: made, merged, shown, altered, refused."""
    rules = """{"columns": {"n": "old.n + new.n"}, "remove_when": "new.state = \\'x\\'", "ignore_when": "new.n < 0"}"""
    table = lake.made(merger="expression", **{"merger.options": rules})
    assert table.opened.view.config.merger_options["remove_when"] == "new.state = 'x'"
    lake("INSERT INTO {}.db.t VALUES (1, 'late', 5, 4), (2, 'x', 1, 0), (3, 'd', 40, -1)")
    assert lake.rows == [(1, "a", 10, 5), (3, "c", 30, 3)]
    [[text]] = lake("SHOW CREATE TABLE {}.db.t")
    lake.spark.sql(text.replace(f"{lake.name}.db.t", f"{lake.name}.db.again"))
    again = LakeTable.open(lake.folder / "db" / "again")
    assert again.opened.view.config.merger_options == table.opened.view.config.merger_options
    lake("CALL {}.system.compact(table => 'db.t')")
    lake("""ALTER TABLE {}.db.t SET TBLPROPERTIES ('merger.options' = '{"columns": {"n": "old.n - new.n"}}')""")
    lake("INSERT INTO {}.db.t VALUES (1, 'b', 11, 2)")
    assert lake.rows == [(1, "b", 11, 3), (3, "c", 30, 3)]
    create = """CREATE TABLE {}.db.u (id BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id', 'merger' = 'expression',
        'merger.options' = '{"columns": {"n": "now()"}}')"""
    lake.refused(create, "LAKEMERGE_MERGER_CONFIGURATION", r"now\(\) is not the same each time")


def test_namespaces(lake: Lake) -> None:
    lake("CREATE NAMESPACE IF NOT EXISTS {}.db")
    lake.refused("CREATE NAMESPACE {}.db", "SCHEMA_ALREADY_EXISTS")
    lake("CREATE NAMESPACE {}.other COMMENT 'of others'")
    assert lake("SHOW NAMESPACES IN {}") == [("db",), ("default",), ("other",)]
    assert ("Comment", "of others") in lake("DESCRIBE NAMESPACE {}.other")
    lake.refused("CREATE NAMESPACE {}.a.b", "LAKEMERGE_INPUT", "not nested")
    lake.made()
    lake.refused("DROP NAMESPACE {}.db", "LAKEMERGE_INPUT", "has 1 tables")
    lake("DROP NAMESPACE {}.db CASCADE")
    lake("DROP NAMESPACE IF EXISTS {}.db")
    lake.refused("SHOW TABLES IN {}.db", "SCHEMA_NOT_FOUND")
    assert not (lake.folder / "db").exists()


def test_tables(lake: Lake) -> None:
    table = lake.made(merger="partial-update", team="mine")
    assert (table.key, table.ordering) == (("id",), ("at",))
    assert table.opened.view.config.merger_name == "partial-update"
    assert lake("SHOW TABLES IN {}.db") == [("db", "t", False)]
    [[text]] = lake("SHOW CREATE TABLE {}.db.t")
    lake.spark.sql(text.replace(f"{lake.name}.db.t", f"{lake.name}.db.again"))
    again = LakeTable.open(lake.folder / "db" / "again")
    assert again.schema == table.schema
    assert again.opened.view.config.merger_options == table.opened.view.config.merger_options
    lake.refused("CREATE TABLE {}.db.t (id INT) TBLPROPERTIES ('key' = 'id')", "TABLE_OR_VIEW_ALREADY_EXISTS")
    lake("CREATE TABLE IF NOT EXISTS {}.db.t (id INT) TBLPROPERTIES ('key' = 'id')")
    lake.refused("CREATE TABLE {}.nowhere.t (id INT) TBLPROPERTIES ('key' = 'id')", "SCHEMA_NOT_FOUND")
    lake.refused("CREATE TABLE {}.db.x (id INT)", "LAKEMERGE_SCHEMA", "needs a key")
    lake.refused(
        "CREATE TABLE {}.db.x (id INT, v INT DEFAULT 3) TBLPROPERTIES ('key' = 'id')",
        "UNSUPPORTED_FEATURE.TABLE_OPERATION",
    )
    assert lake("SHOW TABLES IN {}.db LIKE 'x'") == []


@NEEDS_DELTA
def test_a_folder_that_is_no_table_of_ours_is_never_dropped(lake: Lake, spark: SparkSession) -> None:
    spark.range(3).write.format("delta").save(str(lake.folder / "db" / "plain"))
    lake.refused("DROP TABLE {}.db.plain", "LAKEMERGE_NOT_A_TABLE", "not a LakeMerge table")
    (lake.folder / "db" / "files").mkdir()
    lake.refused("DROP TABLE {}.db.files", "TABLE_OR_VIEW_NOT_FOUND")
    assert spark.read.format("delta").load(str(lake.folder / "db" / "plain")).count() == 3


def test_drop_and_replace(lake: Lake) -> None:
    table = lake.made()
    lake("CREATE OR REPLACE TABLE {}.db.t (id BIGINT, v STRING) TBLPROPERTIES ('key' = 'id')")
    assert lake.rows == []
    assert lake("SELECT id, state FROM {}.db.t VERSION AS OF 1 WHERE id = 1") == [(1, "a")]
    lake.refused("REPLACE TABLE {}.db.none (id INT) TBLPROPERTIES ('key' = 'id')", "TABLE_OR_VIEW_NOT_FOUND")
    lake("DROP TABLE {}.db.t")
    lake("DROP TABLE IF EXISTS {}.db.t")
    assert not (lake.folder / "db" / "t").exists()
    with pytest.raises(lakemerge.TableReplacedError):
        table.to_arrow()


def test_alter(lake: Lake) -> None:
    table = lake.made()
    lake("ALTER TABLE {}.db.t ADD COLUMNS (note STRING COMMENT 'mine' AFTER id, s STRUCT<a: INT>)")
    lake("ALTER TABLE {}.db.t ADD COLUMN s.b STRING")
    lake("ALTER TABLE {}.db.t ALTER COLUMN state COMMENT 'of it'")
    lake("ALTER TABLE {}.db.t SET TBLPROPERTIES ('team' = 'mine', 'comment' = 'all')")
    lake("COMMENT ON TABLE {}.db.t IS 'better'")
    table = LakeTable.open(lake.folder / "db" / "t")
    assert table.schema.names == ["id", "note", "state", "at", "n", "s"]
    assert table.opened.view.snapshot.metadata.description == "better"
    assert dict(lake("SHOW TBLPROPERTIES {}.db.t"))["team"] == "mine"
    lake("ALTER TABLE {}.db.t UNSET TBLPROPERTIES ('team')")
    assert "team" not in dict(lake("SHOW TBLPROPERTIES {}.db.t"))
    lake.refused("ALTER TABLE {}.db.t ALTER COLUMN note SET NOT NULL", "_LEGACY_ERROR_TEMP_2330")
    lake("CREATE TABLE {}.db.v (id BIGINT, at BIGINT, small INT NOT NULL) TBLPROPERTIES (key='id', ordering='at')")
    lake("INSERT INTO {}.db.v VALUES (1, 1, 7)")
    for change in ("TYPE BIGINT", "DROP NOT NULL", "FIRST"):
        lake(f"ALTER TABLE {{}}.db.v ALTER COLUMN small {change}")
    lake("INSERT INTO {}.db.v VALUES (NULL, 2, 2), (5000000000, 3, 3)")
    assert lake("SELECT * FROM {}.db.v ORDER BY id") == [(7, 1, 1), (None, 2, 2), (5_000_000_000, 3, 3)]


@pytest.mark.long
def test_columns_are_renamed_and_dropped(lake: Lake) -> None:
    lake.made()
    before = lake("SELECT id, state, at FROM {}.db.t ORDER BY id")
    lake("ALTER TABLE {}.db.t RENAME COLUMN state TO `the state`")
    lake("ALTER TABLE {}.db.t RENAME COLUMN id TO number")
    lake("ALTER TABLE {}.db.t DROP COLUMN n")
    assert lake("SELECT number, `the state`, at FROM {}.db.t ORDER BY number") == before
    lake("INSERT INTO {}.db.t (number, `the state`, at) VALUES (9, 'z', 99)")
    lake("UPDATE {}.db.t SET `the state` = 'y' WHERE number = 9")
    assert lake("SELECT * FROM {}.db.t WHERE `the state` = 'y'") == [(9, "y", 99)]
    table = LakeTable.open(lake.folder / "db" / "t")
    assert table.key == ("number",)
    lake("ALTER TABLE {}.db.t ADD COLUMN s STRUCT<a: INT>")
    for statement in ("DROP COLUMN number", "RENAME COLUMN s.a TO b", "DROP COLUMN s.a"):
        lake.refused(f"ALTER TABLE {{}}.db.t {statement}", "LAKEMERGE_SCHEMA")
    lake.refused("ALTER TABLE {}.db.t REPLACE COLUMNS (number BIGINT)", "LAKEMERGE_SCHEMA")
    assert LakeTable.check(lake.folder / "db" / "t").ok


def test_a_table_of_a_query_is_one_commit(lake: Lake) -> None:
    lake.made()
    define = "TBLPROPERTIES ('key' = 'id', 'ordering' = 'at')"
    lake(f"CREATE TABLE {{}}.db.u {define} AS SELECT id, at, state FROM {{}}.db.t UNION ALL SELECT 1L, 5L, 'old'")
    path = lake.folder / "db" / "u"
    made = LakeTable.open(path)
    assert made.version == 0
    assert [field.nullable for field in made.schema] == [False, True, True]
    assert lake("SELECT * FROM {}.db.u ORDER BY id") == [(1, 10, "a"), (2, None, "b"), (3, 30, "c")]
    assert [entry.operation for entry in made.history()] == ["CREATE TABLE AS SELECT"]
    assert LakeTable.check(path).ok
    made.upsert(pa.table({"id": [3], "at": [40], "state": ["later"]}))
    assert lake("SELECT state FROM {}.db.u WHERE id = 3") == [("later",)]
    made.compact()
    assert LakeTable.check(path).ok
    lake.refused(f"CREATE TABLE {{}}.db.u {define} AS SELECT 1L AS id, 1L AS at", "TABLE_OR_VIEW_ALREADY_EXISTS")
    lake(f"CREATE OR REPLACE TABLE {{}}.db.u {define} AS SELECT id + 1 AS id, at FROM {{}}.db.u")
    assert lake("SELECT * FROM {}.db.u ORDER BY id") == [(2, 10), (3, None), (4, 40)]
    assert lake("SELECT count(state) FROM {}.db.u VERSION AS OF 0") == [(3,)]
    assert LakeTable.check(path).ok
    lake(f"REPLACE TABLE {{}}.db.u {define} AS SELECT 1L AS id, 1L AS at WHERE false")
    assert lake("SELECT * FROM {}.db.u") == []
    lake("INSERT INTO {}.db.u VALUES (7, 7)")
    assert lake("SELECT * FROM {}.db.u") == [(7, 7)]
    assert LakeTable.check(path).ok


@pytest.mark.long
def test_a_query_that_fails_makes_and_replaces_nothing(lake: Lake) -> None:
    table = lake.made()
    define = "TBLPROPERTIES ('key' = 'id')"
    for statement in ("CREATE TABLE {}.db.u", "CREATE OR REPLACE TABLE {}.db.t", "REPLACE TABLE {}.db.t"):
        for query, error in (
            ("SELECT id, CASE WHEN id > 2 THEN raise_error('boom') ELSE 'x' END AS x FROM {}.db.t", "boom"),
            ("SELECT CAST(NULL AS BIGINT) AS id", "null"),
        ):
            with pytest.raises(PySparkException, match=error):
                lake(f"{statement} {define} AS {query}")
    lake.refused("CREATE TABLE {}.db.u AS SELECT 1 AS id", "LAKEMERGE_SCHEMA", "needs a key")
    lake.refused(f"CREATE TABLE {{}}.db.u {define} AS SELECT 1 AS id, NULL AS v", "LAKEMERGE_SCHEMA", "void")
    assert lake("SHOW TABLES IN {}.db") == [("db", "t", False)]
    assert table.version == 1
    assert len(lake.rows) == 3


# Reads


def test_time_travel_and_details(lake: Lake) -> None:
    table = lake.made()
    lake("INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)")
    table.savepoint("four")
    lake("DELETE FROM {}.db.t WHERE id = 4")
    counts = [lake(f"SELECT count(*) FROM {{}}.db.t VERSION AS OF {at}")[0][0] for at in ("0", "1", "2", "'four'")]
    assert counts == [0, 3, 4, 4]
    [[time]] = lake("SELECT timestamp FROM {}.db.`t$history` WHERE version = 2")
    assert lake(f"SELECT count(*) FROM {{}}.db.t TIMESTAMP AS OF '{time}'") == [(4,)]
    lake.refused("SELECT * FROM {}.db.t VERSION AS OF 99", "LAKEMERGE_VERSION_NOT_FOUND", "from 0 to")
    assert [row[0] for row in lake("SELECT operation FROM {}.db.`t$history` ORDER BY version")][:2] == [
        "CREATE TABLE", "UPSERT",
    ]  # fmt: skip
    assert lake("SELECT name, version FROM {}.db.`t$savepoints`") == [("four", 2)]
    assert lake("SELECT sum(base_rows) FROM {}.db.`t$buckets`") == [(3,)]
    assert {row[0] for row in lake("SELECT kind FROM {}.db.`t$files`")} == {"base", "log"}


@pytest.mark.long
def test_filters_leave_out_rows_before_spark_sees_them(lake: Lake) -> None:
    lake.made()
    for condition, ids in {
        "id = 2": [2], "id IN (1, 3)": [1, 3], "at IS NULL": [2], "at >= 30 OR state = 'b'": [2, 3],
        "state > 'a' AND n < 3": [2], "NOT (id = 1)": [2, 3], "state LIKE 'c%'": [3],
    }.items():  # fmt: skip
        assert [row[0] for row in lake(f"SELECT id FROM {{}}.db.t WHERE {condition} ORDER BY id")] == ids
    plan = lake("EXPLAIN SELECT state FROM {}.db.t WHERE id = 2")[0][0]
    assert re.search(r"BatchScan .* version 1, where `id` = 2 ", plan)


def test_a_look_up_reads_one_bucket(lake: Lake) -> None:
    lake.made(buckets="8")
    frame = lake.spark.sql("SELECT * FROM {}.db.t WHERE id = 2".replace("{}", lake.name))
    assert frame.rdd.getNumPartitions() == 1


def test_secrets_are_in_no_plan_property_or_error(spark: SparkSession, tmp_path: Path) -> None:
    name = new_name("lake")
    lakemerge.catalog(spark, name, warehouse=tmp_path, storage_options={"secret": "hunter2", "key": "AKIA1"})
    lake = Lake(spark, name, tmp_path)
    lake("CREATE NAMESPACE {}.db")
    lake.made()
    shown = [
        lake(statement)
        for statement in (
            "EXPLAIN EXTENDED SELECT * FROM {}.db.t", "EXPLAIN EXTENDED UPDATE {}.db.t SET n = 1",
            "DESCRIBE EXTENDED {}.db.t", "SHOW CREATE TABLE {}.db.t", "SHOW TBLPROPERTIES {}.db.t",
            "SELECT * FROM {}.db.`t$history`",
            "EXPLAIN EXTENDED SELECT * FROM {}.db.`t$changes` WITH (startingVersion = 1)",
        )
    ]  # fmt: skip
    with pytest.raises(AnalysisException) as caught:
        lake("ALTER TABLE {}.db.t DROP COLUMN id")
    settings = spark._jsparkSession.sessionState().conf()
    told = settings.redactOptions(settings.getAllConfs()).mkString(" ")  # what Spark's event log tells of a session
    assert f"spark.sql.catalog.{name}.storage.key" in told
    redaction = "spark.sql.redaction.options.regex"
    assert re.search(spark.conf.get(redaction) or "", "url"), "what Spark hides by itself stays hidden"
    spark.conf.set(redaction, "mine")
    lakemerge.catalog(spark, name, warehouse=tmp_path, storage_options={"secret": "hunter2", "key": "AKIA1"})
    hidden = spark.conf.get(redaction) or ""
    assert hidden.startswith("mine|")
    lakemerge.catalog(spark, name, warehouse=tmp_path, storage_options={"secret": "hunter2", "key": "AKIA1"})
    assert spark.conf.get(redaction) == hidden
    for text in (str(shown), str(caught.value), told):
        assert "hunter2" not in text
        assert "AKIA1" not in text


def test_a_catalog_of_paths(lake: Lake) -> None:
    lake.made()
    assert lake(f"SELECT count(*) FROM lakemerge.`{lake.folder}/db/t`") == [(3,)]
    lake.refused("SELECT * FROM lakemerge.`db/t`", "LAKEMERGE_INPUT", "no absolute path")


def test_the_session_is_asked_for_what_it_cannot_do(lake: Lake, tmp_path: Path) -> None:
    lakemerge.catalog(lake.spark, lake.name, warehouse=lake.folder)  # again
    with pytest.raises(InputError, match="Spark does not move a catalog"):
        lakemerge.catalog(lake.spark, lake.name, warehouse=tmp_path / "elsewhere")
    with pytest.raises(InputError, match="name of letters"):
        lakemerge.catalog(lake.spark, "a-b", warehouse=tmp_path)
    with pytest.raises(InputError, match="that Spark has not, not 'spark_catalog'"):
        lakemerge.catalog(lake.spark, "spark_catalog", warehouse=tmp_path)
    lake.spark.conf.set("spark.sql.catalog.theirs", "com.example.Catalog")
    with pytest.raises(InputError, match="choose another name"):
        lakemerge.catalog(lake.spark, "theirs", warehouse=tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEMERGE_CONNECTOR", "off")
        with pytest.raises(InputError, match="LAKEMERGE_CONNECTOR=off"):
            lakemerge.catalog(lake.spark, "other", warehouse=tmp_path)


def test_other_threads_and_sessions(lake: Lake) -> None:
    lake.made()
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(lake("SELECT count(*) FROM {}.db.t")))
    thread.start()
    thread.join()
    assert found == [[(3,)]]
    session = lake.spark.newSession()
    lakemerge.catalog(session, lake.name, warehouse=lake.folder)
    assert session.sql(f"SELECT count(*) FROM {lake.name}.db.t").collect()[0][0] == 3


# Procedures


def test_procedures(lake: Lake) -> None:
    table = lake.made()
    lake("INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)")
    result = dict(lake("CALL {}.system.compact(table => 'db.t')"))
    assert result["file_slices"] == "1"
    assert not table.opened.view.log_commits
    lake("CALL {}.system.savepoint('db.t', 'four')")
    assert [savepoint.name for savepoint in table.savepoints()] == ["four"]
    lake("DELETE FROM {}.db.t WHERE id = 4")
    assert dict(lake("CALL {}.system.restore(table => 'db.t', savepoint => 'four')"))["restored_version"]
    assert [row[0] for row in lake.rows] == [1, 2, 3, 4]
    lake("CALL {}.system.drop_savepoint('db.t', 'four')")
    assert dict(lake("CALL {}.system.rescale('db.t', 4)"))["buckets"] == "4"
    assert "oldest_version" in dict(lake("CALL {}.system.vacuum(table => 'db.t', dry_run => true)"))
    assert "version" in dict(lake("CALL {}.system.maintain('db.t')"))
    lake.refused("CALL {}.system.explode('db.t')", "LAKEMERGE_INPUT", "there are system.compact, ")
    lake.refused("CALL {}.system.compact('lake.db.t')", "LAKEMERGE_INPUT", "without the catalog")
    lake.refused("CALL {}.system.vacuum('db.t', retention_hours => 1)", "LAKEMERGE_INPUT")
    [[rows]] = lake(f"SELECT count(*) FROM lakemerge.`{lake.folder}/db/t`")
    assert dict(lake(f"CALL lakemerge.system.compact('{lake.folder}/db/t')"))["version"]
    assert rows == 4


@pytest.mark.long
def test_texts_of_bounded_length(lake: Lake) -> None:
    lake("CREATE TABLE {}.db.s (id BIGINT, v VARCHAR(3), c CHAR(4)) TBLPROPERTIES ('key' = 'id')")
    lake("INSERT INTO {}.db.s VALUES (1, 'äöü', 'ab'), (2, 'ab   ', NULL)")
    assert sorted(map(tuple, lake("SELECT id, v, c FROM {}.db.s"))) == [(1, "äöü", "ab  "), (2, "ab ", None)]
    lake("ALTER TABLE {}.db.s ADD COLUMN w VARCHAR(2)")
    with pytest.raises(Exception, match=r"(?i)length|VARCHAR"):
        lake("INSERT INTO {}.db.s VALUES (3, 'abcd', 'x', 'y')")
    with pytest.raises(Exception, match=r"(?i)length|VARCHAR"):
        lake("INSERT INTO {}.db.s VALUES (3, 'abc', 'x', 'yyy')")
    table = LakeTable.open(f"{lake.folder}/db/s", spark=lake.spark)
    notes = {field.name: (field.metadata or {}).get(b"__CHAR_VARCHAR_TYPE_STRING") for field in table.schema}
    assert notes == {"id": None, "v": b"varchar(3)", "c": b"char(4)", "w": b"varchar(2)"}
    with pytest.raises(FrameError, match=r"column 'w' is VARCHAR\(2\).*'yyy'"):
        table.upsert(lake.spark.sql("SELECT 4L AS id, 'a' AS v, 'b' AS c, 'yyy' AS w"))
    table.compact()
    # delta-spark reads the same.
    theirs = lake.spark.sql(f"SELECT id, v, c FROM delta.`{lake.folder}/db/s`")
    assert sorted(map(tuple, theirs.collect())) == [(1, "äöü", "ab  "), (2, "ab ", None)]


def test_a_table_is_converted_there_and_back(lake: Lake) -> None:
    lake.made()
    before = lake.rows
    assert dict(lake("CALL {}.system.unconvert('db.t')"))["rows"] == "3"
    plan = dict(lake("CALL {}.system.convert(table => 'db.t', key => 'id', ordering => 'at', dry_run => true)"))
    assert (plan["rows"], plan["repeated_rows"]) == ("3", "0")
    result = dict(
        lake("CALL {}.system.convert(table => 'db.t', key => 'id', ordering => 'at', merger => 'event-time')")
    )
    assert result["rows"] == "3"
    assert lake.rows == before
    lake("INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)")
    assert [row[0] for row in lake.rows] == [1, 2, 3, 4]


def test_keys_are_erased(lake: Lake) -> None:
    lake.made()
    keys = '[{"id": 2}, {"id": 9}]'
    result = dict(lake(f"CALL {{}}.system.forget(table => 'db.t', keys => '{keys}', salt => 'grain')"))
    assert result["keys"] == "2, of which 1 had a row"
    assert result["state"].startswith("waiting until ")
    assert [row[0] for row in lake.rows] == [1, 3]
    lake.refused("CALL {}.system.forget(table => 'db.t', keys => '2')", "LAKEMERGE_INPUT", "a list in JSON")


# Writes


@pytest.mark.long
def test_an_update_sets_what_is_asked_whatever_the_merger(lake: Lake) -> None:
    lake.made(merger="first-row")
    lake("UPDATE {}.db.t SET n = n + 10, at = at - 5 WHERE id <= 2")
    assert lake.rows == [(1, "a", 5, 11), (2, "b", None, 12), (3, "c", 30, 3)]
    lake("UPDATE {}.db.t SET n = (SELECT max(n) FROM {}.db.t) WHERE id IN (SELECT id FROM {}.db.t WHERE state = 'c')")
    assert lake.rows[2] == (3, "c", 30, 12)


def test_a_key_is_never_assigned(lake: Lake) -> None:
    table = lake.made()
    lake.refused("UPDATE {}.db.t SET id = 9 WHERE id = 3", "LAKEMERGE_KEY_ASSIGNED", "column id of")
    lake("UPDATE {}.db.t SET id = id, n = 0 WHERE id = 3")
    assert lake.rows[2] == (3, "c", 30, 0)
    assert table.version == 2


def test_a_delete_remembers_the_ordering(lake: Lake) -> None:
    table = lake.made()
    lake("DELETE FROM {}.db.t WHERE id = 3")
    upserted(3, 20, 0)(table)
    assert [row[0] for row in lake.rows] == [1, 2]
    lake("DELETE FROM {}.db.t")
    upserted(1, 5, 0)(table)
    assert lake.rows == []
    lake("TRUNCATE TABLE {}.db.t")
    upserted(1, 5, 0)(table)
    assert [row[0] for row in lake.rows] == [1]


def test_merge_with_all_clauses(lake: Lake) -> None:
    lake.made()
    lake(
        "MERGE INTO {}.db.t t USING (SELECT * FROM VALUES (1L, 'm', 99L), (2L, 'bye', 0L), (7L, 'new', 1L), "
        "(8L, 'skip', 1L) AS s(id, state, at)) s ON t.id = s.id "
        "WHEN MATCHED AND s.state = 'bye' THEN DELETE WHEN MATCHED THEN UPDATE SET state = s.state, at = s.at "
        "WHEN NOT MATCHED AND s.state <> 'skip' THEN INSERT (id, state) VALUES (s.id, s.state) "
        "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = -1"
    )
    assert lake.rows == [(1, "m", 99, 1), (3, "c", 30, -1), (7, "new", None, None)]


def test_merges_that_mean_two_rows_fail(lake: Lake) -> None:
    table = lake.made()
    twice = "(SELECT {0}L AS id, 'x' AS state UNION ALL SELECT {0}L, 'y')"
    with pytest.raises(PySparkException, match="MERGE_CARDINALITY_VIOLATION"):
        lake(
            f"MERGE INTO {{}}.db.t t USING {twice.format(1)} s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET state = s.state"
        )
    # Spark 4.1 makes an INSERT of a merge that only inserts, so its rows are records.
    for other in ("WHEN MATCHED THEN DELETE", "")[: 2 if is_from_4_2(lake.spark) else 1]:
        lake.refused(
            f"MERGE INTO {{}}.db.t t USING {twice.format(9)} s ON t.id = s.id {other} "
            "WHEN NOT MATCHED THEN INSERT (id, state) VALUES (s.id, s.state)",
            "LAKEMERGE_MULTIPLE_MATCHES",
        )
    assert table.version == 1


def test_an_insert_is_an_upsert_of_all_columns(lake: Lake) -> None:
    lake.made()
    lake("INSERT INTO {}.db.t (id, at) VALUES (1, 50)")
    lake("INSERT INTO {}.db.t VALUES (3, 'late', 20, 0)")
    assert lake.rows == [(1, None, 50, None), (2, "b", None, 2), (3, "c", 30, 3)]
    with pytest.raises(PySparkException):
        lake("INSERT INTO {}.db.t SELECT CAST(NULL AS BIGINT), 'x', 1L, 1L")
    assert len(lake.rows) == 3


def test_overwrites(lake: Lake) -> None:
    lake("CREATE TABLE {}.db.t (id BIGINT, p STRING, n BIGINT) PARTITIONED BY (p) TBLPROPERTIES ('key' = 'p, id')")
    lake("INSERT INTO {}.db.t VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)")
    lake("INSERT OVERWRITE {}.db.t PARTITION (p = 'x') SELECT 9L, 9L")
    assert lake.rows == [(2, "y", 2), (3, "z", 3), (9, "x", 9)]
    lake("INSERT INTO {}.db.t REPLACE WHERE p = 'y' SELECT 8L, 'y', 8L")
    assert lake.rows == [(3, "z", 3), (8, "y", 8), (9, "x", 9)]
    lake.spark.table(f"{lake.name}.db.t").where("p = 'z'").selectExpr("id + 1 id", "p", "n").writeTo(
        f"{lake.name}.db.t"
    ).overwritePartitions()
    assert lake.rows == [(4, "z", 3), (8, "y", 8), (9, "x", 9)]
    lake.refused("INSERT INTO {}.db.t REPLACE WHERE n = 3 SELECT 8L, 'y', 8L", "LAKEMERGE_FILTER", "partition columns")
    lake("INSERT OVERWRITE {}.db.t VALUES (1, 'q', 1)")
    assert lake.rows == [(1, "q", 1)]


def test_an_application_transaction_counts_once(lake: Lake) -> None:
    table = lake.made()
    with pytest.MonkeyPatch.context():
        lake.spark.conf.set("spark.lakemerge.txnAppId", "app")
        lake.spark.conf.set("spark.lakemerge.txnVersion", "7")
        try:
            lake("UPDATE {}.db.t SET n = n + 1")
            lake("UPDATE {}.db.t SET n = n + 1")
        finally:
            lake.spark.conf.unset("spark.lakemerge.txnAppId")
            lake.spark.conf.unset("spark.lakemerge.txnVersion")
    assert [row[3] for row in lake.rows] == [2, 3, 4]
    assert table.version == 2


# Beside other writers

STATEMENTS = {
    "update": "UPDATE {}.db.t SET n = meddle(n) + 1 WHERE id = 1",
    "delete": "DELETE FROM {}.db.t WHERE id = 1 AND meddle(n) = 1",
    "merge": (
        "MERGE INTO {}.db.t t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = meddle(n) + 1"
    ),
    "insert from itself": "INSERT INTO {}.db.t SELECT id, state, 100L, meddle(n) + 1 FROM {}.db.t WHERE id = 1",
}


@pytest.mark.parametrize("what", STATEMENTS)
@pytest.mark.parametrize("same", [True, False], ids=["same key", "another key"])
def test_another_writer_comes_while_rows_are_computed(lake: Lake, what: str, same: bool) -> None:
    table = lake.made()
    meddle = lake.meddling(upserted(1 if same else 3, 90, 500))
    statement = STATEMENTS[what].replace("meddle", meddle)
    if same:
        lake.refused(statement, "LAKEMERGE_CONFLICT", "wrote 1 of the transaction's keys")
        assert lake.rows[0] == (1, "other", 90, 500)
        assert table.version == 2
    else:
        lake(statement)
        assert (3, "other", 90, 500) in lake.rows
        assert lake.rows[0][3] in (2, 500)
        assert table.version == 3


def test_a_merge_that_only_inserts_conflicts(lake: Lake) -> None:
    lake.made()
    meddle = lake.meddling(upserted(7, 90, 500))
    lake.refused(
        f"MERGE INTO {{}}.db.t t USING (SELECT 7L AS id, {meddle}(1) AS n) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, at, n) VALUES (s.id, 200L, s.n)",
        "LAKEMERGE_CONFLICT",
    )
    assert lake.rows[3] == (7, "other", 90, 500)


def test_a_merge_that_only_inserts_is_a_transaction(lake: Lake, spark: SparkSession) -> None:
    """A newer tombstone does not swallow its row."""
    table = lake.made()
    table.delete(pa.table({"id": [7], "at": [100]}))
    lake(
        "MERGE INTO {}.db.t t USING (SELECT 7L AS id, 1L AS at) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT (id, at) VALUES (s.id, s.at)"
    )
    says_so = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    assert ((7, None, 1, None) in lake.rows) == says_so


@pytest.mark.long
def test_an_overwrite_that_read_the_table_conflicts(lake: Lake) -> None:
    lake.made()
    meddle = lake.meddling(upserted(5, 1, 500))
    statement = f"INSERT OVERWRITE {{}}.db.t SELECT id, state, at, {meddle}(n) FROM {{}}.db.t"
    lake.refused(statement, "LAKEMERGE_CONFLICT", "it would lose them")
    assert (5, "other", 1, 500) in lake.rows
    lake(statement)
    assert len(lake.rows) == 4


def test_serializable_catalogs_conflict_with_any_record(spark: SparkSession, tmp_path: Path) -> None:
    name = new_name("lake")
    spark.conf.set(f"spark.sql.catalog.{name}.isolation", "serializable")
    lakemerge.catalog(spark, name, warehouse=tmp_path)
    lake = Lake(spark, name, tmp_path)
    lake("CREATE NAMESPACE {}.db")
    lake.made()
    meddle = lake.meddling(upserted(3, 90, 500))
    lake.refused(STATEMENTS["update"].replace("meddle", meddle), "LAKEMERGE_CONFLICT", "serializable")


def test_a_statement_sees_one_version_of_a_table(lake: Lake) -> None:
    """A join of the table with itself, while another writer commits."""
    lake.made()
    meddle = lake.meddling(upserted(4, 1, 1))
    joined = f"SELECT count(a.n) FROM (SELECT id, {meddle}(n) AS n FROM {{}}.db.t) a JOIN {{}}.db.t b ON a.id = b.id"
    assert lake(joined) == [(3,)]
    assert lake(joined) == [(4,)]


@pytest.mark.long
def test_each_batch_of_a_stream_joins_the_newest_version(lake: Lake, tmp_path: Path) -> None:
    """The table is the static side of a join, as a dimension is. Spark 4.1 and later load it for each batch."""
    table, landing, seen = lake.made(), tmp_path / "landing", {}
    landing.mkdir()

    def note(frame: DataFrame, _: int) -> None:
        seen.update({row.k: row.state for row in frame.collect()})

    stream = lake.spark.readStream.schema("id BIGINT, k BIGINT").json(str(landing))
    joined = stream.join(lake.spark.table(f"{lake.name}.db.t"), "id").select("k", "state")
    query = joined.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "check")).start()
    try:
        for number, state in enumerate(("a", "later", "newest")):
            if number:
                table.upsert(pa.table({"id": [1], "state": [state], "at": [50 + number], "n": [1]}))
                table.compact()
                table.vacuum(retention=dt.timedelta(0), enforce_retention=False)
            (landing / f"{number}.json").write_text(f'{{"id": 1, "k": {number}}}\n')
            query.processAllAvailable()
    finally:
        query.stop()
    assert seen == {0: "a", 1: "later", 2: "newest"}


def test_a_failed_statement_commits_nothing(lake: Lake) -> None:
    table = lake.made()
    with pytest.raises(PySparkException, match="boom"):
        lake("UPDATE {}.db.t SET state = raise_error('boom') WHERE id = 1")
    with pytest.raises(PySparkException):
        lake("UPDATE {}.db.t SET n = 1 / 0 WHERE id = 1")
    assert table.version == 1
    lake("UPDATE {}.db.t SET n = 0 WHERE id = 1")
    assert lake.rows[0] == (1, "a", 10, 0)
