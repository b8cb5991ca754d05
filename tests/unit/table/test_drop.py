"""Dropping tables, and asking whether there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge import (
    InputError,
    LakeTable,
    NotATableError,
    StoreError,
    TableExistsError,
    TableReplacedError,
    UnsupportedFeatureError,
)
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage import FileStat, LocalStore
from lakemerge.table.drop import drop_table
from lakemerge.table.opening import open_handle
from lakemerge.testing.faults import Call, Fault, FaultStore
from tests.unit.faults import UNKNOWN, commit_domains

ROWS = pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})


def made(path: Path) -> LakeTable:
    table = LakeTable.create(path, "k BIGINT, v STRING", key=["k"])
    table.upsert(ROWS)
    table.upsert(ROWS)
    return table


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    made(tmp_path)
    last = commit_domains(tmp_path, UNKNOWN)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'.*install a newer lakemerge"):
        LakeTable.drop(tmp_path)
    assert LakeTable.open(tmp_path).version == last, "nothing was committed"


def test_a_dropped_table_leaves_nothing(tmp_path: Path) -> None:
    made(tmp_path / "t")
    assert LakeTable.exists(tmp_path / "t")
    assert LakeTable.drop(tmp_path / "t")
    assert not LakeTable.exists(tmp_path / "t")
    assert not (tmp_path / "t").exists()
    assert not LakeTable.drop(tmp_path / "t")
    assert LakeTable.create(tmp_path / "t", "k INT", key=["k"]).version == 0


def test_a_file_that_the_store_keeps_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an object lock does. The table is dropped, and the drop goes on later."""
    made(tmp_path / "t")
    delete, kept = LocalStore.delete_exact, f"_delta_log/{0:020d}.json"

    def but_one(store: LocalStore, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        return delete(store, [file for file in files if file.path != kept])

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_exact", but_one)
        with pytest.raises(StoreError, match=f"keeps {kept}, which was deleted"):
            LakeTable.drop(tmp_path / "t")
    assert not LakeTable.exists(tmp_path / "t")
    assert LakeTable.drop(tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_what_began_before_fails_by_name(tmp_path: Path) -> None:
    table, other = made(tmp_path / "t"), LakeTable.open(tmp_path / "t")
    LakeTable.drop(tmp_path / "t")
    for call in (lambda: table.upsert(ROWS), other.to_arrow):
        with pytest.raises(TableReplacedError, match="removed or re-created"):
            call()


def test_savepoints_forbid_it(tmp_path: Path) -> None:
    table = made(tmp_path / "t")
    table.savepoint("audit")
    with pytest.raises(InputError, match="savepoints 'audit': drop these first"):
        LakeTable.drop(tmp_path / "t")
    assert table.to_arrow().num_rows == 2
    table.drop_savepoint("audit")
    assert LakeTable.drop(tmp_path / "t")


def test_a_plain_delta_table_is_never_dropped(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(tmp_path / "t"), ROWS)
    assert not LakeTable.exists(tmp_path / "t")
    with pytest.raises(NotATableError, match="not a LakeMerge table"):
        LakeTable.drop(tmp_path / "t")
    assert deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 2


class Stopped(BaseException):
    """The end of the process, as far as the code that runs can tell."""


def stop(_: Call) -> None:
    raise Stopped


def test_a_drop_goes_on_wherever_it_was_interrupted(tmp_path: Path) -> None:
    """The process ends at each call of the store in turn."""
    calls = 0
    while True:
        path = tmp_path / f"t{calls}"
        made(path)
        handle = open_handle(path, None, (), None)
        store = FaultStore(handle.store, Fault(action=stop, at=calls + 1))
        try:
            drop_table(Handle(store, DeltaLog(store), handle.registry, handle.settings))
        except Stopped:
            # All that may be left are empty folders.
            LakeTable.drop(path)
            assert not LakeTable.exists(path)
            assert [found for found in path.rglob("*") if found.is_file()] == []
            calls += 1
            continue
        break
    assert calls > 5


def test_what_is_left_of_one_is_no_table(tmp_path: Path) -> None:
    made(tmp_path / "t")
    handle = open_handle(tmp_path / "t", None, (), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakemerge.table.drop._delete", lambda *_: None)
        assert drop_table(handle)
    assert not LakeTable.exists(tmp_path / "t")
    with pytest.raises(NotATableError, match=r"was dropped.* drop it again"):
        LakeTable.open(tmp_path / "t")
    for replace in (False, True):
        with pytest.raises(TableExistsError, match=r"was dropped.* drop it again"):
            LakeTable.create(tmp_path / "t", "k INT", key=["k"], replace=replace)
    assert LakeTable.drop(tmp_path / "t")
    assert not (tmp_path / "t").exists()
