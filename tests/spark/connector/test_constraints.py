"""CHECK constraints in SQL: added, dropped, in CREATE TABLE, shown.

The session of tests has Delta's extension, whose parser takes ``ADD`` and ``DROP CONSTRAINT`` for itself. A plain one
has Spark's own from 4.1 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lakemerge
from lakemerge import FrameError, LakeTable, unwrap_error
from tests.spark.application import Application
from tests.spark.connector.lake import NEEDS_DELTA, Lake, is_from_4_2

POSITIVE = "ALTER TABLE {}.db.t ADD CONSTRAINT Positive CHECK (n > 0)"


def constraints(lake: Lake, table: str = "t") -> Mapping[str, str]:
    return LakeTable.open(lake.folder / "db" / table).opened.view.config.constraints


def violates(lake: Lake, statement: str, name: str) -> None:
    before = lake.table.version
    with pytest.raises(PySparkException) as caught:
        lake(statement)
    error = unwrap_error(caught.value)
    assert isinstance(error, FrameError), str(caught.value)[:500]
    assert f"violate the constraint '{name}'" in error.message
    assert lake.table.version == before


@pytest.mark.long
def test_a_constraint_is_added_kept_and_dropped(lake: Lake) -> None:
    lake.made()
    lake(POSITIVE)
    assert constraints(lake) == {"positive": "n > 0"}
    for statement in (
        "INSERT INTO {}.db.t VALUES (4, 'd', 40, 4), (5, 'e', 50, 0)",
        "INSERT INTO {}.db.t (id, at) VALUES (4, 40)",
        "UPDATE {}.db.t SET n = n - 1 WHERE id = 1",
        "MERGE INTO {}.db.t t USING (SELECT 1L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET n = -1",
        "INSERT OVERWRITE {}.db.t VALUES (4, 'd', 40, -4)",
    ):
        violates(lake, statement, "positive")
    with pytest.raises(FrameError, match="violate the constraint 'positive'"):
        lake.table.upsert(pa.table({"id": [4], "at": [1], "n": [0]}))
    assert [row[3] for row in lake.rows] == [1, 2, 3]
    lake("INSERT INTO {}.db.t VALUES (4, 'd', 40, 4)")
    # Rows that a statement deletes are not judged, whatever Spark sets their columns to.
    lake("ALTER TABLE {}.db.t ADD CONSTRAINT some CHECK (n IS NOT NULL AND state IS NOT NULL)")
    lake(
        "MERGE INTO {}.db.t t USING (SELECT explode(array(1L, 2L)) AS id) s ON t.id = s.id "
        "WHEN MATCHED AND t.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 20"
    )
    lake("DELETE FROM {}.db.t WHERE id = 3")
    assert [(row[0], row[3]) for row in lake.rows] == [(2, 20), (4, 4)]
    lake("ALTER TABLE {}.db.t DROP CONSTRAINT POSITIVE")
    lake("ALTER TABLE {}.db.t DROP CONSTRAINT IF EXISTS positive")
    lake.refused(
        "ALTER TABLE {}.db.t DROP CONSTRAINT positive", "LAKEMERGE_SCHEMA", "there is no constraint 'positive'"
    )
    lake("INSERT INTO {}.db.t VALUES (9, 'i', 90, -9)")
    assert constraints(lake) == {"some": "n IS NOT NULL AND state IS NOT NULL"}
    assert LakeTable.check(lake.folder / "db" / "t").ok


@NEEDS_DELTA
def test_rows_that_are_there_must_meet_it(lake: Lake) -> None:
    table = lake.made("(1, 'a', 10, 1), (2, 'b', NULL, -2)")
    lake.refused(POSITIVE, "LAKEMERGE_SCHEMA", r"rows violate the constraint 'positive' \(n > 0\), such as .*'id': 2")
    lake("UPDATE {}.db.t SET n = NULL WHERE id = 2")
    lake.refused(POSITIVE, "LAKEMERGE_SCHEMA", r"rows violate the constraint 'positive' \(n > 0\), such as .*'id': 2")
    assert table.version == 2
    assert constraints(lake) == {}


@NEEDS_DELTA
def test_what_cannot_be_a_constraint(lake: Lake) -> None:
    table = lake.made()
    for statement, message in {
        "ADD CONSTRAINT `not a name` CHECK (n > 0)": "a name of letters and digits",
        "ADD CONSTRAINT c CHECK (hash(n) > 0)": "cannot be judged",
    }.items():
        lake.refused(f"ALTER TABLE {{}}.db.t {statement}", "LAKEMERGE_SCHEMA", message)
    lake.refused("ALTER TABLE {}.db.t ADD PRIMARY KEY (id)", "LAKEMERGE_UNSUPPORTED", "CHECK constraints only")
    lake.refused("ALTER TABLE {}.db.t ADD UNIQUE (id)", "LAKEMERGE_UNSUPPORTED", "CHECK constraints only")
    assert table.version == 1
    create = "CREATE TABLE {}.db.x (id BIGINT, n BIGINT, CONSTRAINT c CHECK (n > 0)) TBLPROPERTIES ('key' = 'id'"
    lake.refused(f"{create}, 'merger' = 'partial-update')", "LAKEMERGE_SCHEMA", "makes rows of several records")
    assert lake("SHOW TABLES IN {}.db") == [("db", "t", False)]


def test_a_table_is_made_with_constraints_and_shown_with_them(lake: Lake) -> None:
    lake(
        "CREATE TABLE {}.db.t (id BIGINT, n BIGINT CHECK (n > 0), m BIGINT, CONSTRAINT Ordered CHECK (n < m)) "
        "TBLPROPERTIES ('key' = 'id')"
    )
    made = constraints(lake)
    assert made["ordered"] == "n < m"
    [other] = made.keys() - {"ordered"}
    assert made[other] == "n > 0"
    violates(lake, "INSERT INTO {}.db.t VALUES (1, 2, 2)", "ordered")
    violates(lake, "INSERT INTO {}.db.t VALUES (1, 0, 2)", other)
    lake("INSERT INTO {}.db.t VALUES (1, 1, 2)")
    assert "CHECK (n < m)" in dict(row[:2] for row in lake("DESCRIBE TABLE EXTENDED {}.db.t"))["ordered"]
    [[text]] = lake("SHOW CREATE TABLE {}.db.t")
    lake.spark.sql(text.replace(f"{lake.name}.db.t", f"{lake.name}.db.again"))
    assert constraints(lake, "again") == made
    # A table that replaces it has its own constraints alone. Their names are not those of before.
    lake("CREATE OR REPLACE TABLE {}.db.t (id BIGINT, n BIGINT, CHECK (n < 9)) TBLPROPERTIES ('key' = 'id')")
    # Spark 4.1 tells a catalog of no constraints of a table that replaces another,
    assert list(constraints(lake).values()) == (["n < 9"] if is_from_4_2(lake.spark) else [])
    lake("CREATE OR REPLACE TABLE {}.db.t TBLPROPERTIES ('key' = 'id') AS SELECT 1L AS id, 100L AS n")
    assert constraints(lake) == {}
    assert lake.rows == [(1, 100)]
    if not is_from_4_2(lake.spark):
        return  # nor of one that a query makes
    with pytest.raises(PySparkException, match=r"(?i)constraint"):
        lake("CREATE TABLE {}.db.u (CHECK (n > 0)) TBLPROPERTIES ('key' = 'id') AS SELECT 1L AS id, 1L AS n")


def in_a_plain_session(spark: SparkSession, folder: str) -> list[Any]:
    """What Spark's own statements do, as texts."""
    lakemerge.catalog(spark, "lake", warehouse=folder)
    told: list[Any] = []
    for statement in (
        "CREATE NAMESPACE lake.db",
        "CREATE TABLE lake.db.t (id BIGINT, n BIGINT) TBLPROPERTIES ('key' = 'id')",
        "INSERT INTO lake.db.t VALUES (1, 1), (2, -2), (3, NULL)",
        "ALTER TABLE lake.db.t ADD CONSTRAINT Positive CHECK (n > 0)",
        "UPDATE lake.db.t SET n = 2 WHERE id = 2",
        "ALTER TABLE lake.db.t ADD CONSTRAINT Positive CHECK (n > 0)",
        "DELETE FROM lake.db.t WHERE id = 3",
        "ALTER TABLE lake.db.t ADD CONSTRAINT Positive CHECK (n > 0) NOT ENFORCED",
        "ALTER TABLE lake.db.t ADD CONSTRAINT Positive CHECK (n > 0)",
        "INSERT INTO lake.db.t VALUES (4, 0)",
        "ALTER TABLE lake.db.t DROP CONSTRAINT none",
        "ALTER TABLE lake.db.t DROP CONSTRAINT IF EXISTS none",
        "ALTER TABLE lake.db.t ADD CONSTRAINT other CHECK (id > 0)",
        "ALTER TABLE lake.db.t DROP CONSTRAINT positive",
    ):
        try:
            spark.sql(statement).collect()
        except PySparkException as error:
            told.append((statement.partition("lake.db.t ")[2], error.getCondition(), str(error)))
    return told


@pytest.mark.long
def test_statements_of_spark_itself(tmp_path: Path) -> None:
    with Application(tmp_path / "application") as application:
        told = application.run(in_a_plain_session, str(tmp_path / "lake"))
    added = "ADD CONSTRAINT Positive CHECK (n > 0)"
    expected = [
        (added, "NEW_CHECK_CONSTRAINT_VIOLATION", "n > 0"),  # Spark looks for a row first
        (added, "LAKEMERGE_SCHEMA", "'id': 3"),  # and for Spark a null is none
        (f"{added} NOT ENFORCED", None, "ENFORCED"),
        ("VALUES (4, 0)", None, "violate the constraint 'positive'"),
        ("DROP CONSTRAINT none", "LAKEMERGE_SCHEMA", "there is no constraint 'none'"),
    ]
    assert [statement for statement, _, _ in told] == [statement for statement, _, _ in expected], told
    for (_, condition, text), (statement, wanted, part) in zip(told, expected, strict=True):
        assert part in text, (statement, text)
        assert wanted in (None, condition), (statement, condition)
    table = LakeTable.open(tmp_path / "lake" / "db" / "t")
    assert table.opened.view.config.constraints == {"other": "id > 0"}
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == [1, 2]


@pytest.mark.long
def test_other_engines_see_the_constraint(lake: Lake) -> None:
    lake.made()
    lake(POSITIVE)
    path = lake.folder / "db" / "t"
    found = {row[0]: row[1] for row in lake.spark.sql(f"SHOW TBLPROPERTIES delta.`{path}`").collect()}
    assert found["delta.constraints.positive"] == "n > 0"
