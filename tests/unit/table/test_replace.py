"""``LakeTable.create(replace=True)``: what the table is afterwards, what is gone, what stays, and who is refused.

Expected rows are written by hand.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lakemerge import (
    CommitConflictError,
    InputError,
    LakeMergeError,
    LakeTable,
    OutcomeUnknownError,
    SchemaError,
    TableDamagedError,
    TableExistsError,
    TableReplacedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.commits.rescale import reserve_ordinals
from lakemerge.delta import DeltaLog, DomainMetadata
from lakemerge.format.ingests import ingests_of
from lakemerge.ingest import Files
from lakemerge.storage import LocalStore
from lakemerge.table.create import create_table
from lakemerge.testing.faults import Call, Fail, Fault, FaultStore, Refuse
from tests.property.effort import some
from tests.unit.faults import UNKNOWN, commit_domains, create, frame, listing, open_over, rows_of, state_of
from tests.unit.ingest.landing import land
from tests.unit.table import test_identity
from tests.unit.table.staged import made_of

NEW = "id STRING, part STRING, x DOUBLE"
OLD_ROWS = [(1, 2, "A"), (2, 1, "b"), (3, 1, "c")]


def old_table(path: Path, **options: Any) -> LakeTable:
    """A table with a base file, a minor entry, a tombstone, a live log, a savepoint, a consumer and an application."""
    table = create(path, **options)
    table.upsert(frame([(1, 1, "a"), (2, 1, "b"), (9, 1, "gone")]), txn=("app", 7))
    table.delete(frame([(9, 5)], ["k", "o"]))
    table.compact()
    table.expire_tombstones(retention=dt.timedelta(0))
    table.upsert(frame([(1, 2, "A")]))
    table.compact(minor=True)
    table.savepoint("saved")
    table.consumers.register("follower", version=1)
    table.upsert(frame([(3, 1, "c")]))
    assert state_of(path) == OLD_ROWS
    return table


def replaced(path: Path, **options: Any) -> LakeTable:
    given: dict[str, Any] = {"key": ["id", "part"], "ordering": ["x"], "partition_by": ["part"], **options}
    return LakeTable.create(path, given.pop("schema", NEW), replace=True, **given)


def row(identity: str, x: float = 1.0) -> pa.Table:
    return pa.table({"id": [identity], "part": ["p"], "x": [x]})


def anew(path: Path) -> LakeTable:
    """As :func:`old_table` begins, so that frames of the old table fit the new one."""
    return create(path, replace=True)


def test_the_table_has_the_new_definition_and_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = old_table(path, properties={"mine": "old", "delta.logRetentionDuration": "interval 9 days"})
    before, files = old.opened.view, listing(path)
    table = replaced(path, name="fresh", buckets=4, properties={"mine": "new"})
    assert listing(path).keys() - files.keys() == {f"_delta_log/{before.version + 1:020d}.json"}, "only the commit"
    assert (table.version, rows_of(table.to_arrow())) == (before.version + 1, [])
    assert (table.key, table.ordering, table.bucket_count) == (("id", "part"), ("x",), 4)
    assert table.schema.names == ["id", "part", "x"]
    now = table.opened.view.snapshot.metadata
    assert (now.name, now.partition_columns, now.configuration["mine"]) == ("fresh", ("part",), "new")
    assert "delta.logRetentionDuration" not in now.configuration
    assert now.id != before.snapshot.metadata.id
    entry = table.history(limit=1)[0]
    assert (entry.operation, entry.parameters["key"]) == ("CREATE OR REPLACE TABLE", '["id","part"]')
    assert entry.metrics["numRemovedFiles"] == "1"
    assert LakeTable.check(path).ok
    seen = deltalake.DeltaTable(path)
    assert [field.name for field in seen.schema().fields] == ["id", "part", "x"]
    assert seen.to_pyarrow_table().num_rows == 0
    table.upsert(row("a"))
    table.compact()
    assert deltalake.DeltaTable(path).to_pyarrow_table().to_pylist() == [{"id": "a", "part": "p", "x": 1.0}]
    assert LakeTable.check(path).ok


def test_what_describes_the_old_rows_goes_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = old_table(path, properties={"delta.checkpointInterval": "1"})
    old.consumers.advance("follower", old.version - 1)
    old.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    before = old.opened.view
    kinds = {name.split(".")[1] for name in before.snapshot.domains}
    assert kinds == {"state", "log", "minor", "expiry", "savepoint", "consumer"}
    table = replaced(path, properties={"delta.checkpointInterval": "1"})
    for view in (table.opened.view, LakeTable.open(path).opened.view):
        names = set(view.snapshot.domains)
        assert names == {"lakemerge.state", "lakemerge.savepoint.saved", "lakemerge.consumer.follower"}
        was, now = before.state, view.state
        for epoch in ("merger_epoch", "layout_epoch", "schema_epoch", "restore_epoch"):
            assert getattr(now, epoch) > getattr(was, epoch), epoch
        assert now.next_ordinal == was.next_ordinal > 0, "an ordinal is never used again"
        assert now.fence_begin_version == was.fence_begin_version > 0
        assert now.oldest_version == was.oldest_version > 0
        assert view.snapshot.txns == {}
    assert (path / f"_delta_log/{table.version:020d}.checkpoint.parquet").exists()
    assert table.upsert(row("first"), txn=("app", 0)).rows == 1, "no repetition of what went with the old rows"
    assert table.upsert(row("again"), txn=("app", 0)).mode == "repeated"
    assert [saved.name for saved in table.savepoints()] == ["saved"]


def test_an_application_number_is_forgotten_for_other_libraries_too(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old_table(path)
    assert deltalake.DeltaTable(path).transaction_version("app") == 7
    replaced(path)
    told = deltalake.DeltaTable(path).transaction_version("app")
    assert told is None or told < 0
    replaced(path).upsert(row("a"), txn=("app", 3))
    assert deltalake.DeltaTable(path).transaction_version("app") == 3


def test_when_the_table_was_last_vacuumed_is_still_known(tmp_path: Path) -> None:
    path = tmp_path / "t"
    often = {"lakemerge.vacuum.afterMinutes": "60", "lakemerge.maintenance": "off"}
    table = create(path, properties=often)
    assert table.maintain().vacuum is not None
    table = create(path, properties=often, replace=True)
    assert table.maintain().vacuum is None


def test_the_protocol_is_never_lowered(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, schema="k BIGINT, o BIGINT, n INT")
    table.alter(widen={"n": "BIGINT"})
    wide = table.opened.view.snapshot.protocol
    assert (wide.min_reader, "typeWidening" in wide.writer_features) == (3, True)
    assert anew(path).opened.view.snapshot.protocol == wide
    zoneless = create(path, schema="k BIGINT, o BIGINT, at TIMESTAMP_NTZ", replace=True).opened.view.snapshot.protocol
    assert zoneless.reader_features == {"typeWidening", "timestampNtz"}
    assert zoneless.writer_features == wide.writer_features | {"timestampNtz"}
    assert create(tmp_path / "plain").opened.view.snapshot.protocol.min_reader == 1
    times = create(tmp_path / "plain", schema="k BIGINT, o BIGINT, at TIMESTAMP_NTZ", replace=True)
    needed = times.opened.view.snapshot.protocol
    assert needed.min_reader == 3
    assert anew(tmp_path / "plain").opened.view.snapshot.protocol == needed


def test_without_a_table_one_is_created(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = anew(path)
    assert (table.version, table.history()[0].operation) == (0, "CREATE OR REPLACE TABLE")
    assert table.lineage().events == ()
    assert table.opened.view.state == create(tmp_path / "other").opened.view.state
    table.upsert(frame(OLD_ROWS))
    assert table.explain({"k": 1}, since=0).row == {"k": 1, "o": 2, "v": "A"}


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = old_table(path)
    files = listing(path)
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"key": ["nope"]}, SchemaError, "'nope' is not in the schema"),
        ({"key": []}, SchemaError, "at least one key column"),
        ({"buckets": 3}, SchemaError, "power of two"),
        ({"schema": "id FLOAT", "key": ["id"], "ordering": (), "partition_by": ()}, SchemaError, "key column"),
        ({"merger": "no-such-merger"}, LakeMergeError, "no-such-merger"),
        ({"properties": {"lakemerge.key": "x"}}, SchemaError, "not one that users set"),
        ({"schema": "id", "key": ["id"]}, LakeMergeError, "."),
    ]
    for options, error, says in bad:
        with pytest.raises(error, match=says):
            replaced(path, **options)
    with pytest.raises(TableExistsError, match=r"replace it by an empty one \(replace=True\)"):
        create(path)
    assert listing(path) == files
    assert rows_of(table.to_arrow()) == OLD_ROWS


def test_a_plain_delta_table_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    deltalake.write_deltalake(str(path), pa.table({"k": [1], "o": [1]}))
    for replace in (False, True):
        with pytest.raises(TableExistsError, match=r"plain Delta table at .* never replaced; use another path"):
            create(path, replace=replace)
    assert deltalake.DeltaTable(path).version() == 0


def test_what_a_newer_library_keeps_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "t"
    create(path).upsert(frame(OLD_ROWS))
    commit_domains(path, DomainMetadata("someone.else", "{}"), UNKNOWN)
    with pytest.raises(UnsupportedFeatureError, match=r"'lakemerge\.newer\.thing'.*install a newer lakemerge"):
        anew(path)
    assert state_of(path) == OLD_ROWS
    commit_domains(path, DomainMetadata(UNKNOWN.domain, "", True))
    assert "someone.else" in anew(path).opened.view.snapshot.domains, "as in Delta, what others keep stays"


def test_a_lost_file_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    """The table was replaced, and nobody dropped it: the file is what is wrong."""
    table = old_table(tmp_path)
    version = table.version
    replaced(tmp_path)
    before = LakeTable.open(tmp_path, version=version)
    for base in before.opened.view.base_files:
        (tmp_path / base.add.path).unlink()
    with pytest.raises(TableDamagedError, match="is missing"):
        before.to_arrow()


def test_earlier_versions_stay_readable_until_vacuum(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = old_table(path)
    last = old.version
    saved = next(point.version for point in old.savepoints())
    pinned = LakeTable.open(path, version=last)
    reader = pinned.scan()
    table = replaced(path)
    assert rows_of(reader.read_all()) == OLD_ROWS
    assert rows_of(pinned.to_arrow()) == OLD_ROWS
    then = LakeTable.open(path, version=last)
    assert (rows_of(then.to_arrow()), then.key) == (OLD_ROWS, ("k",))
    assert then.get({"k": 3}) == {"k": 3, "o": 1, "v": "c"}
    assert rows_of(LakeTable.open(path, savepoint="saved").to_arrow()) == OLD_ROWS[:2]
    moment = pa.scalar(table.history()[1].timestamp_ms, pa.timestamp("ms", "UTC")).as_py()
    assert LakeTable.open(path, timestamp=moment).version == last
    assert [point.version for point in then.savepoints()] == [saved]
    table.upsert(row("a"))
    table.consumers.drop("follower")
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    with pytest.raises(VersionNotFoundError, match="cannot be read any more"):
        LakeTable.open(path, version=last)
    assert rows_of(LakeTable.open(path, savepoint="saved").to_arrow()) == OLD_ROWS[:2]
    table.drop_savepoint("saved")
    table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    assert rows_of(LakeTable.open(path).to_arrow()) == [("a", "p", 1.0)]
    assert LakeTable.check(path).ok


SEEN_BY_ALL = {"history", "checkpoint"}
"""The log is the old object's own."""


@pytest.mark.parametrize("name", [*test_identity.WRITES, *test_identity.READS])
def test_an_object_of_the_old_table_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = test_identity.made(path, 5, "old")
    LakeTable.create(path, test_identity.SCHEMA, key=["id"], replace=True)
    there = listing(path)
    if name in SEEN_BY_ALL:
        (test_identity.WRITES | test_identity.READS)[name](old)
    else:
        with pytest.raises(TableReplacedError, match="Open it again"):
            (test_identity.WRITES | test_identity.READS)[name](old)
        assert listing(path) == there
    assert LakeTable.check(path).ok
    assert LakeTable.open(path).to_arrow().num_rows == 0


def at_commit(action: Any) -> Fault:
    """What others do once everything is prepared and the first attempt is made."""
    return Fault(method="put_if_absent", path="_delta_log", action=action)


BEGUN: dict[str, Callable[[LakeTable], object]] = {
    "upsert": lambda table: table.upsert(frame([(1, 50, "x")])),
    "grow": lambda table: table.upsert(frame([(1, 50, "x", 1)], ["k", "o", "v", "w"], w=pa.int64()), merge_schema=True),
    "delete": lambda table: table.delete(frame([(1, 50)], ["k", "o"])),
    "delete_where": lambda table: table.delete_where("k = 3"),
    "compact": lambda table: table.compact(),
    "minor": lambda table: table.compact(minor=True),
    "logs": lambda table: table.compact_logs(),
    "alter": lambda table: table.alter(add_columns="note STRING"),
    "properties": lambda table: table.alter(properties={"mine": "old"}),
    "rescale up": lambda table: table.rescale(buckets=4),
    "rescale down": lambda table: table.rescale(buckets=1),
    "restore": lambda table: table.restore(savepoint="saved"),
    "savepoint": lambda table: table.savepoint("late"),
    "drop savepoint": lambda table: table.drop_savepoint("saved"),
    "register": lambda table: table.consumers.register("late"),
    "drop consumer": lambda table: table.consumers.drop("follower"),
    "expire": lambda table: table.expire_tombstones(retention=dt.timedelta(0)),
    "vacuum": lambda table: table.vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False),
}


def with_a_delete_to_forget(table: LakeTable) -> None:
    table.delete(frame([(8, 1)], ["k", "o"]))
    table.compact()


PREPARED: dict[str, Callable[[LakeTable], object]] = {
    "expire": with_a_delete_to_forget,
    "vacuum": lambda table: table.consumers.drop("follower"),
}


@pytest.mark.parametrize("work", BEGUN)
@pytest.mark.parametrize("same", [False, True], ids=["another definition", "the same definition"])
def test_what_began_before_cannot_land(same: bool, work: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = old_table(path, buckets=2)
    table.upsert(frame([(3, 2, "C")]))
    table.upsert(frame([(3, 3, "C")]))
    if work in PREPARED:
        PREPARED[work](table)

    def replace(call: Call) -> None:
        anew(path) if same else replaced(path)

    late, store = open_over(path, at_commit(replace))
    with pytest.raises((TableReplacedError, CommitConflictError)):
        BEGUN[work](late)
    assert store.injected, "it came to a commit"
    table = LakeTable.open(path)
    assert (rows_of(table.to_arrow()), table.history(limit=1)[0].operation) == ([], "CREATE OR REPLACE TABLE")
    assert {p.name for p in table.savepoints()} == {"saved"}
    assert table.bucket_count == (1 if same else None)
    assert LakeTable.check(path).ok
    kept = listing(path)
    named = {name for name in kept if name.startswith(("base/", "_lakemerge/log", "_lakemerge/merged"))}
    earlier = LakeTable.open(path, version=table.version - 1)
    assert rows_of(earlier.to_arrow(columns=["k", "o", "v"])) == [*OLD_ROWS[:2], (3, 3, "C")], named


@pytest.mark.parametrize("first", [False, True], ids=["append", "first load"])
def test_a_write_of_many_calls_cannot_land_either(first: bool, tmp_path: Path) -> None:
    """The frame is read after the write began, and before its commit."""
    path = tmp_path / "t"
    table = create(path)
    if not first:
        table.upsert(frame(OLD_ROWS))

    def batches() -> Any:
        yield frame([(7, 1, "late")]).to_batches()[0]
        anew(path)

    files = listing(path)
    with pytest.raises(TableReplacedError):
        table.upsert(pa.RecordBatchReader.from_batches(frame([]).schema, batches()))
    assert state_of(path) == []
    assert len(listing(path)) == len(files) + 1, "nothing is left of the write"


def replaced_over(path: Path, *faults: Fault) -> FaultStore:
    """Replace the table through a store with faults."""
    store = FaultStore(LocalStore(path), *faults)
    handle = dataclasses.replace(
        LakeTable.open(path).opened.handle, store=store, log=DeltaLog(store, sleep=lambda _: None)
    )
    options: dict[str, Any] = dict.fromkeys(("merger", "options", "buckets", "description", "properties"))
    create_table(handle, "id BIGINT", key=["id"], ordering=(), partition_by=(), name="second", replace=True, **options)
    return store


def test_of_two_at_once_the_later_stands(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old_table(path)
    before = LakeTable.open(path).version
    replaced_over(path, at_commit(lambda call: replaced(path, name="first")))
    table = LakeTable.open(path)
    assert (table.version, table.schema.names, table.opened.view.snapshot.metadata.name) == (
        before + 2,
        ["id"],
        "second",
    )
    assert LakeTable.open(path, version=before + 1).opened.view.snapshot.metadata.name == "first"


@pytest.mark.parametrize("after", [False, True], ids=["before the effect", "after the effect"])
def test_a_failed_replacement_changes_nothing(after: bool, tmp_path: Path) -> None:
    """At each call of the store in turn."""
    source = tmp_path / "source"
    old_table(source)
    names = listing(source)
    calls = len(replaced_over(shutil.copytree(source, tmp_path / "clean")).calls)
    assert calls > 2
    for at in range(1, calls + 1):
        path = shutil.copytree(source, tmp_path / f"at {at}")
        fault = Fault(action=Fail(ConnectionError("lost")), at=at, after=after)
        try:
            replaced_over(path, fault)
        except OutcomeUnknownError:
            assert listing(path) == names or LakeTable.open(path).key == ("id",)
        except (ConnectionError, LakeMergeError):
            assert listing(path) == names
            assert state_of(path) == OLD_ROWS
        else:
            assert LakeTable.open(path).key == ("id",)
        assert LakeTable.check(path).ok
    path = shutil.copytree(source, tmp_path / "full")
    with pytest.raises(LakeMergeError):
        replaced_over(path, Fault(action=Refuse(errno.ENOSPC), method="put_if_absent"))
    assert listing(path) == names


def test_changes_across_a_replacement_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old_table(path)
    table = anew(path)
    at = table.version
    table.upsert(frame([(5, 1, "new")]))
    for since in (0, 2, at - 1):
        for net in (False, True):
            with pytest.raises(TableReplacedError, match=f"replaced at version {at}.*until={at - 1}"):
                table.changes(since=since, net=net)
        with pytest.raises(TableReplacedError, match=f"replaced at version {at}"):
            next(table.follow(since=since, poll=None))
    with pytest.raises(TableReplacedError, match=f"replaced at version {at}"):
        next(table.follow("follower", poll=None))
    for reader in (table.changes(since=at), table.changes(since=at, net=True)):
        told = reader.read_all().drop_columns(["_commit_timestamp"]).to_pylist()
        assert [tuple(change.values()) for change in told] == [(5, 1, "new", "+I", at + 1)]
    followed = [batch.column("k").to_pylist() for batch in table.follow(since=at, poll=None)]
    assert followed == [[5]]
    assert [batch.column("k").to_pylist() for batch in table.follow(poll=None)] == [[5]]
    # Changes of the old table can still be read, from either side.
    for opened in (table, LakeTable.open(path, version=at - 1)):
        told = opened.changes(since=1, until=at - 1, net=True).read_all().to_pylist()
        assert sorted((change["k"], change["_row_kind"]) for change in told) == [
            (1, "+U"), (1, "-U"), (3, "+I"), (9, "-D"),
        ]  # fmt: skip
    table.consumers.advance("follower", at)
    assert [batch.column("k").to_pylist() for batch in table.follow("follower", poll=None)] == [[5]]


def test_a_follower_stops_at_the_replacement(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path)
    table.upsert(frame([(1, 1, "a")]))
    follower = table.follow(since=0, poll=None)
    assert next(follower).column("k").to_pylist() == [1]
    anew(path).upsert(frame([(1, 1, "a")]))
    with pytest.raises(TableReplacedError):
        next(follower)


def test_provenance_begins_at_the_replacement(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = old_table(path)
    last = old.version
    table = replaced(path)
    at = table.version
    table.upsert(row("a", 1.0), info={"job": "new"})
    table.upsert(row("a", 0.5))
    told = table.explain({"id": "a", "part": "p"}, since=0)
    assert [step.version for step in told.steps] == [at + 1, at + 2]
    assert told.row == {"id": "a", "part": "p", "x": 1.0}
    assert any(f"replaced by an empty one at version {at}" in note for note in told.notes)
    since_early = table.explain({"id": "a", "part": "p"}, since=2)
    assert [step.version for step in since_early.steps] == [at + 1, at + 2]
    events = table.lineage().events
    (drop,) = [event for event in events if event.version == at]
    assert (drop.kind, drop.operation) == ("DROP", "CREATE OR REPLACE TABLE")
    assert len([path for path in drop.inputs if path.startswith("base/")]) == 1
    assert {event.version for event in table.lineage(key={"id": "a", "part": "p"}).events} == {at, at + 1, at + 2}
    early = table.lineage(last, key={"k": 1})
    assert 1 in {event.version for event in early.events}
    assert max(event.version for event in early.events) <= last
    latest = table.what_if("commit-time", since=0).to_arrow()
    assert rows_of(latest) == [("a", "p", 0.5)]
    copy = table.replay(tmp_path / "copy")
    assert (copy.begins, state_of(tmp_path / "copy")) == (at + 1, [("a", "p", 1.0)])
    of_old = table.replay(tmp_path / "old copy", until=last)
    assert rows_of(LakeTable.open(of_old.path).to_arrow()) == OLD_ROWS


def test_provenance_begins_at_the_rows_of_a_query(tmp_path: Path) -> None:
    path, key = tmp_path / "t", {"id": "a", "part": "p"}
    last = old_table(path).version
    table = made_of(path, pa.concat_tables([row("a"), row("b")]), key=["id", "part"], ordering=["x"], buckets=1)
    at, (base,) = table.version, table.opened.view.base_files
    table.upsert(row("a", 2.0))
    for since in (0, 2):
        told = table.explain(key, since=since)
        assert [(step.version, step.after) for step in told.steps] == [
            (at, {**key, "x": 1.0}),
            (at + 1, {**key, "x": 2.0}),
        ]
        assert any(f"replaced by the rows of a query at version {at}" in note for note in told.notes)
        assert table.explain({"id": "b", "part": "p"}, since=since).row == {"id": "b", "part": "p", "x": 1.0}
    assert rows_of(table.what_if("commit-time", since=0).to_arrow()) == [("a", "p", 2.0), ("b", "p", 1.0)]
    drop, made = (event for event in table.lineage().events if event.version == at)
    assert (drop.kind, made.kind) == ("DROP", "CREATE")
    assert len([path for path in drop.inputs if path.startswith("base/")]) == 1
    assert base.add.path in made.outputs
    assert base.add.path not in drop.inputs
    assert {event.version for event in table.lineage(key=key).events} == {at, at + 1}
    copy = table.replay(tmp_path / "copy")
    assert (copy.begins, state_of(tmp_path / "copy")) == (at, [("a", "p", 2.0), ("b", "p", 1.0)])
    of_old = table.replay(tmp_path / "old copy", until=last)
    assert rows_of(LakeTable.open(of_old.path).to_arrow()) == OLD_ROWS


def test_a_table_that_a_query_makes_has_its_rows_from_the_first_version(tmp_path: Path) -> None:
    """Also where the commit says that it may replace a table, and there was none."""
    table = made_of(tmp_path / "t", row("a"), key=["id"])
    assert table.history()[0].operation == "CREATE OR REPLACE TABLE AS SELECT"
    table.upsert(row("a", 2.0))
    table.restore(version=0)
    assert [event.version for event in table.lineage(key={"id": "a"}).events] == [0, 2]
    assert not any("replaced" in note for note in table.what_if(since=0).notes)
    (made,) = table.lineage(0).events
    assert (made.kind, made.version, made.inputs) == ("CREATE", 0, ())
    assert [base.add.path for base in table.opened.view.base_files] == list(made.outputs)
    assert table.explain({"id": "a"}, since=0).row == {"id": "a", "part": "p", "x": 1.0}


def test_a_restore_brings_back_the_table_of_before(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old = old_table(path)
    last, identity = old.version, old.opened.view.snapshot.metadata.id
    table = replaced(path, properties={"mine": "new"})
    table.upsert(row("a"), txn=("other", 3))
    at, ordinals = table.version, table.opened.view.state.next_ordinal
    other = LakeTable.open(path)
    result = table.restore(version=last)
    assert (result.restored_version, state_of(path)) == (last, OLD_ROWS)
    back = LakeTable.open(path)
    assert (back.key, back.ordering, back.opened.view.snapshot.metadata.id) == (("k",), ("o",), identity)
    assert back.opened.view.state.next_ordinal >= ordinals
    with pytest.raises(TableReplacedError):
        other.to_arrow()
    assert back.upsert(frame([(1, 99, "again")]), txn=("app", 7)).mode == "repeated", "its rows are there again"
    assert back.opened.view.snapshot.txns["other"].version == 3
    back.upsert(frame([(1, 3, "B")]))
    back.compact()
    assert state_of(path) == [(1, 3, "B"), *OLD_ROWS[1:]]
    assert back.explain({"k": 3}, since=0).row == {"k": 3, "o": 1, "v": "c"}
    kinds = [event.kind for event in back.lineage(key={"k": 3}).events]
    assert ("CREATE" in kinds, kinds.count("RESTORE"), "DROP" in kinds) == (True, 1, False)
    assert LakeTable.check(path).ok
    for since in (last - 1, at):
        with pytest.raises(TableReplacedError, match="replaced at version"):
            back.changes(since=since)
    assert back.changes(since=result.version).read_all().num_rows > 0
    back.restore(version=at)
    again = LakeTable.open(path)
    assert (rows_of(again.to_arrow()), again.key) == ([("a", "p", 1.0)], ("id", "part"))


def test_the_first_load_after_it_becomes_base_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    used = {base.ordinal for base in old_table(path).opened.view.base_files}
    table = anew(path)
    ordinals = table.opened.view.state.next_ordinal
    table.upsert(frame([]))
    result = table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    assert (result.mode, state_of(path)) == ("load", [(1, 1, "a"), (2, 1, "b")])
    mine = {base.ordinal for base in table.opened.view.base_files}
    assert min(mine) >= ordinals > max(used)
    assert table.opened.view.state.next_ordinal > max(mine)
    table.upsert(frame([(2, 2, "B")]))
    table.compact(minor=True)
    table.upsert(frame([(3, 1, "c")]))
    table.compact()
    assert state_of(path) == [(1, 1, "a"), (2, 2, "B"), (3, 1, "c")]
    everything = [base.ordinal for base in table.opened.view.base_files]
    assert len(set(everything)) == len(everything)
    assert table.changes(since=result.version - 1, until=result.version).read_all().num_rows == 2
    assert LakeTable.check(path).ok


def test_of_two_first_loads_the_later_becomes_an_append(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old_table(path)
    anew(path)
    late, _ = open_over(path, at_commit(lambda call: LakeTable.open(path).upsert(frame([(1, 1, "first")]))))
    assert late.upsert(frame([(1, 2, "second")])).mode == "append"
    assert state_of(path) == [(1, 2, "second")]


def test_a_first_load_never_takes_ordinals_that_somebody_reserved(tmp_path: Path) -> None:
    path = tmp_path / "t"
    old_table(path)
    anew(path)

    def reserve(call: Call) -> None:
        table = LakeTable.open(path)
        reserve_ordinals(table.opened.handle, table.opened.view, 3)

    late, _ = open_over(path, at_commit(reserve))
    assert late.upsert(frame([(1, 2, "second")])).mode == "append"
    assert state_of(path) == [(1, 2, "second")]


def test_a_job_begins_anew(tmp_path: Path) -> None:
    path, landing = tmp_path / "t", tmp_path / "landing"
    landing.mkdir()
    table = create(path)
    land(landing, "a.json", [{"k": 1, "o": 1, "v": "x"}], at=1)
    land(landing, "b.json", [{"k": 2, "o": 1, "v": "y"}], at=2)
    source = Files(landing, format="json")
    old = table.ingest("feed", source)
    assert old.run().files == 2
    before = table.version
    table = anew(path)
    with pytest.raises(TableReplacedError):
        old.run()
    assert ingests_of(table.opened.view.snapshot) == {}
    result = table.ingest("feed", source).run()
    assert (result.files, result.windows, state_of(path)) == (2, 1, [(1, 1, "x"), (2, 1, "y")])
    # The job of the replaced table is gone. The restored one knows of the rows that came back with it.
    anew(path).restore(version=before)
    table = LakeTable.open(path)
    with pytest.raises(InputError, match=r"restored after window 1.*reset"):
        table.ingest("feed", source).run()
    table.ingest("feed", source).reset(seen="keep")
    assert table.ingest("feed", source).run().files == 0
    assert state_of(path) == [(1, 1, "x"), (2, 1, "y")]


@pytest.mark.parametrize("merger", some(["event-time", "commit-time", "first-row", "partial-update"]))
def test_again_and_again(merger: str, tmp_path: Path) -> None:
    """Each version reads as it did."""
    path = tmp_path / "t"
    expected: dict[int, list[Any]] = {}
    for turn in range(6):
        table = create(path, merger=merger, replace=True, buckets=2 ** (turn % 3))
        expected[table.version] = []
        for number in range(turn % 4):
            table.upsert(frame([(number, 1, f"{turn}.{number}")]))
            if number == 1:
                table.compact(minor=turn % 2 == 0)
        expected[table.version] = [(number, 1, f"{turn}.{number}") for number in range(turn % 4)]
    for version, rows in expected.items():
        assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows, version
    assert LakeTable.check(path).ok
