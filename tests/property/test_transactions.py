"""A transaction with another writer at each of its calls to the store: the outcome is that of one after the other."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemerge import LakeTable
from lakemerge.testing.faults import Call, Fault
from tests.property.effort import some
from tests.unit.faults import create, frame, open_over, state_of

BEFORE = [(1, 5, "a"), (2, 5, "b"), (3, 5, "a")]
SOURCE = pa.table({"k": [1, 7], "v": ["m", "m"]})

TRANSACTIONS: Mapping[str, Callable[[LakeTable], object]] = {
    "update": lambda table: table.update_where("v = 'a'", {"v": "concat(v, '!')"}),
    "delete": lambda table: table.delete_where("v = 'a'"),
    "merge": lambda table: (
        table.merge(SOURCE, "target.k = source.k")
        .whenMatchedUpdate(set={"v": "concat(target.v, source.v)"})
        .whenNotMatchedInsert(values={"v": "source.v"})
        .execute()
    ),
}
OTHERS: Mapping[str, Callable[[LakeTable], object]] = {
    "upsert of a key": lambda table: table.upsert(frame([(1, 6, "z")])),
    "upsert that matches": lambda table: table.upsert(frame([(2, 6, "a")])),
    "upsert of another key": lambda table: table.upsert(frame([(50, 1, "z")])),
    "upsert of the new key": lambda table: table.upsert(frame([(7, 1, "z")])),
    "update": lambda table: table.update_where("k = 1", {"v": "concat(v, '?')"}),
    "delete": lambda table: table.delete_where("k = 3"),
    "compaction": lambda table: table.compact(),
    "minor compaction": lambda table: table.compact(minor=True),
    "log compaction": lambda table: table.compact_logs(size_ratio=float("inf")),
    "upsert and compaction": lambda table: (table.upsert(frame([(1, 6, "z")])), table.compact()),
    "upsert and log compaction": lambda table: (
        table.upsert(frame([(1, 6, "z")])), table.compact_logs(size_ratio=float("inf")),
    ),
    "rescale": lambda table: table.rescale(buckets=4),
    "overwrite": lambda table: table.overwrite(frame([(1, 1, "a"), (9, 1, "a")])),
    "overwrite with the same keys": lambda table: table.overwrite(frame([(1, 1, "q"), (2, 5, "q"), (3, 9, "q")])),
    "compaction and vacuum": lambda table: (table.compact(), vacuum(table)),
    "upsert, compaction and vacuum": lambda table: (
        table.upsert(frame([(1, 6, "z")])), table.compact(), vacuum(table),
    ),
    "merge": lambda table: (
        table.merge(frame([(3, 6, "z"), (7, 6, "z")]), "target.k = source.k")
        .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    ),
    "restore": lambda table: table.restore(version=2),
    "column": lambda table: table.alter(add_columns="x INT"),
}  # fmt: skip


def vacuum(table: LakeTable) -> object:
    return table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a base file and two live logs."""
    path = tmp_path_factory.mktemp("source") / "t"
    table = create(path, buckets=2, properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "old"), (2, 5, "b")]))
    table.compact()
    table.upsert(frame([(1, 5, "a")]))
    table.upsert(frame([(3, 5, "a")]))
    assert state_of(path) == BEFORE
    return path


def outcome(source: Path, folder: Path, *deeds: Callable[[LakeTable], object]) -> list[Any]:
    shutil.copytree(source, folder)
    for deed in deeds:
        deed(LakeTable.open(folder))
    found = state_of(folder)
    shutil.rmtree(folder)
    return found


@pytest.mark.parametrize(("name", "other"), some([(name, other) for other in OTHERS for name in TRANSACTIONS]))
def test_another_writer_at_every_call(name: str, other: str, source: Path, tmp_path: Path) -> None:
    transaction, theirs = TRANSACTIONS[name], OTHERS[other]
    first = outcome(source, tmp_path / "t", theirs, transaction)
    last = outcome(source, tmp_path / "t", transaction, theirs)
    shutil.copytree(source, tmp_path / "t")
    table, counting = open_over(tmp_path / "t")
    transaction(table)
    calls = len(counting.calls)
    shutil.rmtree(tmp_path / "t")
    for at in some(range(1, calls + 1)):
        path = tmp_path / "t"
        shutil.copytree(source, path)

        def interfere(call: Call, path: Path = path) -> None:
            theirs(LakeTable.open(path))

        table, _ = open_over(path, Fault(action=interfere, at=at))
        transaction(table)
        found = state_of(path)
        assert found in (first, last), at
        LakeTable.open(path).compact()
        assert state_of(path) == found
        assert LakeTable.check(path).ok
        shutil.rmtree(path)
