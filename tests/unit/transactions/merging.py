"""Merges that mean the same with and without Spark: what they leave, what they explain, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from lakemerge import FilterError, FrameError, InputError, LakeTable, Settings
from lakemerge.read.filter.prune import file_slices_of_keys
from lakemerge.transactions.builder import MergeBuilder
from tests.unit.faults import rows_of

__all__ = [
    "DDL",
    "MERGES",
    "REFUSALS",
    "ROWS",
    "SOURCE",
    "Merge",
    "Refusal",
    "made",
    "state",
    "table_of_key",
    "with_holes",
]

DDL = "k BIGINT, g STRING, n INT, s STRUCT<a: INT, b: STRING>"
ROWS: list[dict[str, Any]] = [
    {"k": 1, "g": "x", "n": 10, "s": {"a": 1, "b": "p"}},
    {"k": 2, "g": "x", "n": 20, "s": None},
    {"k": 3, "g": "y", "n": None, "s": {"a": 3, "b": None}},
    {"k": 4, "g": "y", "n": 40, "s": {"a": 4, "b": "q"}},
]
SOURCE = pa.table(
    {
        "k": pa.array([1, 2, 3, 8, 9], pa.int64()),
        "g": ["a", "b", "c", "d", None],
        "n": pa.array([100, None, 300, 800, 900], pa.int32()),
        "extra": ["e1", "e2", "e3", "e8", None],
    }
)
SAME = "target.k = source.k"


def made(path: Path, *, spark: Any = None, max_columns: int | None = None) -> LakeTable:
    settings = None if max_columns is None else Settings(max_columns=max_columns)
    table = LakeTable.create(path, DDL, key=["k"], buckets=2, merger="commit-time", settings=settings, spark=spark)
    table.upsert(pa.Table.from_pylist(ROWS[:3], schema=pa.schema(table.schema)))
    table.compact()
    table.upsert(pa.Table.from_pylist(ROWS[3:], schema=pa.schema(table.schema)))
    return table


def state(table: LakeTable) -> list[tuple[Any, ...]]:
    return rows_of(table.to_arrow())


def with_holes(path: Path, *, spark: Any = None) -> LakeTable:
    """A table of two partitions with eight buckets each, which has lost all files but those of one bucket: of row
    ``p = 'a'``, ``k = 1``. A read of others fails."""
    table = LakeTable.create(
        path, "p STRING, k BIGINT, n INT", key=["p", "k"], partition_by=["p"], buckets=8, merger="commit-time",
        spark=spark,
    )  # fmt: skip
    rows = [{"p": p, "k": k, "n": k} for p in "ab" for k in range(200)]
    table.upsert(pa.Table.from_pylist(rows, schema=pa.schema(table.schema)))
    table.compact()
    (kept,) = [part.base.add.path for part in file_slices_of_keys(table.opened.view, table_of_key("a", 1)) if part.base]
    for name in table.opened.view.snapshot.files:
        if name != kept:
            (path / name).unlink()
    return table


def table_of_key(p: str, k: int) -> pa.Table:
    return pa.table({"p": [p], "k": pa.array([k], pa.int64())})


class Merge(NamedTuple):
    build: Callable[[MergeBuilder], MergeBuilder]
    after: Mapping[int, tuple[Any, ...] | None]
    """Key -> the columns after the key; ``None``: the row is gone. Other rows stay as they were."""
    counts: tuple[int, int, int, int]
    """Rows that match, are updated, deleted, inserted."""
    on: str = SAME
    how: Mapping[str, Any] = {}
    columns: tuple[str, ...] = ("k", "g", "n")
    """The columns of the source."""
    source: pa.Table = SOURCE


P, Q = {"a": 1, "b": "p"}, {"a": 4, "b": "q"}
REPEATED = pa.table({"k": pa.array([1, 1, 4, 7], pa.int64()), "g": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]})
PLAIN = {"g": "source.g", "n": "source.n"}

MERGES: Mapping[str, Merge] = {
    "update and insert": Merge(
        lambda merge: merge.whenMatchedUpdate(set={"n": "target.n + source.n", "g": "source.g"}).whenNotMatchedInsert(
            values={"k": "source.k", "n": "source.n", "g": "'new'"}
        ),
        {1: ("a", 110, P), 2: ("b", None, None), 3: ("c", None, {"a": 3, "b": None}), 8: ("new", 800, None),
         9: ("new", 900, None)},
        (3, 3, 0, 2),
    ),
    "the first clause whose condition holds": Merge(
        lambda merge: merge.whenMatchedDelete("source.n = 100")
        .whenMatchedUpdate("target.n IS NULL", {"n": -1})
        .whenMatchedUpdate(condition="target.k < 100", set={"g": "'late'"})
        .whenNotMatchedInsert("source.n > 800", {"n": "n"})
        .whenNotMatchedInsert(values={"g": "concat(g, '!')"}),
        {1: None, 2: ("late", 20, None), 3: ("y", -1, {"a": 3, "b": None}), 8: ("d!", None, None),
         9: (None, 900, None)},
        (3, 2, 1, 2),
    ),
    "rows that the source lacks": Merge(
        lambda merge: merge.whenNotMatchedBySourceUpdate("g = 'y'", {"target.n": "n + 1"})
        .whenNotMatchedBySourceDelete(),
        {4: ("y", 41, Q)},
        (3, 1, 0, 0),
    ),
    "all kinds of clauses": Merge(
        lambda merge: merge.whenMatchedUpdate("source.n IS NOT NULL", {"n": "source.n"}).whenMatchedDelete()
        .whenNotMatchedInsert("source.g IS NOT NULL", PLAIN).whenNotMatchedBySourceDelete("target.n > 0"),
        {1: ("x", 100, P), 2: None, 3: ("y", 300, {"a": 3, "b": None}), 4: None, 8: ("d", 800, None)},
        (3, 2, 2, 1),
    ),
    "aliases, and a key that is computed": Merge(
        lambda merge: merge.whenMatchedUpdate(set={"t.n": "S.n"}).whenNotMatchedInsert(values={"t.n": "s.n"}),
        {4: ("y", 300, Q), 2: ("x", 100, None), 3: ("y", None, {"a": 3, "b": None}), 9: (None, 800, None),
         10: (None, 900, None)},
        (3, 3, 0, 2),
        "s.k + 1 = t.k",
        {"target_alias": "t", "source_alias": "s"},
    ),
    "further conditions": Merge(
        lambda merge: merge.whenMatchedUpdate(set={"n": "source.n"}).whenNotMatchedBySourceUpdate(set={"g": "'alone'"}),
        {1: ("x", 100, P), 2: ("x", None, None), 3: ("alone", None, {"a": 3, "b": None}), 4: ("alone", 40, Q)},
        (2, 4, 0, 0),
        SAME + " AND target.g = 'x'",
    ),
    "further conditions over several source rows": Merge(
        lambda merge: merge.whenMatchedUpdate(set={"n": "source.n"}).whenNotMatchedBySourceDelete(),
        {1: ("x", 2, P), 2: None, 3: None, 4: None},
        (1, 1, 3, 0),
        "target.k <=> source.k AND source.g = 'b'",
        source=REPEATED,
    ),
    "several source rows that delete": Merge(
        lambda merge: merge.whenMatchedDelete().whenNotMatchedInsert(values=PLAIN),
        {1: None, 4: None, 7: ("d", 4, None)},
        (2, 0, 2, 1),
        source=REPEATED,
    ),
    "several source rows that are not inserted": Merge(
        lambda merge: merge.whenNotMatchedInsert("source.n > 3", values=PLAIN), {7: ("d", 4, None)}, (2, 0, 0, 1),
        source=REPEATED,
    ),
    "plain values": Merge(
        lambda merge: merge.whenMatchedUpdate(set={"n": 7, "s": {"a": None, "b": "it's"}, "g": None}),
        {key: (None, 7, {"a": None, "b": "it's"}) for key in (1, 2, 3)},
        (3, 3, 0, 0),
    ),
    "an empty source": Merge(
        lambda merge: merge.whenMatchedDelete().whenNotMatchedInsert(values=PLAIN), {}, (0, 0, 0, 0),
        source=SOURCE.slice(0, 0),
    ),
    "an empty source, and rows that it lacks": Merge(
        lambda merge: merge.whenNotMatchedBySourceDelete("k = 2"), {2: None}, (0, 0, 1, 0), source=SOURCE.slice(0, 0)
    ),
}  # fmt: skip


class Refusal(NamedTuple):
    build: Callable[[MergeBuilder], MergeBuilder]
    error: type[Exception]
    text: str
    on: str = SAME
    columns: tuple[str, ...] = ("k", "g", "n")
    source: pa.Table = SOURCE


REFUSALS: Mapping[str, Refusal] = {
    "no clause": Refusal(lambda merge: merge, InputError, "at least one clause"),
    "a clause that no row reaches": Refusal(
        lambda merge: merge.whenMatchedDelete().whenMatchedUpdate("n > 1", {"n": 1}),
        InputError,
        "WHEN MATCHED THEN UPDATE, because one before it has no condition",
    ),
    "an insert that no row reaches": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values={}).whenMatchedDelete().whenNotMatchedInsert("n > 1", {}),
        InputError,
        "only the last clause of its kind",
    ),
    "a set without values": Refusal(
        lambda merge: merge.whenMatchedUpdate(), InputError, "needs set={column: value"
    ),
    "several source rows for one row": Refusal(
        lambda merge: merge.whenMatchedUpdate(set={"n": "source.n"}),
        InputError,
        "several source rows match one row of the table.*leave one source row for each key",
        source=REPEATED,
    ),
    "several source rows, none of which a clause takes": Refusal(
        lambda merge: merge.whenMatchedUpdate("false", set={"n": "source.n"}),
        InputError,
        "several source rows match",
        source=REPEATED,
    ),
    "several source rows to insert": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values=PLAIN),
        InputError,
        "several rows of one key",
        source=pa.concat_tables([SOURCE, SOURCE]).select(["k", "g", "n"]),
    ),
    "an insert beside a row that does not meet the condition": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values=PLAIN),
        InputError,
        "does not meet the other conditions",
        SAME + " AND target.g = 'x'",
    ),
    "a key column in SET": Refusal(
        lambda merge: merge.whenMatchedUpdate(set={"k": "source.k", "n": 1}),
        FrameError,
        "'k' is a key column, which stays: leave it out, or delete the row and upsert it anew",
    ),
    "a condition without the key": Refusal(
        lambda merge: merge.whenMatchedDelete(), FilterError, "k is missing.*'target.k = source.k'",
        "target.n = source.n",
    ),
    "a key compared by order": Refusal(
        lambda merge: merge.whenMatchedDelete(), FilterError, "does not compare the whole key", "target.k < source.k"
    ),
    "a column that both rows have": Refusal(
        lambda merge: merge.whenMatchedUpdate("n > 1", {"g": "'a'"}),
        FilterError,
        "in the table and in the source|[Aa]mbiguous",
    ),
    "a condition that is none": Refusal(
        lambda merge: cast("Any", merge).whenMatchedDelete({"n": "1"}),
        InputError,
        "condition is SQL text.*name the parameter",
    ),
    "values that are none": Refusal(
        lambda merge: cast("Any", merge).whenMatchedUpdate(set="n"),
        InputError,
        "set must be a mapping",
    ),
    "an insert from the table's row": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values={"n": "target.n"}), FilterError, "target"
    ),
    "an update from a source row that there is not": Refusal(
        lambda merge: merge.whenNotMatchedBySourceUpdate(set={"n": "source.n"}), FilterError, "source"
    ),
    "a key that was not compared": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values={"k": "source.k + 1"}), FrameError, "the key by which"
    ),
    "all columns of another key": Refusal(
        lambda merge: merge.whenNotMatchedInsertAll(), FrameError, "takes key column 'k' from source.*compares it",
        "target.k = source.k + 1", ("k", "g", "n", "s"), SOURCE.append_column("s", pa.nulls(5)),
    ),
    "all columns of a source that lacks one": Refusal(
        lambda merge: merge.whenMatchedUpdateAll(), FrameError, "no column 's'.*withSchemaEvolution"
    ),
    "a value of another type": Refusal(
        lambda merge: merge.whenMatchedUpdate(set={"n": "source.g"}), FilterError, "'n' is STRING, and the column"
    ),
    "an unknown column": Refusal(
        lambda merge: merge.whenMatchedUpdate(set={"extra": "source.extra"}), FrameError, "unknown column 'extra'"
    ),
    "a key that is null": Refusal(
        lambda merge: merge.whenNotMatchedInsert(values=PLAIN), FrameError, "key column 'k' is null",
        source=pa.table({"k": pa.array([None], pa.int64()), "g": ["a"], "n": [1]}),
    ),
}  # fmt: skip
