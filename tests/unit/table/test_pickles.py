"""A table travels in a pickle, also one that was read and written before."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import InputError, LakeTable


def test_a_used_table_can_be_pickled(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT NOT NULL, v STRING", key=["id"])
    for number in range(3):
        table.upsert(pa.table({"id": [number], "v": ["a"]}))
        assert table.to_arrow().num_rows == number + 1
    again = pickle.loads(pickle.dumps(table))
    assert (again.version, again.to_arrow(), repr(again)) == (3, table.to_arrow(), repr(table))
    again.delete_where("id = 1")
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 2]


def test_one_at_a_version_stays_there(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path, "id BIGINT NOT NULL", key=["id"])
    table.upsert(pa.table({"id": [1]}))
    old = LakeTable.open(tmp_path, version=1)
    table.upsert(pa.table({"id": [2]}))
    again = pickle.loads(pickle.dumps(old))
    assert (again.version, again.to_arrow()["id"].to_pylist()) == (1, [1])
    with pytest.raises(InputError, match="read-only"):
        again.upsert(pa.table({"id": [3]}))
