"""A LakeMerge table becomes a plain Delta table: who reads and writes it then, what forbids it, and where it is cut."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import deltalake
import polars
import pyarrow as pa
import pytest

from benchmarks.duckdb_with import duckdb_with
from lakemerge import CommitConflictError, InputError, LakeTable, NotATableError, UnsupportedFeatureError
from lakemerge._internal.pools import inline_pools
from lakemerge.convert.unconverting import unconvert_table
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.storage import LocalStore
from lakemerge.table.alter import SchemaChange, alter
from lakemerge.table.open_table import OpenTable
from lakemerge.testing.faults import Call, Fault, FaultStore
from mergers import default_registry
from tests.unit.faults import UNKNOWN, commit_domains

OFF = {"lakemerge.maintenance": "off"}
DDL = "k BIGINT, o BIGINT, v STRING"


def rows(keys: range, o: int, v: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "o": pa.array([o] * len(keys), pa.int64()), "v": [v] * len(keys)})


def made(path: Path, publish: str = "off", **arguments: Any) -> LakeTable:
    """Base files, a minor compaction, a delete and logs."""
    table = LakeTable.create(
        path, DDL, key=["k"], ordering=["o"], buckets=2, properties={**OFF, "lakemerge.publish": publish}, **arguments
    )
    table.upsert(rows(range(20), 1, "loaded"))
    table.upsert(rows(range(6), 2, "minor"))
    table.compact(minor=True)
    table.upsert(rows(range(4, 9), 3, "logged"))
    table.delete(pa.table({"k": pa.array([19], pa.int64()), "o": pa.array([3], pa.int64())}))
    return table


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    made(tmp_path)
    last = commit_domains(tmp_path, UNKNOWN)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'.*install a newer lakemerge"):
        LakeTable.open(tmp_path).unconvert()
    assert LakeTable.open(tmp_path).version == last, "nothing was committed"


def model() -> list[dict[str, Any]]:
    found = dict.fromkeys(range(19), (1, "loaded"))
    found |= dict.fromkeys(range(6), (2, "minor"))
    found |= dict.fromkeys(range(4, 9), (3, "logged"))
    return [{"k": k, "o": o, "v": v} for k, (o, v) in sorted(found.items())]


def listed(table: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.select(["k", "o", "v"]).to_pylist()
    return sorted(found, key=lambda row: row["k"])


def of_deltalake(path: Path) -> list[dict[str, Any]]:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("SELECT * FROM t").read_all()
    return listed(pa.table(found))


def of_polars(path: Path) -> list[dict[str, Any]]:
    return listed(polars.scan_delta(str(path)).collect().to_arrow())


def of_duckdb(path: Path) -> list[dict[str, Any]]:
    with duckdb_with("delta") as connection:
        return listed(connection.sql(f"SELECT * FROM delta_scan('{path}')").to_arrow_table())


@pytest.mark.parametrize("publish", ["off", "deletionVectors", "rewrite"])
def test_other_engines_read_and_write_it(tmp_path: Path, publish: str) -> None:
    path = tmp_path / "t"
    table = made(path, publish)
    result = table.unconvert()
    assert (result.rows, result.compacted) == (19, True)
    assert result.version == DeltaLog(LocalStore(path)).snapshot().version
    for read in (of_deltalake, of_polars):
        assert read(path) == model(), read
    snapshot = DeltaLog(LocalStore(path)).snapshot()
    assert not snapshot.domains
    assert not [name for name in snapshot.metadata.configuration if name.startswith("lakemerge.")]
    assert "delta.enableInCommitTimestamps" not in snapshot.metadata.configuration
    by_vectors = publish == "deletionVectors"
    assert (snapshot.protocol.min_reader, snapshot.protocol.min_writer) == (3 if by_vectors else 1, 7)
    assert snapshot.protocol.writer_features == {"invariants", *(["deletionVectors"] if by_vectors else [])}
    if by_vectors:
        assert any(add.vector is not None for add in snapshot.files.values())
    if not by_vectors:
        deltalake.write_deltalake(path, rows(range(100, 103), 1, "theirs"), mode="append")
        deltalake.DeltaTable(path).delete("k = 0")
        theirs = [*model()[1:], *rows(range(100, 103), 1, "theirs").to_pylist()]
        assert of_deltalake(path) == of_polars(path) == theirs
        deltalake.DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        assert of_deltalake(path) == theirs


def test_duckdb_reads_it(tmp_path: Path) -> None:
    for publish in ("off", "deletionVectors"):
        made(tmp_path / publish, publish).unconvert()
        assert of_duckdb(tmp_path / publish) == model()


def test_what_forbids_it(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.savepoint("month")
    table.consumers.register("mirror")
    with pytest.raises(InputError, match="savepoints 'month'"):
        table.unconvert()
    table.drop_savepoint("month")
    with pytest.raises(InputError, match="consumers 'mirror'"):
        table.unconvert()
    table.consumers.drop("mirror")
    pinned = LakeTable.open(tmp_path, version=1)
    with pytest.raises(InputError, match="read-only"):
        pinned.unconvert()
    assert table.unconvert().rows == 19


def test_a_key_whose_merge_fails_forbids_it(tmp_path: Path) -> None:
    table = LakeTable.create(
        tmp_path,
        "k INT, n BIGINT",
        key=["k"],
        merger="aggregate",
        options={"aggregates": {"n": "sum"}},
        properties=OFF,
        buckets=1,
    )
    for _ in range(2):
        table.upsert(pa.table({"k": pa.array([1, 2], pa.int32()), "n": pa.array([2**62, 1], pa.int64())}))
    with pytest.raises(InputError, match="keys whose merge fails"):
        table.unconvert()
    assert table.version == LakeTable.open(tmp_path).version


def test_what_began_before_cannot_land_later(tmp_path: Path) -> None:
    """Not even once the table is converted again."""
    table = made(tmp_path)
    before = LakeTable.open(tmp_path)
    begin = before.opened.view
    table.unconvert()
    for call in (table.to_arrow, lambda: before.upsert(rows(range(1), 9, "late")), before.compact):
        with pytest.raises(NotATableError, match="not a LakeMerge table"):
            call()
    with pytest.raises(NotATableError):
        LakeTable.open(tmp_path)
    LakeTable.convert(tmp_path, key=["k"], ordering=["o"])
    from lakemerge.commits.base import check_same_meaning

    with pytest.raises(CommitConflictError, match="before the vacuum fence"):
        check_same_meaning(begin, LakeTable.open(tmp_path).opened.view)
    assert listed(LakeTable.open(tmp_path).to_arrow()) == model()


def test_a_definition_of_the_table_before_does_not_land(tmp_path: Path) -> None:
    """Another table was made of the same rows while a change of the first one's definition was about to commit."""
    made(tmp_path)

    def make_another(_: Call) -> None:
        LakeTable.open(tmp_path).unconvert()
        LakeTable.convert(tmp_path, key=["k"], merger="first-row")

    opened, _ = over(tmp_path, Fault(action=make_another, method="put_if_absent", path="_delta_log", at=1))
    with pytest.raises(CommitConflictError, match="before the vacuum fence"):
        alter(opened, SchemaChange(add_columns=pa.schema([("extra", pa.int64())])))
    assert LakeTable.open(tmp_path).detail().merger == "first-row"


def test_records_that_land_meanwhile_are_in_it(tmp_path: Path) -> None:
    made(tmp_path)

    def write(_: Call) -> None:
        LakeTable.open(tmp_path).upsert(rows(range(50, 52), 1, "late"))

    opened, _ = over(tmp_path, Fault(action=write, method="put_if_absent", path="_delta_log", at=3))
    result = unconvert_table(opened)
    assert result.rows == 21
    assert of_deltalake(tmp_path) == [*model(), *rows(range(50, 52), 1, "late").to_pylist()]


def over(path: Path, *faults: Fault) -> tuple[OpenTable, FaultStore]:
    store = FaultStore(LocalStore(path), *faults)
    handle = Handle(
        store, DeltaLog(store, sleep=lambda _: None), default_registry(), LakeTable.open(path).opened.handle.settings
    )
    return OpenTable.without_session(handle, DeltaLog(LocalStore(path)).snapshot()), store


def test_there_and_back_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = made(path)
    for number in range(3):
        table.unconvert()
        deltalake.write_deltalake(path, rows(range(100 + number, 101 + number), 1, "theirs"), mode="append")
        LakeTable.convert(path, key=["k"], ordering=["o"])
        table = LakeTable.open(path)
        table.alter(properties=OFF)
        table.upsert(rows(range(200 + number, 201 + number), 1, "ours"))
        assert LakeTable.check(path).findings == ()
    wanted = [
        *model(),
        *rows(range(100, 103), 1, "theirs").to_pylist(),
        *rows(range(200, 203), 1, "ours").to_pylist(),
    ]
    assert listed(table.to_arrow()) == wanted
    table.compact()
    # What every time in between left goes at last.
    for _ in range(2):
        table.vacuum(retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    left = {str(p.relative_to(path)) for p in path.rglob("*.parquet") if "_delta_log" not in p.parts}
    snapshot = DeltaLog(LocalStore(path)).snapshot()
    tombstones = {p for p in left if p.startswith("_lakemerge/tombstones")}
    assert left - tombstones == set(snapshot.files)
    assert listed(table.to_arrow()) == wanted == of_deltalake(path)


class Killed(BaseException):
    """The process ends here."""


def kill(_: Call) -> None:
    raise Killed


@pytest.mark.long
@pytest.mark.parametrize(("publish", "after"), [("off", False), ("off", True), ("deletionVectors", False)])
def test_wherever_it_is_cut_the_table_is_whole(tmp_path: Path, publish: str, after: bool) -> None:
    path = tmp_path / "t"
    made(path, publish)
    calls = 0
    while True:
        calls += 1
        copy = tmp_path / f"cut{calls}"
        shutil.copytree(path, copy)
        opened, _ = over(copy, Fault(action=kill, at=calls, after=after, lasting=True))
        try:
            with inline_pools():
                unconvert_table(opened)
        except Killed:
            if "lakemerge.formatVersion" in DeltaLog(LocalStore(copy)).snapshot().metadata.configuration:
                table = LakeTable.open(copy)
                assert listed(table.to_arrow()) == model(), calls
                assert LakeTable.check(copy).findings == (), calls
                assert table.unconvert().rows == 19, calls
            assert of_deltalake(copy) == model(), calls
            shutil.rmtree(copy)
            continue
        break
    assert calls > 15
