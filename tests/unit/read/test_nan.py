"""Filters on NaN: SQL means what Spark means, an Arrow expression what Arrow means, whatever is pruned.

Expected keys of SQL are written by hand, those of Arrow expressions are what Arrow keeps of the whole table.
"""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakemerge import LakeTable

ROWS = {1: 1.0, 2: math.nan, 3: None, 4: math.inf, 5: -0.0, 6: -1.5, 7: math.nan}
SQL = {
    "f > 100": [2, 4, 7],
    "f >= double('NaN')": [2, 7],
    "f > double('NaN')": [],
    "f = double('NaN')": [2, 7],
    "f <=> double('NaN')": [2, 7],
    "f IN (double('NaN'), 0.0)": [2, 5, 7],
    "f NOT IN (double('NaN'), 0.0)": [1, 4, 6],
    "f != 1": [2, 4, 5, 6, 7],
    "NOT (f < 1)": [1, 2, 4, 7],
    "f < double('NaN')": [1, 4, 5, 6],
    "f <= double('NaN')": [1, 2, 4, 5, 6, 7],
    "f BETWEEN 1 AND double('NaN')": [1, 2, 4, 7],
    "f * 2 > 100": [2, 4, 7],
    "f = f": [1, 2, 4, 5, 6, 7],
}
F, NAN = pc.field("f"), pc.scalar(math.nan)
ARROW = [F > 100, F >= NAN, F == NAN, F != NAN, F < NAN, F != 1, F == 0.0, ~(F < 1), F.is_nan(), pc.equal(F, F)]


@pytest.fixture(scope="module", params=["base", "logs", "minor"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LakeTable:
    """Files of few rows each, so that statistics could pass over any of them."""
    path = tmp_path_factory.mktemp(request.param)
    made = LakeTable.create(path / "t", "id BIGINT, f DOUBLE", key=["id"], buckets=8)
    frame = pa.table({"id": list(ROWS), "f": pa.array(ROWS.values(), pa.float64())})
    if request.param in ("logs", "minor"):
        made.upsert(pa.table({"id": list(ROWS), "f": pa.array([-7.0] * len(ROWS))}))
    made.upsert(frame)
    if request.param == "minor":
        made.compact(minor=True)
    return made


@pytest.mark.parametrize("condition", SQL)
def test_sql_means_what_spark_means(condition: str, table: LakeTable) -> None:
    assert sorted(table.to_arrow(columns=["id"], filter=condition)["id"].to_pylist()) == SQL[condition]


@pytest.mark.parametrize("condition", ARROW, ids=str)
def test_an_expression_means_what_arrow_means(condition: pc.Expression, table: LakeTable) -> None:
    whole = table.to_arrow()
    assert sorted(whole["id"].to_pylist()) == list(ROWS)
    kept = table.to_arrow(columns=["id"], filter=condition)["id"].to_pylist()
    assert sorted(kept) == sorted(whole.filter(condition)["id"].to_pylist())
