"""Keys whose partition changes: ``upsert(frame, before=...)`` leaves each in one, whatever arrives when."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import FrameError, InputError, LakeTable

DDL = "region STRING, id BIGINT, seq BIGINT, v STRING NOT NULL"


def made(path: Path, **how: Any) -> LakeTable:
    arguments: dict[str, Any] = {"key": ["region", "id"], "ordering": ["seq"], "partition_by": ["region"], "buckets": 2}
    return LakeTable.create(path, DDL, **{**arguments, **how})


def frame(rows: list[tuple[Any, ...]], *more: str) -> pa.Table:
    names = ["region", "id", "seq", "v", "was", *more]
    kinds = {"id": pa.int64(), "seq": pa.int64()}
    return pa.table(
        {name: pa.array([row[at] for row in rows], kinds.get(name, pa.string())) for at, name in enumerate(names)}
    )


def rows_of(table: LakeTable) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow().to_pylist())


@pytest.mark.parametrize("seed", range(4))
def test_each_key_is_in_one_partition_whatever_arrives_when(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    changes: list[tuple[Any, ...]] = []
    last: dict[int, tuple[Any, ...]] = {}
    for seq in range(60):
        key, region = rng.randrange(6), rng.choice("abc")
        before = last[key][0] if key in last else None
        last[key] = (region, key, seq, f"v{seq}")
        changes.append((*last[key], before))
    rng.shuffle(changes)
    table, without = made(tmp_path / "t"), made(tmp_path / "without")
    while changes:
        batch, changes = changes[:7], changes[7:]
        table.upsert(frame(batch), before={"REGION": "was"})
        without.upsert(frame(batch).drop_columns(["was"]))
        if rng.random() < 0.3:
            table.compact(minor=rng.random() < 0.5)
    assert rows_of(table) == sorted(last.values())
    assert len(rows_of(without)) > len(last)
    assert table.schema.names == ["region", "id", "seq", "v"]


def test_without_ordering_the_delete_goes_before_its_record(tmp_path: Path) -> None:
    """A row that goes to another partition and comes back within one frame."""
    table = made(tmp_path, ordering=[])
    table.upsert(frame([("a", 1, 1, "x", None)]), before={"region": "was"})
    table.upsert(frame([("b", 1, 2, "y", "a"), ("a", 1, 3, "z", "b")]), before={"region": "was"})
    assert rows_of(table) == [("a", 1, 3, "z")]


def test_kinds_of_the_frame_stay(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.upsert(frame([("a", k, 1, "x", None) for k in (1, 2, 3)]), before={"region": "was"})
    changes = [("b", 1, 2, "y", "a", "+U"), ("b", 2, 2, "y", "a", "-D"), ("b", 3, 2, "y", "a", "update_preimage")]
    table.upsert(frame(changes, "op"), before={"region": "was"}, kind_column="op")
    assert rows_of(table) == [("a", 3, 1, "x"), ("b", 1, 2, "y")]


@pytest.mark.parametrize(
    ("before", "kind", "message"),
    [
        ({"id": "was"}, InputError, "names 'id', and partition columns are region"),
        ({"region": "wass"}, FrameError, "no column 'wass'.*did you mean 'was'"),
        ({"region": "v"}, FrameError, "'v', which is a column of the table"),
        ({"region": "seq2"}, FrameError, "no column 'seq2'"),
    ],
)
def test_what_is_refused(tmp_path: Path, before: dict[str, str], kind: type[Exception], message: str) -> None:
    table = made(tmp_path)
    with pytest.raises(kind, match=f"(?i){message}"):
        table.upsert(frame([("a", 1, 1, "x", None)]), before=before)
    assert table.version == 0


def test_a_table_without_partitions_has_no_moves(tmp_path: Path) -> None:
    table = made(tmp_path, partition_by=[])
    with pytest.raises(InputError, match="this table has none"):
        table.upsert(frame([("a", 1, 1, "x", None)]), before={"region": "was"})


def test_values_of_another_type_are_compared_in_the_tables_type(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path, "p INT, id BIGINT, seq BIGINT", key=["p", "id"], ordering=["seq"], partition_by=["p"]
    )
    table.upsert(pa.table({"p": [1, 2], "id": [1, 2], "seq": [1, 1]}))
    moves = pa.table({"p": [1, 1], "id": [1, 2], "seq": [2, 2], "was": pa.array([1, 2], pa.int8())})
    table.upsert(moves, before={"p": "was"})
    assert sorted(tuple(row.values()) for row in table.to_arrow().to_pylist()) == [(1, 1, 2), (1, 2, 2)]
    with pytest.raises(FrameError, match="was"):
        table.upsert(moves.set_column(3, "was", pa.array([1, 2**40])), before={"p": "was"})
