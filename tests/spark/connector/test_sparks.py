"""What the catalog says where Spark is not the one that it was made for, and where Spark's own catalog is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import lakemerge
from lakemerge import InstallError, LakeTable
from lakemerge.connector import session
from tests.spark.application import Application

CREATE = (
    "CREATE TABLE {name} (id BIGINT, v STRING) USING lakemerge",
    "CREATE TABLE IF NOT EXISTS {name} (id BIGINT, v STRING) USING lakemerge",
    "CREATE TABLE {name} (id BIGINT, v STRING) USING lakemerge LOCATION '{path}'",
    "CREATE TABLE {name} (id BIGINT, v STRING) USING lakemerge OPTIONS (path '{path}')",
    "CREATE TABLE {name} USING lakemerge LOCATION '{path}'",
    "CREATE TABLE {name} USING lakemerge OPTIONS (path '{path}')",
    "CREATE TABLE {name} USING LAKEMERGE LOCATION '{path}'",
    "CREATE TABLE {name} (id BIGINT, v STRING) USING LakeMerge",
    "CREATE TABLE {name} (id BIGINT, v STRING) USING lakemerge PARTITIONED BY (id)",
    "CREATE TABLE {name} USING lakemerge AS SELECT 1L AS id, 'a' AS v",
    "CREATE TABLE {name} USING lakemerge LOCATION '{path}' AS SELECT 1L AS id, 'a' AS v",
)


def statements_are_refused(spark: SparkSession, path: str) -> None:
    for number, statement in enumerate(CREATE):
        name = f"of_session_{number}"
        with pytest.raises(AnalysisException, match="spark_catalog has no LakeMerge tables") as caught:
            spark.sql(statement.format(name=name, path=path))
        assert caught.value.getCondition() == "LAKEMERGE_UNSUPPORTED"
        assert not spark.catalog.tableExists(name), statement


def calls_are_refused(spark: SparkSession, path: str) -> None:
    frame = spark.sql("SELECT 1L AS id, 'a' AS v")
    for writer in (frame.write, frame.write.option("path", path), frame.write.mode("overwrite").option("path", path)):
        with pytest.raises(AnalysisException, match="spark_catalog has no LakeMerge tables"):
            writer.format("lakemerge").saveAsTable("saved")
        assert not spark.catalog.tableExists("saved")
    with pytest.raises(AnalysisException, match="spark_catalog has no LakeMerge tables"):
        frame.writeTo("written").using("lakemerge").create()
    with pytest.raises(AnalysisException, match="spark_catalog has no LakeMerge tables"):
        spark.catalog.createTable("made", path=path, source="lakemerge", schema=frame.schema)


def test_the_sessions_own_catalog_refuses_tables(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    LakeTable.create(path, "id BIGINT, v STRING", key=["id"], spark=spark)
    statements_are_refused(spark, path)
    calls_are_refused(spark, path)
    spark.sql(f"CREATE TEMPORARY VIEW a_view USING lakemerge OPTIONS (path '{path}')")
    assert spark.table("a_view").count() == 0


def in_a_plain_session(spark: SparkSession, path: str) -> list[Any]:
    """A session with Spark's own catalog, which first knows nothing of the jar."""
    spark.sql("CREATE TABLE dead (id BIGINT, v STRING) USING lakemerge")
    spark.sql(f"CREATE TABLE external (id BIGINT, v STRING) USING lakemerge LOCATION '{path}'")
    said = []
    for _ in range(2):
        try:
            spark.sql("SELECT * FROM external").collect()
        except PySparkException as error:
            said.append("spark_catalog has no LakeMerge tables" in str(error))
        table = LakeTable.open(path, spark=spark)
    statements_are_refused(spark, path)
    calls_are_refused(spark, path)
    spark.sql("DROP TABLE dead")
    spark.sql("DROP TABLE external")
    rows = [tuple(row) for row in spark.read.format("lakemerge").load(path).collect()]
    spark.sql("SELECT 2L AS id, 'b' AS v").write.format("lakemerge").mode("append").save(path)
    lakemerge.catalog(spark, "lake", warehouse=str(Path(path).parent))
    return [said, rows, sorted(map(tuple, table.to_df().collect()))]


@pytest.mark.long
def test_an_entry_that_was_made_without_the_jar_is_refused_and_can_go(tmp_path: Path) -> None:
    path = str(tmp_path / "lake" / "t")
    LakeTable.create(path, "id BIGINT, v STRING", key=["id"])
    with Application(tmp_path / "application") as application:
        said, rows, after = application.run(in_a_plain_session, path)
    assert said == [False, True], "Spark's words, then ours"
    assert rows == []
    assert after == [(2, "b")]
    assert LakeTable.open(path).version == 1, "no entry touched the table"


# Sparks that nobody knows


def test_a_spark_without_the_catalogs_class_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CATALOG_CLASS", "lakemerge.spark.OfALaterSpark")
    with pytest.raises(InstallError, match=rf"this Spark, {spark.version}, cannot run .*tested with .*OfALaterSpark"):
        lakemerge.catalog(spark.newSession(), "pretended", warehouse=tmp_path)


def test_what_a_spark_lacks_is_named(spark: SparkSession, tmp_path: Path) -> None:
    lakemerge.catalog(spark, "lacking", warehouse=tmp_path)
    jvm: Any = spark._jvm
    sparks = jvm.lakemerge.spark.Sparks
    there = "org.apache.spark.sql.execution.datasources.DataSource$#lookupDataSourceV2"
    assert not sparks.problem("9.9", jvm.java.util.List.of(there)).isPresent()
    for missing, shown in [
        ("org.apache.spark.sql.execution.datasources.DataSource$#gone", "execution.datasources.DataSource.gone"),
        ("org.apache.spark.sql.Gone", "Gone"),
    ]:
        text = sparks.problem("9.9", jvm.java.util.List.of(there, missing)).get()
        assert text.startswith(f"this Spark, 9.9, lacks org.apache.spark.sql.{shown}, which LakeMerge's catalog needs")
    assert [sparks.canWrite(version) for version in ("4.0.2", "4.1.0", "4.10.1", "5.0.0")] == [False, True, True, True]


def test_errors_of_linking_are_errors_of_the_installation(tmp_path: Path) -> None:
    """What Spark and Java say of a Spark that lacks a method, as texts of exceptions."""
    for text in (
        "java.lang.NoSuchMethodError: 'java.lang.String org.apache.spark.Gone.gone()'",
        "java.lang.NoClassDefFoundError: org/apache/spark/sql/Gone",
        "java.lang.AbstractMethodError: Receiver class lakemerge.spark.LakeMergeCatalog does not define",
        "[CANNOT_LOAD] java.lang.IncompatibleClassChangeError: class x",
    ):

        class Lacking:
            version = "9.9"

            def sql(self, _: str, text: str = text) -> None:
                raise PySparkException(text)

        with pytest.raises(InstallError, match=r"this Spark, 9\.9, cannot run LakeMerge's catalog"):
            session._load(Lacking(), "lake")  # type: ignore[arg-type]
