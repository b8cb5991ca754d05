"""A catalog for a test, and other writers in its tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakemerge import LakeTable

__all__ = ["NEEDS_DELTA", "Lake", "is_from_4_2", "new_name", "upserted"]

_names = itertools.count()


def new_name(kind: str) -> str:
    """A name that no other test has."""
    return f"{kind}{next(_names)}"


NEEDS_DELTA = pytest.mark.skipif(
    find_spec("delta") is None,
    reason="Delta has no jar for this Spark: the session writes no Delta tables, and Spark checks constraints first",
)


def is_from_4_2(spark: SparkSession) -> bool:
    """Whether Spark has what came with 4.2, such as ``CHANGES FROM VERSION``."""
    return tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)


class Lake:
    """A catalog of a test's own. ``{}`` in a statement stands for its name."""

    def __init__(self, spark: SparkSession, name: str, folder: Path) -> None:
        self.spark, self.name, self.folder = spark, name, folder

    def __call__(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement.replace("{}", self.name)).collect()]

    def refused(self, statement: str, condition: str, message: str = ".") -> None:
        with pytest.raises(AnalysisException, match=message) as caught:
            self(statement)
        assert caught.value.getCondition() == condition

    def made(self, rows: str = "(1, 'a', 10, 1), (2, 'b', NULL, 2), (3, 'c', 30, 3)", **properties: str) -> LakeTable:
        told = "".join(f", '{name}' = '{value}'" for name, value in properties.items())
        self(
            "CREATE TABLE {}.db.t (id BIGINT, state STRING, at BIGINT, n BIGINT) "
            f"TBLPROPERTIES ('key' = 'id', 'ordering' = 'at'{told})"
        )
        self(f"INSERT INTO {{}}.db.t VALUES {rows}")
        return self.table

    @property
    def table(self) -> LakeTable:
        return LakeTable.open(self.folder / "db" / "t")

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return self("SELECT * FROM {}.db.t ORDER BY id")

    def meddling(self, act: Callable[[LakeTable], object]) -> str:
        """The name of a function for SQL. The first call that computes a row lets another writer commit, and the
        value stays what it is."""
        path, marker = str(self.folder / "db" / "t"), str(self.folder / new_name("done"))

        def meddle(value: int | None) -> int | None:
            try:
                with open(marker, "x"):
                    act(LakeTable.open(path))
            except FileExistsError:
                pass
            return value

        name = new_name("meddle")
        self.spark.udf.register(name, meddle, "bigint")
        return name


def upserted(key: int, at: int, n: int) -> Callable[[LakeTable], object]:
    def act(table: LakeTable) -> object:
        return table.upsert(pa.table({"id": [key], "state": ["other"], "at": [at], "n": [n]}))

    return act
