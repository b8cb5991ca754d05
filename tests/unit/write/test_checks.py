"""CHECK constraints: every row meets them, whatever was written how, or the table cannot have them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import CommitConflictError, FrameError, LakeMergeError, LakeTable, SchemaError
from lakemerge.delta import DeltaLog
from lakemerge.storage import LocalStore
from lakemerge.table.alter import SchemaChange, alter_table
from lakemerge.write.checks import checks_of
from lakemerge.write.start import WriteRequest
from lakemerge.write.upsert import upsert_arrow
from tests.unit.faults import create, frame, rows_of

DDL = "k BIGINT, o BIGINT, a BIGINT, b BIGINT, note STRING"
CHECKS = {"above": "a < b", "Known": "note IN ('x', 'y') OR a = 0"}


def meets(a: int | None, b: int | None, note: str | None) -> bool:
    """In plain Python; null is not true."""
    above = a is not None and b is not None and a < b
    return above and (note in ("x", "y") or a == 0)


def rows(given: list[tuple[Any, ...]], *names: str) -> pa.Table:
    kinds = dict.fromkeys(("a", "b"), pa.int64())
    return frame(given, names or ("k", "o", "a", "b", "note"), note=pa.string(), **kinds)


def made(path: Path, **how: Any) -> LakeTable:
    table = create(path, schema=DDL, **how)
    table.alter(add_constraints=CHECKS)
    return table


@pytest.mark.parametrize("merger", ["event-time", "commit-time", "first-row"])
def test_every_row_meets_them_whatever_is_written(tmp_path: Path, merger: str) -> None:
    rng = random.Random(merger)
    table = made(tmp_path / "t", merger=merger, ordering=[] if merger == "commit-time" else ["o"])
    refused = 0
    for step in range(60):
        given = [
            (rng.randrange(5), rng.randrange(9), rng.choice([0, 1, 2, None]), rng.choice([1, 2, 3]), rng.choice("xyz"))
            for _ in range(rng.choice([1, 2]))
        ]
        good = all(meets(*row[2:]) for row in given)
        if good:
            table.upsert(rows(given))
        else:
            with pytest.raises(FrameError, match="violate the constraint"):
                table.upsert(rows(given))
            refused += 1
        if step % 20 == 7:
            table.compact(minor=step % 40 == 7)
    found = table.to_arrow().to_pylist()
    assert refused > 5
    assert found
    assert all(meets(row["a"], row["b"], row["note"]) for row in found)


def test_the_metadata_and_the_way_back(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    snapshot = DeltaLog(LocalStore(tmp_path / "t")).snapshot()
    assert snapshot.metadata.configuration["delta.constraints.known"] == CHECKS["Known"]
    assert "checkConstraints" in snapshot.protocol.writer_features
    with pytest.raises(FrameError, match=r"1 row\(s\) violate the constraint 'above' \(a < b\), such as .*'a': 2"):
        table.upsert(rows([(1, 1, 2, 1, "x"), (2, 1, 1, 2, "x")]))
    table.alter(drop_constraints=["ABOVE"])
    table.upsert(rows([(1, 1, 2, 1, "x")]))
    with pytest.raises(SchemaError, match=r"rows violate the constraint 'above'.*key \{'k': 1\}"):
        table.alter(add_constraints={"above": "a < b"})
    assert [entry.operation for entry in table.history()][1] == "DROP CONSTRAINT"
    table.restore(version=1)
    with pytest.raises(FrameError, match="above"):
        table.upsert(rows([(1, 1, 2, 1, "x")]))


def test_an_upsert_carries_all_columns_of_a_constraint_and_a_delete_need_not(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.upsert(rows([(1, 1, 0, 1, "z")]))
    with pytest.raises(FrameError, match=r"need the column\(s\) b, because the constraint 'above'"):
        table.upsert(rows([(1, 2, 0, "x")], "k", "o", "a", "note"))
    table.delete(rows([(1, 3)], "k", "o"))
    assert table.to_arrow().num_rows == 0


def test_transactions_and_overwrites_are_checked(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.upsert(rows([(1, 1, 0, 1, "z"), (2, 1, 1, 2, "x")]))
    with pytest.raises(LakeMergeError, match="violate the constraint 'above'"):
        table.update_where("k = 2", set={"a": "b"})
    with pytest.raises(LakeMergeError, match="violate the constraint 'above'"):
        table.overwrite(rows([(1, 1, 3, 1, "x")]))
    table.update_where("k = 2", set={"b": "b + 1"})
    assert rows_of(table.to_arrow()) == [(1, 1, 0, 1, "z"), (2, 1, 1, 3, "x")]


def test_what_began_before_is_void(tmp_path: Path) -> None:
    table = create(tmp_path / "t", schema=DDL)
    table.upsert(rows([(1, 1, 0, 1, "z")]))
    begin = table.opened.view
    LakeTable.open(tmp_path / "t").alter(add_constraints=CHECKS)
    with pytest.raises(CommitConflictError, match="constraints changed"):
        upsert_arrow(table.opened.handle, begin, rows([(2, 1, 5, 1, "z")]), WriteRequest())


@pytest.mark.parametrize(
    "columns", [SchemaChange(drop_columns=["note"]), SchemaChange(rename_columns={"a": "c"}), SchemaChange()]
)
def test_a_change_that_began_before_is_void(tmp_path: Path, columns: SchemaChange) -> None:
    table = create(tmp_path / "t", schema=DDL)
    begin = table.opened.view
    other = LakeTable.open(tmp_path / "t")
    other.alter(add_constraints=CHECKS)
    with pytest.raises(CommitConflictError, match="set of constraints changed"):
        alter_table(table.opened.handle, begin, columns=columns, merger=None, options=None, description="new")
    begin = other.opened.view
    LakeTable.open(tmp_path / "t").alter(drop_constraints=["above"])
    with pytest.raises(CommitConflictError, match="set of constraints changed"):
        alter_table(other.opened.handle, begin, columns=SchemaChange(), merger=None, options=None, description="new")
    assert list(LakeTable.open(tmp_path / "t").opened.view.config.constraints) == ["known"]


@pytest.mark.parametrize(
    ("how", "checks", "message"),
    [
        ({"merger": "partial-update"}, {"c": "a < b"}, "makes rows of several records"),
        ({"merger": "aggregate", "ordering": []}, {"c": "a > 0"}, "makes rows of several records"),
        ({}, {"c": "nope > 0"}, "constraint 'c' .* cannot be judged.*nope"),
        ({}, {"c": "rand() > 0"}, "cannot be judged"),
        ({}, {"not a name": "a > 0"}, "a name of letters and digits"),
        ({}, {"c": "a > 0", "C": "a > 0"}, "that no other has"),
    ],
)
def test_what_is_refused(tmp_path: Path, how: dict[str, Any], checks: dict[str, str], message: str) -> None:
    table = create(tmp_path / "t", schema=DDL, **how)
    with pytest.raises(SchemaError, match=message):
        table.alter(add_constraints=checks)
    assert table.version == 0


def test_columns_of_a_constraint_stay_and_so_does_a_merger_that_takes_whole_records(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    for change, message in (
        ({"drop_columns": ["note"]}, "constraint 'known' .* names the column 'note'"),
        ({"rename_columns": {"a": "c"}}, "constraint 'above' .* names a"),
        ({"merger": "partial-update"}, "makes rows of several records"),
        ({"drop_constraints": ["none"]}, "there is no constraint 'none'; the table has above, known"),
    ):
        with pytest.raises(SchemaError, match=message):
            table.alter(**change)


def test_checks_go_to_tasks(tmp_path: Path) -> None:
    """Spark's tasks get them with the plan of a frame."""
    table = made(tmp_path / "t")
    sent = pickle.loads(pickle.dumps(checks_of(table.opened.view.config.constraints, table.schema)))
    given = [(1, 1, 0, 1, "z"), (2, 1, 3, 1, "x"), (3, 1, None, 1, "x")]
    assert [check.violating(rows(given))["k"].to_pylist() for check in sent] == [[2, 3], []]
