"""A replacement at every call of another operation's, and another operation at every call of a replacement's.

Whatever the order, the table has the new definition, and of all rows only those that were committed after it. Every
version before it reads as it did.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakemerge import CommitConflictError, LakeTable, TableReplacedError
from lakemerge.delta import DeltaLog
from lakemerge.storage.local import LocalStore
from lakemerge.table.create import create_table
from lakemerge.testing.faults import Call, Fault, FaultStore
from tests.property.effort import some
from tests.unit.faults import DDL, Row, create, frame, rows_of

NOW = dt.timedelta(0)
BEFORE = [(1, 2, "A"), (2, 1, "b"), (3, 3, "C")]

OPERATIONS: dict[str, Callable[[LakeTable], object]] = {
    "append": lambda table: table.upsert(frame([(1, 50, "late"), (7, 1, "late")])),
    "append with a number": lambda table: table.upsert(frame([(7, 1, "late")]), txn=("app", 8)),
    "grow": lambda table: table.upsert(frame([(7, 1, "late", "w")], ["k", "o", "v", "w"]), merge_schema=True),
    "delete_where": lambda table: table.delete_where("k = 3"),
    "overwrite": lambda table: table.overwrite(frame([(3, 1, "n")])),
    "compact": lambda table: table.compact(),
    "minor": lambda table: table.compact(minor=True),
    "logs": lambda table: table.compact_logs(size_ratio=float("inf")),
    "rescale": lambda table: table.rescale(buckets=4),
    "alter": lambda table: table.alter(add_columns="note STRING"),
    "restore": lambda table: table.restore(savepoint="saved"),
    "savepoint": lambda table: table.savepoint("late"),
    "vacuum": lambda table: table.vacuum(dry_run=False, retention=NOW, enforce_retention=False),
    "maintain": lambda table: table.maintain(),
    "replace": lambda table: replaced(table.opened.handle.store, "theirs"),
}
WRITES = {"append", "append with a number", "grow"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a base file, a minor entry, two live logs, a savepoint and an application's number."""
    path = tmp_path_factory.mktemp("source") / "t"
    table = create(
        path, buckets=2, properties={"lakemerge.maintenance": "off", "lakemerge.compaction.afterCommits": "1"}
    )
    table.upsert(frame([(1, 1, "a"), (2, 1, "b"), (9, 1, "gone")]), txn=("app", 7))
    table.delete(frame([(9, 5)], ["k", "o"]))
    table.compact()
    table.savepoint("saved")
    table.upsert(frame([(1, 2, "A")]))
    table.compact(minor=True)
    table.upsert(frame([(3, 1, "c")]))
    table.upsert(frame([(3, 3, "C")]))
    assert rows_of(table.to_arrow()) == BEFORE
    return path


def replaced(store: Any, name: str) -> int:
    """Replace the table by one of the same columns, so that records of the old one would fit. Returns the version."""
    handle = replace(LakeTable.open(store.url).opened.handle, store=store, log=DeltaLog(store))
    options: dict[str, Any] = dict.fromkeys(("merger", "options", "description", "properties"))
    made = create_table(
        handle, DDL, key=["k"], ordering=["o"], partition_by=(), buckets=2, name=name, replace=True, **options
    )
    return made.version


def over(path: Path, store: FaultStore) -> LakeTable:
    handle = replace(LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store))
    return LakeTable(handle, DeltaLog(LocalStore(path)).snapshot(), pinned=False, spark=None)


def check(path: Path, at: int, rows: list[Row]) -> None:
    """The table is the one of version ``at``, with these rows; the version before it reads as it did."""
    table = LakeTable.open(path)
    assert table.opened.view.snapshot.metadata.name == "mine"
    assert rows_of(table.to_arrow(columns=["k", "o", "v"])) == rows
    assert LakeTable.check(path).ok
    table.upsert(frame([(100, 1, "new")]), txn=("app", 9 if rows else 0))
    table.compact()
    assert rows_of(LakeTable.open(path).to_arrow(columns=["k", "o", "v"])) == sorted([*rows, (100, 1, "new")], key=repr)
    if "saved" in {point.name for point in table.savepoints()}:
        saved = LakeTable.open(path, savepoint="saved")
        assert rows_of(saved.to_arrow()) == [(1, 1, "a"), (2, 1, "b")]


def counted(source: Path, path: Path, operation: str) -> int:
    """How many calls of the store the operation makes."""
    shutil.copytree(source, path)
    store = FaultStore(LocalStore(path))
    OPERATIONS[operation](over(path, store))
    return len(store.calls)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_replacement_at_every_call(operation: str, source: Path, tmp_path: Path) -> None:
    calls = counted(source, tmp_path / "clean", operation)
    for at in some(range(1, calls + 1)):
        path = shutil.copytree(source, tmp_path / str(at))
        versions: list[int] = []

        def hook(call: Call, path: Path = path, versions: list[int] = versions) -> None:
            versions.append(replaced(LocalStore(path), "mine"))

        store = FaultStore(LocalStore(path), Fault(action=hook, at=at))
        outcome: Any = None
        with contextlib.suppress(CommitConflictError, TableReplacedError):
            outcome = OPERATIONS[operation](over(path, store))
        (version,) = versions
        if operation == "replace":
            # It is valid at any tip, so the later one stands.
            assert LakeTable.open(path).opened.view.snapshot.metadata.name == (
                "theirs" if outcome > version else "mine"
            )
            assert rows_of(LakeTable.open(path).to_arrow()) == []
            continue
        if operation in WRITES and outcome is not None:
            assert outcome.version < version, "what began before does not land after it"
        assert LakeTable.open(path).version == version, "nothing of the operation lands after it"
        check(path, version, [])


@pytest.mark.parametrize("operation", some([*OPERATIONS]))
@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
def test_an_operation_at_every_call_of_a_replacement(after: bool, operation: str, source: Path, tmp_path: Path) -> None:
    """The operation opens the table by itself, so it may belong to either table."""
    clean = shutil.copytree(source, tmp_path / "clean")
    counting = FaultStore(LocalStore(clean))
    replaced(counting, "mine")
    for at in some(range(1, len(counting.calls) + 1)):
        path = shutil.copytree(source, tmp_path / str(at))
        outcomes: list[Any] = []

        def hook(call: Call, path: Path = path, outcomes: list[Any] = outcomes) -> None:
            table = LakeTable.open(path)
            if table.opened.view.snapshot.metadata.name == "mine" and operation in ("restore", "replace"):
                return
            with contextlib.suppress(CommitConflictError):
                outcomes.append(OPERATIONS[operation](table))

        version = replaced(FaultStore(LocalStore(path), Fault(action=hook, at=at, after=after)), "mine")
        rows: list[Row] = []
        if operation in WRITES and outcomes[0].version > version:
            rows = [(1, 50, "late"), (7, 1, "late")] if operation == "append" else [(7, 1, "late")]
        check(path, version, rows)
