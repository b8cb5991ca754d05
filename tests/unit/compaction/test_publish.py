"""Publishing: what the commits of a table that publishes say, and how the table lives with it.

What is in the log is read as JSON, what is in a file of vectors by the Roaring library, and what others see by
deltalake. Expected rows are written by hand.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyroaring
import pytest

from compaction.plan.auto import is_turn
from compaction.run.file_slice import FileSliceJob, WrittenBeside, run_job
from lakemerge import InputError, LakeMergeError, LakeTable, SchemaError, StoreError, TableDamagedError
from lakemerge.cli import main
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import Attempt, Committed, DomainMetadata
from lakemerge.format.publish import Publish
from lakemerge.format.schedule import Auto
from lakemerge.read.merge import MergeSpec
from lakemerge.spark.transport.sending import pickled
from lakemerge.storage.local import LocalStore
from lakemerge.testing.faults import Call, Fail, Fault
from lakemerge.write.base_file import BaseWriteSpec
from tests.property.effort import some
from tests.unit.faults import Row, create, frame, listing, open_over, rows_of, state_of

VECTORS = {"lakemerge.publish": "deletionVectors", "lakemerge.maintenance": "off"}
BASE = [(k, 10, f"base{k}") for k in range(6)]


def loaded(path: Path, rows: Iterable[Row] = BASE, properties: Mapping[str, str] | None = None) -> LakeTable:
    table = create(path, properties={**VECTORS, **(properties or {})})
    table.upsert(frame(list(rows)))
    return table


def commit_of(path: Path, version: int) -> dict[str, list[dict[str, Any]]]:
    """The actions of a commit by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (path / f"_delta_log/{version:020d}.json").read_text().splitlines():
        ((kind, fields),) = json.loads(line).items()
        found.setdefault(kind, []).append(fields)
    return found


def theirs(path: Path, version: int | None = None) -> list[Row]:
    table = deltalake.DeltaTable(str(path), version=version)
    read = deltalake.QueryBuilder().register("t", table).execute("SELECT k, o, v FROM t")
    return rows_of(pa.table(read.read_all()))


def taken_by(path: Path, vector: dict[str, Any]) -> list[int]:
    """The rows that a vector takes away, read by the library of Roaring bitmaps."""
    (file,) = path.glob(f"{vector['pathOrInlineDv'][:-20]}/*.bin")
    data = file.read_bytes()[vector["offset"] + 4 :][: vector["sizeInBytes"]]
    return list(pyroaring.BitMap64.deserialize(data[4:]))


def test_what_switching_on_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create(tmp_path, properties={"lakemerge.maintenance": "off"})
    (before,) = commit_of(tmp_path, 0)["protocol"]
    assert (before["minReaderVersion"], "deletionVectors" in before["writerFeatures"]) == (1, False)
    table.alter(properties={"lakemerge.publish": "deletionVectors"})
    assert "to_pyarrow_table" in caplog.text, "whom it locks out"
    told = commit_of(tmp_path, 1)
    (protocol,), (metadata,) = told["protocol"], told["metaData"]
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (3, 7)
    assert protocol["readerFeatures"] == ["deletionVectors"]
    assert set(protocol["writerFeatures"]) == {*before["writerFeatures"], "deletionVectors"}
    assert metadata["configuration"]["delta.enableDeletionVectors"] == "true"
    table.alter(properties={"lakemerge.publish": "off"})
    told = commit_of(tmp_path, 2)
    assert "protocol" not in told, "it is never lowered"
    assert "delta.enableDeletionVectors" not in told["metaData"][0]["configuration"]
    assert table.detail().publish == "off"
    other = create(tmp_path / "other", properties=VECTORS)
    assert commit_of(tmp_path / "other", 0)["protocol"][0]["readerFeatures"] == ["deletionVectors"]
    assert other.detail().publish == "deletionVectors"


def test_values_that_are_none(tmp_path: Path) -> None:
    table = create(tmp_path)
    for name, value in (("lakemerge.publish", "vectors"), ("lakemerge.publish.maxLag", "soon")):
        with pytest.raises(InputError, match=name):
            table.alter(properties={name: value})
        with pytest.raises(SchemaError, match=name):
            create(tmp_path / "other", properties={name: value})
    assert table.version == 0
    lags = {"0s": 0, "250ms": 250, "5m": 300_000, "2h": 7_200_000, "1d": 86_400_000, "interval 2 minutes": 120_000}
    assert {text: Publish.of({"lakemerge.publish.maxLag": text}).max_lag_ms for text in lags} == lags


def test_a_publication_byte_by_byte(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new"), (9, 20, "added"), (4, 5, "late")]))
    table.delete(frame([(3, 20)], ["k", "o"]))
    result = table.compact(minor=True)
    assert (result.commits, result.rows, result.replaced_files) == (1, 2, 0)
    told = commit_of(tmp_path, table.version)
    old, winner = told["remove"][0], next(add for add in told["add"] if "deletionVector" not in add)
    base = next(add for add in told["add"] if "deletionVector" in add)
    assert (len(told["add"]), len(told["remove"])) == (2, 1)
    assert old["path"] == base["path"]
    assert "deletionVector" not in old, "the file that it was had none"
    vector = base["deletionVector"]
    begin = f"{table.version - 2:020d}"
    assert (vector["storageType"], vector["pathOrInlineDv"][:-20], vector["cardinality"]) == ("u", f"dv{begin}", 2)
    assert taken_by(tmp_path, vector) == [1, 3]
    stats = json.loads(base["stats"])
    assert (stats["numRecords"], stats["tightBounds"]) == (6, False)
    transaction = told["commitInfo"][0]["txnId"]
    assert [str(file.relative_to(tmp_path)) for file in tmp_path.glob("dv*/*")] == [
        f"dv{begin}/deletion_vector_{transaction}.bin"
    ]
    assert winner["path"].startswith(f"base/{begin}-{transaction}/")
    assert json.loads(winner["tags"]["lakemerge.winner"]) == {"base": 0, "ordinal": 1, "rows": 2}
    assert json.loads(winner["stats"])["numRecords"] == 2
    (entry,) = (d for d in told["domainMetadata"] if d["domain"] == "lakemerge.minor.0")
    body = json.loads(entry["configuration"])
    assert body["published"] is True
    assert "positions" not in body
    assert body["winners"] == [[winner["path"], winner["size"], 1, 2]]
    metrics = told["commitInfo"][0]["operationMetrics"]
    assert (metrics["publishedVersion"], metrics["numUnpublishedFileSlices"]) == (str(table.version - 2), "0")
    assert not list(tmp_path.glob("_lakemerge/merged/**/*.parquet"))
    expected = rows_of(frame([BASE[0], (1, 20, "new"), BASE[2], BASE[4], BASE[5], (9, 20, "added")]))
    assert theirs(tmp_path) == state_of(tmp_path) == rows_of(LakeTable.open(tmp_path).to_arrow(mode="base")) == expected


def test_an_unchanged_file_is_not_added_again(tmp_path: Path) -> None:
    rows = [(k, 10, f"base{k}") for k in range(100)]
    table = loaded(tmp_path, rows)
    table.upsert(frame([(k, 20, "first") for k in range(8)]))
    table.compact(minor=True)
    table.upsert(frame([(200, 30, "new")]))
    table.compact(minor=True)
    told = commit_of(tmp_path, table.version)
    assert "remove" not in told
    assert [json.loads(add["tags"]["lakemerge.winner"])["rows"] for add in told["add"]] == [1], "one new file"
    assert len(list(tmp_path.glob("dv*"))) == 1, "and no vectors"
    table.upsert(frame([(3, 40, "again"), (50, 40, "again")]))
    table.compact(minor=True)
    told = commit_of(tmp_path, table.version)
    changed = {add["path"]: add for add in told["add"] if "deletionVector" in add}
    assert {taken["path"] for taken in told["remove"]} >= changed.keys()
    assert sorted(taken_by(tmp_path, add["deletionVector"]) for add in changed.values()) == [
        [*range(8), 50],
        [3],
    ], "a winner file gets a vector, too"
    assert theirs(tmp_path) == state_of(tmp_path)
    assert LakeTable.check(tmp_path).ok


def test_one_commit_shows_one_version(tmp_path: Path) -> None:
    """A full compaction of some, whatever is due by thresholds, takes all others along."""
    table = create(tmp_path, buckets=4, properties=VECTORS)
    rows = {k: (k, 10, "base") for k in range(40)}
    table.upsert(frame(list(rows.values())))
    table.upsert(frame([(k, 20, "all") for k in range(40)]))
    table.compact(minor=True)
    rows = {k: (k, 20, "all") for k in rows}
    (one,) = (file_slice for file_slice in table.opened.view.file_slices if file_slice.bucket_id.bucket == 0)
    assert one.base is not None
    table.upsert(frame([(k, 30, "some") for k in range(0, 40, 7)]))
    rows |= {k: (k, 30, "some") for k in range(0, 40, 7)}
    plan = table.compact(minor=True, dry_run=True)
    assert len(plan.groups) == 1
    result = table.compact(max_bytes=1)
    assert result.plan.postponed
    detail = table.detail()
    assert detail.unpublished_slices == result.plan.postponed, "the caller's budget left them out"
    assert commit_of(tmp_path, table.version)["commitInfo"][0]["operationMetrics"]["numUnpublishedFileSlices"] == str(
        result.plan.postponed
    )
    table.compact(minor=True)
    detail = table.detail()
    assert (detail.unpublished_slices, detail.published_version) == (0, table.version)
    assert theirs(tmp_path) == rows_of(frame(list(rows.values())))


def test_the_published_version_and_its_lag(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    detail = table.detail()
    assert (detail.publish, detail.published_version, detail.publish_lag_seconds) == ("deletionVectors", 1, 0.0)
    table.upsert(frame([(1, 20, "new")]))
    detail = table.detail()
    assert (detail.published_version, detail.unpublished_slices) == (1, 0)
    assert detail.publish_lag_seconds >= 0
    assert not detail.lags, "the table does not say how much it may"
    table.compact(minor=True)
    assert (table.detail().published_version, table.detail().publish_lag_seconds) == (table.version, 0.0)


def test_a_file_without_statistics_is_rewritten(tmp_path: Path) -> None:
    """A vector needs the number of records, and statistics without bounds would hide rows from other readers."""
    table = create(tmp_path, schema="k BIGINT, o BIGINT, t TIMESTAMP", properties=VECTORS)
    late = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)
    kinds = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    far = pa.array([253402300800000000, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table.upsert(pa.table([pa.array([1, 2]), pa.array([1, 1]), far], schema=kinds))
    (add,) = table.opened.view.snapshot.files.values()
    assert add.stats is None, "the year 10000 has no text"
    table.upsert(pa.table([pa.array([1]), pa.array([2]), pa.array([late], kinds.field("t").type)], schema=kinds))
    table.compact(minor=True)
    told = commit_of(tmp_path, table.version)
    assert [add["path"] for add in told["remove"]] == [add.path for add in [add]]
    assert all("deletionVector" not in add for add in told["add"])
    assert not list(tmp_path.glob("dv*"))
    assert table.detail().published_version == table.version


def test_switched_on_later_every_slice_moves_at_its_next_compaction(tmp_path: Path) -> None:
    table = create(tmp_path, properties={"lakemerge.maintenance": "off"})
    table.upsert(frame(BASE))
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    assert theirs(tmp_path) == rows_of(frame(BASE))
    table.alter(properties={"lakemerge.publish": "deletionVectors"})
    detail = table.detail()
    assert detail.unpublished_slices == 1, "what was merged before is not shown"
    assert table.compact(minor=True).commits == 1, "though no log is left to merge"
    assert theirs(tmp_path) == state_of(tmp_path) == rows_of(frame([(1, 20, "new"), *BASE[:1], *BASE[2:]]))
    assert table.compact(minor=True).commits == 0
    assert LakeTable.check(tmp_path).ok


@pytest.mark.parametrize("minor", [True, False])
def test_off_has_two_steps(tmp_path: Path, minor: bool) -> None:
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    table.alter(properties={"lakemerge.publish": None})
    table.upsert(frame([(2, 20, "newer")]))
    shown = theirs(tmp_path)
    table.compact(minor=minor)
    told = commit_of(tmp_path, table.version)
    assert len(told["remove"]) == 2, "the base file and its winner file"
    assert [set(add["tags"]) for add in told["add"]] == [{"lakemerge.slice"}]
    assert not any(add.vector for add in table.opened.view.snapshot.files.values())
    assert theirs(tmp_path) == state_of(tmp_path) != shown
    assert table.opened.view.snapshot.protocol.min_reader == 3


def test_rewrite_is_for_engines_without_vectors(tmp_path: Path) -> None:
    table = create(tmp_path, properties={"lakemerge.publish": "rewrite", "lakemerge.maintenance": "off"})
    table.upsert(frame(BASE))
    table.upsert(frame([(1, 20, "new")]))
    result = table.compact(minor=True)
    assert (result.commits, result.replaced_files) == (1, 1)
    assert (table.opened.view.snapshot.protocol.min_reader, list(tmp_path.glob("dv*"))) == (1, [])
    assert deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 6
    assert table.detail().published_version == table.version


def test_restore_brings_vectors_back(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    states = {table.version: state_of(tmp_path)}
    for at, key in ((20, 1), (30, 1), (40, 3)):
        table.upsert(frame([(key, at, f"at {at}")]))
        table.compact(minor=True)
        states[table.version] = state_of(tmp_path)
    newest = table.version
    for version in (*states, newest):
        if version == table.version:
            continue
        table.restore(version=version)
        told = commit_of(tmp_path, table.version)
        added, removed = ({action["path"] for action in told.get(kind, [])} for kind in ("add", "remove"))
        assert len(added) == len(told.get("add", [])), "each path once"
        assert state_of(tmp_path) == theirs(tmp_path) == states[version], removed
        assert LakeTable.check(tmp_path).ok
    for version, rows in states.items():
        assert theirs(tmp_path, version) == rows_of(LakeTable.open(tmp_path, version=version).to_arrow()) == rows


def test_vacuum_judges_vectors_by_their_begin_version(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    for key, at in enumerate((20, 30, 40), start=1):
        table.upsert(frame([(key, at, f"at {at}")]))
        table.compact(minor=True)
        if at == 20:
            table.savepoint("kept")
    kept = LakeTable.open(tmp_path, savepoint="kept")
    assert len(list(tmp_path.glob("dv*/*.bin"))) == 3
    stray = tmp_path / f"dv{1:020d}" / "deletion_vector_00000000-0000-4000-8000-000000000000.bin"
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"\x01")
    foreign = tmp_path / "deletion_vector_00000000-0000-4000-8000-000000000001.bin"
    foreign.write_bytes(b"\x01")
    table.upsert(frame([(4, 50, "x")]))
    table.compact(minor=True)
    told = table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert stray.relative_to(tmp_path).as_posix() in told.paths
    assert foreign.exists(), "it is not ours"
    assert told.files["vectors"] >= 1
    assert all(any(folder.iterdir()) for folder in tmp_path.glob("dv*")), "no empty folder is left at the root"
    assert rows_of(kept.to_arrow()) == rows_of(frame([(1, 20, "at 20"), *BASE[:1], *BASE[2:]]))
    assert state_of(tmp_path) == theirs(tmp_path)
    assert [f.path for f in LakeTable.check(tmp_path).findings] == [foreign.name]
    foreign.unlink()
    assert LakeTable.check(tmp_path).ok


def test_what_is_not_ours_is_told_by_check(tmp_path: Path) -> None:
    loaded(tmp_path)
    (tmp_path / "part-00000-x.snappy.parquet").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    (finding,) = LakeTable.check(tmp_path).findings
    assert finding.path == "part-00000-x.snappy.parquet"
    assert "no version" in finding.problem


def test_tombstones_of_live_files_do_not_grow(tmp_path: Path) -> None:
    table = loaded(tmp_path, [(k, 10, "base") for k in range(200)])
    for number in range(12):
        table.upsert(frame([(number, 20, "x")]))
        table.compact(minor=True)
    (base,) = table.opened.view.base_files
    snapshot = table.opened.view.snapshot
    assert snapshot.tombstones == {}, "neither of the base file nor of twelve winner files"
    log = table.opened.handle.log
    log.checkpoint(snapshot)
    assert LakeTable.open(tmp_path).opened.view.snapshot.tombstones == {}
    rows = pq.read_table(max(tmp_path.glob("_delta_log/*.checkpoint.parquet"))).to_pylist()
    assert [row["remove"] for row in rows if row["remove"]] == []
    table.compact()
    assert table.opened.view.snapshot.tombstones[base.add.path].vector == base.add.vector


def test_vectors_that_nobody_tells_of_are_damage(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    view = table.opened.view
    (entry,) = view.minors.values()
    (winner,) = entry.winners
    cases: list[list[Any]] = [
        [DomainMetadata(entry.domain_name, "", True)],
        [replace(entry, winners=()).domain()],
        [replace(entry, winners=(replace(winner, ordinal=77),)).domain()],
        [replace(entry, published=False, positions="_lakemerge/merged/none").domain()],
    ]
    for actions in cases:
        made = view.snapshot
        log = table.opened.handle.log
        done = log.commit(made, lambda _, told=actions: Attempt(told), operation="W", parameters={})  # type: ignore[misc]
        assert isinstance(done, Committed)
        with pytest.raises(TableDamagedError, match="another writer"):
            LakeTable.open(tmp_path).to_arrow()
        assert not LakeTable.check(tmp_path).ok
        (tmp_path / f"_delta_log/{done.version:020d}.json").unlink()


def test_check_reads_vectors_and_compares(tmp_path: Path) -> None:
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new")]))
    table.compact(minor=True)
    (file,) = tmp_path.glob("dv*/*.bin")
    whole, name = file.read_bytes(), file.relative_to(tmp_path).as_posix()
    assert LakeTable.check(tmp_path).ok
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    (finding,) = LakeTable.check(tmp_path).findings
    assert (finding.path, "checksum" in finding.problem) == (name, True)
    file.unlink()
    assert {finding.path for finding in LakeTable.check(tmp_path).findings} == {name}
    file.write_bytes(whole)
    snapshot = table.opened.view.snapshot
    base = next(add for add in snapshot.files.values() if add.vector is not None)
    assert base.vector is not None
    wrong = replace(base, stats=json.dumps({"numRecords": 6}))
    table.opened.handle.log.commit(snapshot, lambda _: Attempt([wrong]), operation="W", parameters={})
    (finding,) = LakeTable.check(tmp_path).findings
    assert (finding.path, "tight" in finding.problem) == (base.path, True)


def publishing(path: Path) -> None:
    table = loaded(path)
    table.upsert(frame([(1, 20, "first"), (2, 20, "first")]))
    table.compact(minor=True)
    table.upsert(frame([(1, 30, "second"), (7, 30, "second")]))


def calls_of_a_publication(path: Path) -> list[Call]:
    publishing(path)
    table, store = open_over(path)
    table.compact(minor=True)
    return list(store.calls)


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "for good"])
def test_a_fault_on_the_way_leaves_the_table_as_it_was(tmp_path: Path, lasting: bool) -> None:
    calls = calls_of_a_publication(tmp_path / "first")
    assert any(call.path.startswith("dv") for call in calls)
    for number in some(range(len(calls))):
        path = tmp_path / str(number)
        publishing(path)
        shown, rows, files = theirs(path), state_of(path), listing(path)
        table, _ = open_over(path, Fault(action=Fail(StoreError("no")), at=number + 1, lasting=lasting))
        with contextlib.suppress(LakeMergeError, OSError):
            table.compact(minor=True)
        assert state_of(path) == rows, number
        if theirs(path) == shown:
            left = listing(path).keys() - files.keys()
            if not lasting:
                assert all(name.startswith(("_delta_log/", "_lakemerge/.clock")) for name in left), (number, left)
            LakeTable.open(path).compact(minor=True)
        assert theirs(path) == rows, number
        assert LakeTable.check(path).ok


def test_of_two_publications_the_later_gives_up(tmp_path: Path) -> None:
    publishing(tmp_path)

    def overtake(call: Call) -> None:
        LakeTable.open(tmp_path).compact(minor=True)

    table, _ = open_over(tmp_path, Fault(action=overtake, method="publish", path="deletion_vector"))
    (lost,) = table.compact(minor=True).lost
    assert "nothing is lost" in lost.reason
    assert theirs(tmp_path) == state_of(tmp_path)
    named = {file.path for file in LocalStore(tmp_path).list("") if not file.path.startswith("_")}
    adds = LakeTable.open(tmp_path).opened.view.snapshot.files.values()
    kept = {path for add in adds for path in (add.path, None if add.vector is None else add.vector.path)}
    earlier = {name for name in named if name.startswith(("base/00000000000000000002-", f"dv{2:020d}"))}
    assert named - earlier == kept - earlier - {None}, "the loser's files are gone"


def test_with_no_lag_each_write_publishes(tmp_path: Path) -> None:
    table = loaded(tmp_path, properties={"lakemerge.publish.maxLag": "0s"})
    table.upsert(frame([(1, 20, "new")]))
    assert theirs(tmp_path) == state_of(tmp_path)
    table.delete(frame([(2, 20)], ["k", "o"]))
    assert theirs(tmp_path) == state_of(tmp_path)
    table.delete_where("k = 4")
    assert theirs(tmp_path) == state_of(tmp_path)
    detail = table.detail()
    assert (detail.publish_max_lag_seconds, detail.publish_lag_seconds, detail.lags) == (0.0, 0.0, False)


def test_a_write_lands_where_it_cannot_be_published(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(tmp_path, properties={"lakemerge.publish.maxLag": "0s"})
    table, _ = open_over(tmp_path, Fault(action=Fail(StoreError("no")), path="deletion_vector", lasting=True))
    result = table.upsert(frame([(1, 20, "new")]))
    assert result.mode == "append"
    assert "landed, unpublished" in caplog.text
    assert (1, 20, "new") in state_of(tmp_path)
    assert (1, 20, "new") not in theirs(tmp_path)


def test_half_of_the_lag_is_when_a_commit_publishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = {"lakemerge.compaction.ratio": "off", "lakemerge.compaction.afterMinutes": "off"}
    table = loaded(tmp_path, properties={"lakemerge.publish.maxLag": "60s", **off})
    aged = 0

    def lag(*_: object) -> int:
        return aged

    monkeypatch.setattr("compaction.publish.lag_ms", lag)
    table.upsert(frame([(1, 20, "first")]))
    assert (1, 20, "first") not in theirs(tmp_path)
    aged = 29_999
    table.upsert(frame([(2, 20, "second")]))
    assert (2, 20, "second") not in theirs(tmp_path)
    assert table.maintain().minor is None
    aged = 30_000
    table.upsert(frame([(3, 20, "third")]))
    assert theirs(tmp_path) == state_of(tmp_path)
    aged = 0
    table.upsert(frame([(4, 20, "fourth")]))
    aged = 30_000
    assert table.maintain().minor is not None
    assert theirs(tmp_path) == state_of(tmp_path)


def test_who_may_only_read_sees_the_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To learn the store's time is a write, so what is shown goes by the host's clock."""
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new")]))
    table.alter(properties={"lakemerge.publish.maxLag": "0s"})
    (tmp_path / "_lakemerge" / ".clock").unlink(missing_ok=True)
    reader = LakeTable.open(tmp_path)
    assert reader.detail().lags
    assert "lakemerge_pending_commits" in str(reader.gauges())
    assert main(["maintain", str(tmp_path), "--check"]) == 4
    assert main(["metrics", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "_lakemerge" / ".clock").exists()


def test_maintain_tells_a_breach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new")]))
    assert main(["maintain", str(tmp_path), "--check"]) == 0, "it does not say what is allowed"
    table.alter(properties={"lakemerge.publish.maxLag": "1h"})
    assert main(["maintain", str(tmp_path), "--check"]) == 0
    table.alter(properties={"lakemerge.publish.maxLag": "0s"})
    version = table.version
    assert main(["maintain", str(tmp_path), "--check"]) == 4
    assert "version 1; " in capsys.readouterr().out
    assert LakeTable.open(tmp_path).version == version, "nothing was run"
    assert main(["maintain", str(tmp_path)]) == 0
    assert main(["maintain", str(tmp_path), "--check"]) == 0


def test_plain_tables_with_vectors_are_read(tmp_path: Path) -> None:
    """A dataset of a merge source may be a plain Delta table that another engine writes."""
    from lakemerge.merge_source.inputs import PlainTable
    from lakemerge.table.opening import open_handle

    table = loaded(tmp_path)
    table.upsert(frame([(1, 20, "new"), (4, 20, "new")]))
    table.compact(minor=True)
    plain = PlainTable.latest(open_handle(tmp_path, None, (), None))
    assert rows_of(pa.concat_tables(plain.scan(["k", "o", "v"]))) == state_of(tmp_path)
    assert any(add.vector is not None for add in plain.snapshot.files.values())


def test_jobs_and_their_results_travel_to_tasks_and_back(tmp_path: Path) -> None:
    """On Spark a task gets its job without statistics and tags, and the driver puts the vectors into one file."""
    table = loaded(tmp_path, [(k, 10, "base") for k in range(100)])
    table.upsert(frame([(1, 20, "first"), (2, 20, "first")]))
    table.compact(minor=True)
    table.upsert(frame([(1, 30, "second"), (7, 30, "second")]))
    handle, view = table.opened.handle, table.opened.view
    (file_slice,) = view.file_slices
    first = reserve_ordinals(handle, view, 1)
    write = BaseWriteSpec.of(handle, view, handle.new_transaction(), buckets=1)
    there = pickle.loads(pickled(file_slice))
    job = pickle.loads(pickle.dumps(FileSliceJob((there,), True, first, 1, publish=True)))
    result = pickle.loads(pickle.dumps(run_job(job, MergeSpec.of(handle, view), write)))
    assert isinstance(result, WrittenBeside)
    assert result.winner is not None
    assert file_slice.base is not None
    changed = {ordinal: vector.cardinality for ordinal, vector in result.vectors}
    assert changed == {file_slice.base.ordinal: 3}, "the small winner file is joined"
    assert not list(tmp_path.glob(f"dv{view.version:020d}"))


def test_auto_publishes_large_tables_less_often() -> None:
    """A table of 256 base files as one of 8, and one of 1,024 after four times as many commits."""
    turns = {
        files: [
            live for live in range(1, 65) if is_turn(Auto(reads_per_write=1, published_files=files), live, lambda: 1.0)
        ]
        for files in (0, 8, 256, 1024)
    }
    assert turns[0] == turns[8] == turns[256] == list(range(8, 65, 8))
    assert turns[1024] == [32, 64]
