"""Decisions of one line in the log: each with the input that tells it from its opposite."""

from __future__ import annotations

import datetime as dt
import errno
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable
from lakemerge.delta import (
    Action,
    AddFile,
    AlreadyDone,
    DeltaLog,
    Metadata,
    Protocol,
    RemoveFile,
    Transaction,
    Txn,
    decode,
    encode_vector,
    read_vector,
    write_vectors,
)
from lakemerge.delta.chain import CHAIN
from lakemerge.delta.checkpoint import encode_checkpoint, write_checkpoint
from lakemerge.delta.checkpoint_reader import read_checkpoint
from lakemerge.delta.commit import Prepared, _as_text, land
from lakemerge.delta.listing import Checkpoint, list_log
from lakemerge.delta.log_replay import _digest_at
from lakemerge.delta.protocol import check_writable
from lakemerge.delta.snapshot import SnapshotBuilder
from lakemerge.delta.vectors import DeletionVector
from lakemerge.errors import (
    InputError,
    OutcomeUnknownError,
    StoreError,
    TableDamagedError,
    TableReplacedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakemerge.storage import LocalStore, Put
from lakemerge.storage.base import FileStat, NothingCreatedError
from tests.unit.faults import create, frame

DAY_MS = 86_400_000
METADATA = pa.struct([("id", pa.string()), ("schemaString", pa.string())])


class Answers(LocalStore):
    """Gives these answers to puts, one after the other, and the last one from then on."""

    def __init__(self, root: Path, *answers: Put | Exception | Callable[[], Put]) -> None:
        super().__init__(root)
        self._answers = list(answers)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is Put.CREATED:
            return super().put_if_absent(path, data)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Put) else answer()


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    table = create(tmp_path / "t")
    snapshot = table.opened.view.snapshot
    data = (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").read_bytes()
    return Prepared(1, data, snapshot)


def landed(root: Path, prepared: Prepared, *answers: Put | Exception) -> tuple[object, Transaction, list[float]]:
    transaction, slept = Transaction("another"), list[float]()
    try:
        outcome: object = land(Answers(root, *answers), prepared, transaction=transaction, sleep=slept.append)
    except (OutcomeUnknownError, StoreError) as error:
        outcome = type(error)
    return outcome, transaction, slept


def test_a_commit_that_was_sent_may_land_whatever_the_answer(tmp_path: Path, prepared: Prepared) -> None:
    outcome, transaction, slept = landed(tmp_path / "t", prepared, ConnectionResetError("no answer"))
    assert (outcome, transaction.may_land) == (OutcomeUnknownError, True)
    assert len(slept) > 1
    assert slept == sorted(slept)


def test_a_store_that_surely_created_nothing_is_believed_the_first_time_alone(
    tmp_path: Path, prepared: Prepared
) -> None:
    nothing = NothingCreatedError("no space")
    outcome, transaction, slept = landed(tmp_path / "t", prepared, nothing)
    assert (outcome, transaction.may_land, slept) == (StoreError, False, [])
    outcome, transaction, _ = landed(tmp_path / "t", prepared, ConnectionResetError("no answer"), nothing)
    assert (outcome, transaction.may_land) == (OutcomeUnknownError, True), "the first request may arrive yet"


def test_a_commit_of_another_is_lost(tmp_path: Path, prepared: Prepared) -> None:
    LakeTable.open(tmp_path / "t").upsert(frame([(1, 1, "x")]))
    outcome, transaction, _ = landed(tmp_path / "t", prepared, Put.EXISTS)
    assert (outcome, transaction.may_land) == (False, False)


def test_a_commit_that_was_created_is_ours(tmp_path: Path, prepared: Prepared) -> None:
    outcome, transaction, _ = landed(tmp_path / "t", prepared, Put.CREATED)
    assert (outcome, transaction.may_land) == (True, True)


def test_a_commit_that_is_alone_in_its_log_is_taken_back(tmp_path: Path, prepared: Prepared) -> None:
    """The table was removed since the log was listed. Files of somebody else keep its folder."""
    (tmp_path / "t" / "mine.txt").write_text("mine")
    shutil.rmtree(tmp_path / "t" / "_delta_log")
    with pytest.raises(TableReplacedError, match="version 1 was not written"):
        land(LocalStore(tmp_path / "t"), prepared, transaction=Transaction("another"), sleep=lambda _: None)
    assert not (tmp_path / "t" / "_delta_log").exists()


def test_texts_of_commits() -> None:
    assert [_as_text("a"), _as_text(["a"]), _as_text(7), _as_text(None)] == ["a", '["a"]', "7", "null"]


def metadata(**configuration: str) -> Metadata:
    return Metadata("id", None, None, '{"type":"struct","fields":[]}', (), configuration, 0)


def test_who_cannot_read_does_not_write() -> None:
    unknown = Protocol(3, 7, frozenset({"inTheFuture"}), frozenset())
    with pytest.raises(UnsupportedFeatureError, match="inTheFuture"):
        check_writable(unknown, frozenset())
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        check_writable(Protocol(4, 7, frozenset(), frozenset()), frozenset())
    with pytest.raises(UnsupportedFeatureError, match="writer version 8"):
        check_writable(Protocol(1, 8, frozenset(), frozenset()), frozenset())
    check_writable(Protocol(3, 7, frozenset(), frozenset()), frozenset())


def test_column_mapping_of_an_unknown_mode_is_refused() -> None:
    mapped = Protocol(3, 7, frozenset({"columnMapping"}), frozenset({"columnMapping"}))
    understood = frozenset({"columnMapping"})
    check_writable(mapped, understood)
    for mode in ("none", "name", "id"):
        check_writable(mapped, understood, metadata=metadata(**{"delta.columnMapping.mode": mode}))
    with pytest.raises(UnsupportedFeatureError, match="columnMapping of mode 'place'"):
        check_writable(mapped, understood, metadata=metadata(**{"delta.columnMapping.mode": "place"}))


def test_a_feature_that_nothing_uses_does_not_hinder() -> None:
    listed = Protocol(1, 7, None, frozenset({"appendOnly"}))  # type: ignore[arg-type]
    listed = replace(listed, reader_features=frozenset())
    check_writable(listed, frozenset(), metadata=metadata())
    with pytest.raises(UnsupportedFeatureError, match="appendOnly"):
        check_writable(listed, frozenset(), metadata=metadata(**{"delta.appendOnly": "true"}))
    with pytest.raises(UnsupportedFeatureError, match="appendOnly"):
        check_writable(listed, frozenset())


def add(path: str, vector: DeletionVector | None = None) -> AddFile:
    return AddFile(path, {}, 1, 0, True, vector=vector)


def removed(path: str, at: int | None, vector: DeletionVector | None = None) -> RemoveFile:
    return RemoveFile(path, at, True, vector=vector)


def test_a_file_is_there_under_one_vector_at_a_time() -> None:
    one, other = vector("a"), vector("b")
    builder = SnapshotBuilder()
    builder.apply([add("f", one)])
    builder.apply([add("f", one)])
    with pytest.raises(TableDamagedError, match="two deletion vectors"):
        builder.apply([add("f", other)])
    builder.apply([removed("f", 1, other)])
    assert builder.files["f"].vector == one, "the removal is of an earlier vector"
    builder.apply([removed("f", 1, one)])
    assert not builder.files


def vector(name: str) -> DeletionVector:
    return DeletionVector(name * 20, 1, 10, 1)


def test_what_was_removed_is_known_until_it_is_there_again() -> None:
    builder = SnapshotBuilder()
    builder.apply([add("f"), add("g")])
    builder.apply([removed("f", 5), removed("g", None)])
    assert [*builder.tombstones] == ["f"], "one without a time has expired"
    builder.apply([add("f")])
    assert not builder.tombstones


def test_removals_are_forgotten_from_the_oldest_on() -> None:
    builder = SnapshotBuilder()
    builder.metadata = metadata(**{"delta.deletedFileRetentionDuration": "interval 1 days"})
    builder.apply([removed("old", 0), removed("edge", DAY_MS), removed("new", 2 * DAY_MS)])
    builder.forget(None)
    assert [*builder.tombstones] == ["new"]


def test_transactions_expire_by_both_clocks() -> None:
    builder = SnapshotBuilder()
    builder.metadata = metadata(**{"delta.setTransactionRetentionDuration": "interval 1 days"})
    assert builder.txns_until(10 * DAY_MS, lambda: 10 * DAY_MS) is None
    builder.apply([Txn("old", 1, 5 * DAY_MS), Txn("new", 1, 10 * DAY_MS), Txn("timeless", 1, None)])
    assert builder.txns_until(10 * DAY_MS, lambda: 10 * DAY_MS) == 9 * DAY_MS
    assert builder.txns_until(10 * DAY_MS, lambda: 3 * DAY_MS) is None, "this host's clock is ahead"

    def never() -> int:
        raise AssertionError("nothing seems to have expired, and the store was asked")

    assert builder.txns_until(5 * DAY_MS, never) is None
    builder.forget(5 * DAY_MS)
    assert sorted(builder.txns) == ["new", "timeless"]


def test_versions_by_time(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"delta.checkpointInterval": "2", "lakemerge.maintenance": "off"})
    for number in range(4):
        table.upsert(frame([(number, 1, "x")]))
    times = [dt.datetime.fromtimestamp(entry.timestamp_ms / 1000, dt.UTC) for entry in reversed(table.history())]
    for version, time in enumerate(times):
        assert LakeTable.open(tmp_path / "t", timestamp=time).version == version
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", timestamp=times[0].replace(year=2001))
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(tmp_path / "t", timestamp=times[-1].replace(year=2999))


def test_nothing_to_do_is_no_commit(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    log = table.opened.handle.log
    outcome = log.commit(table.opened.view.snapshot, lambda _: AlreadyDone(0), operation="W", parameters={})
    assert outcome == AlreadyDone(0)
    assert LakeTable.open(tmp_path / "t").version == 0


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        DeletionVector.from_json("u")
    for place in ("no place", '"' * 20, "#" * 20):
        with pytest.raises(InputError, match="is not the place of a deletion vector"):
            _ = DeletionVector(place, 1, 10, 1).path


class Failing(LocalStore):
    def open_input(self, path: str, *, size_bytes: int | None = None) -> NoReturn:
        raise OSError(errno.EIO, "the disk is broken", path)

    def get(self, path: str) -> NoReturn:
        self.open_input(path)


def test_vectors_that_cannot_be_read_are_damaged(tmp_path: Path) -> None:
    with pytest.raises(TableDamagedError, match=r"cannot be read: .*the disk is broken"):
        read_vector(Failing(tmp_path), vector("a"))


@pytest.mark.parametrize("count", [4096, 4095, 4097])
def test_vectors_about_as_long_as_a_list_may_be(tmp_path: Path, count: int) -> None:
    """Roaring writes up to 4,096 rows of 65,536 as a list, and more as bits."""
    store = LocalStore(tmp_path)
    rows = list(range(0, 2 * count, 2))
    taken = np.zeros(2 * count, dtype=np.bool_)
    taken[rows] = True
    (written,) = write_vectors(store, "dv", uuid.UUID(int=7), [encode_vector(taken)])
    assert np.flatnonzero(read_vector(store, written)).tolist() == rows


def checkpointed(root: Path, state: SnapshotBuilder) -> SnapshotBuilder:
    path = root / "c.checkpoint.parquet"
    pq.write_table(encode_checkpoint(state.finish(3, 0, None), now_ms=0), path)
    return read_checkpoint(LocalStore(root), Checkpoint(3, (FileStat(path.name, path.stat().st_size, 0),)))


def built(*actions: Action) -> SnapshotBuilder:
    builder = SnapshotBuilder()
    builder.apply([Protocol(1, 2), metadata(), *actions])
    return builder


def test_checkpoints_hold_vectors_if_any_or_all_files_have_them(tmp_path: Path) -> None:
    none, one, all_of_them = [add("f"), add("g")], [add("f"), add("g", vector("a"))], [add("f", vector("a"))]
    for files in (none, one, all_of_them):
        found = checkpointed(tmp_path, built(*files)).files.values()
        assert [(file.path, file.vector) for file in found] == [(file.path, file.vector) for file in files]


def test_checkpoints_hold_the_options_of_the_format(tmp_path: Path) -> None:
    extra = {"format": {"provider": "parquet", "options": {"a": "b"}}}
    found = checkpointed(tmp_path, built(replace(metadata(), extra=extra))).metadata
    assert found is not None
    assert found.extra == extra


def test_a_checkpoint_that_is_not_one_is_damaged_and_a_store_that_fails_is_not(tmp_path: Path) -> None:
    path = tmp_path / "c.checkpoint.parquet"
    pq.write_table(pa.table({"metaData": pa.array([{"id": None, "schemaString": None}], METADATA)}), path)
    checkpoint = Checkpoint(3, (FileStat(path.name, path.stat().st_size, 0),))
    with pytest.raises(TableDamagedError, match="cannot be read"):
        read_checkpoint(LocalStore(tmp_path), checkpoint)
    with pytest.raises(OSError, match="the disk is broken"):
        read_checkpoint(Failing(tmp_path), checkpoint)


def test_the_digest_of_a_commit_that_went_is_what_the_next_one_says(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for number in range(3):
        table.upsert(frame([(1, number, "x")]))
    store, log = LocalStore(tmp_path / "t"), tmp_path / "t" / "_delta_log"
    digests = [_digest_at(store, list_log(store), version) for version in range(4)]
    assert len({*digests}) == 4
    (log / f"{1:020d}.json").unlink()
    (log / f"{3:020d}.json").unlink()
    listing = list_log(store)
    assert _digest_at(store, listing, 1) == digests[1]
    assert _digest_at(store, listing, 3) is None


def test_commits_that_went_are_told_of(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for number in range(5):
        table.upsert(frame([(1, number, "x")]))
    log = table.opened.handle.log
    commits = log.commits(since=0)
    for version in (1, 2, 3):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="version 1 on went while they were read"):
        next(commits)
    with pytest.raises(VersionNotFoundError, match="commit 2 is not, or no longer, in the log; it has commits 4 to 5"):
        log.commits(since=1, until=3)


def test_a_log_of_a_checkpoint_alone_is_no_table(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    table.upsert(frame([(1, 1, "x")]))
    log, snapshot = table.opened.handle.log, table.opened.view.snapshot
    write_checkpoint(LocalStore(tmp_path / "t"), snapshot, now_ms=0)
    log.check_holds(snapshot)
    for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
        commit.unlink()
    with pytest.raises(TableReplacedError, match="only a checkpoint is left of it"):
        log.check_holds(snapshot)


def test_a_checkpoint_of_the_commit_before_holds_a_log(tmp_path: Path) -> None:
    """Other engines clean a log up to the checkpoint that they keep."""
    table = create(tmp_path / "t")
    seen = [table.opened.view.snapshot]
    for number in range(3):
        table.upsert(frame([(1, number, "x")]))
        seen.append(table.opened.view.snapshot)
    log, snapshot = table.opened.handle.log, seen[3]
    write_checkpoint(LocalStore(tmp_path / "t"), seen[1], now_ms=0)
    (tmp_path / "t" / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(TableReplacedError, match="all that was before its last commit is gone"):
        log.check_holds(snapshot)  # an earlier one leaves a gap
    write_checkpoint(LocalStore(tmp_path / "t"), seen[2], now_ms=0)
    log.check_holds(snapshot)
    log.checkpoint(snapshot)
    assert (tmp_path / "t" / "_delta_log" / f"{snapshot.version:020d}.checkpoint.parquet").exists()


def test_a_checkpoint_leaves_expired_removals_out(tmp_path: Path) -> None:
    short = {"delta.deletedFileRetentionDuration": "interval 1 milliseconds", "delta.checkpointInterval": "4"}
    table = create(tmp_path / "t", properties={**short, "lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "x")]))
    table.upsert(frame([(1, 2, "y")]))
    table.compact()
    snapshot = table.opened.view.snapshot
    assert len(snapshot.tombstones) == 1, "the removal that the checkpoint leaves out"
    stored = pq.read_table(tmp_path / "t" / "_delta_log" / f"{snapshot.version:020d}.checkpoint.parquet")
    assert stored["remove"].null_count == stored.num_rows


@pytest.mark.parametrize("values", [["a"], {"a": 1}, "a"])
def test_values_of_partitions_that_are_no_texts(values: object) -> None:
    fields = {"path": "f", "partitionValues": values, "size": 1, "modificationTime": 0, "dataChange": True}
    with pytest.raises(TableDamagedError, match="'partitionValues' is not a map of strings"):
        decode(orjson.dumps({"add": fields}), "c.json")


@pytest.fixture
def with_sidecar(tmp_path: Path) -> Checkpoint:
    """A checkpoint that names a file of data files."""
    pq.write_table(encode_checkpoint(built(add("f")).finish(3, 0, None), now_ms=0), tmp_path / "whole.parquet")
    sidecar = tmp_path / "_delta_log" / "_sidecars" / "s.parquet"
    sidecar.parent.mkdir(parents=True)
    pq.write_table(pq.read_table(tmp_path / "whole.parquet", columns=["add"]), sidecar)
    path = tmp_path / "c.checkpoint.json"
    lines = [
        {"checkpointMetadata": {"version": 3}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "id", "schemaString": '{"type":"struct","fields":[]}', "partitionColumns": []}},
        {"sidecar": {"path": sidecar.name, "sizeInBytes": sidecar.stat().st_size, "modificationTime": 0}},
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return Checkpoint(3, (FileStat(path.name, path.stat().st_size, 0),))


class FailingSidecars(LocalStore):
    def get(self, path: str) -> bytes:
        if "_sidecars" in path:
            raise OSError(errno.EIO, "the disk is broken", path)
        return super().get(path)


def test_a_sidecar_that_is_not_one_is_damaged_and_a_store_that_fails_is_not(
    tmp_path: Path, with_sidecar: Checkpoint
) -> None:
    assert [*read_checkpoint(LocalStore(tmp_path), with_sidecar).files] == ["f"]
    with pytest.raises(OSError, match="the disk is broken"):
        read_checkpoint(FailingSidecars(tmp_path), with_sidecar)
    sidecar = tmp_path / "_delta_log" / "_sidecars" / "s.parquet"
    sidecar.write_bytes(sidecar.read_bytes()[:-9])
    with pytest.raises(TableDamagedError, match=r"s\.parquet cannot be read"):
        read_checkpoint(LocalStore(tmp_path), with_sidecar)
    pq.write_table(pa.table({"add": [{"path": None, "size": 1}]}), sidecar)
    with pytest.raises(TableDamagedError, match=r"s\.parquet cannot be read"):
        read_checkpoint(LocalStore(tmp_path), with_sidecar)
    sidecar.unlink()
    with pytest.raises(TableDamagedError, match=r"s\.parquet is missing"):
        read_checkpoint(LocalStore(tmp_path), with_sidecar)


def test_a_snapshot_is_not_brought_forward_by_another_table(tmp_path: Path) -> None:
    """Its log is longer, and fits in itself. Of the snapshot's own version it has no commit any more."""
    old = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"}).opened.view.snapshot
    shutil.rmtree(tmp_path / "t")
    new = create(tmp_path / "t", properties={"delta.checkpointInterval": "1", "lakemerge.maintenance": "off"})
    first = new.opened.view.snapshot
    new.upsert(frame([(1, 1, "x")]))
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    log = DeltaLog(LocalStore(tmp_path / "t"))
    with pytest.raises(TableReplacedError, match="removed or re-created"):
        log.update(old)
    assert log.update(first).version == 1


def test_the_only_commit_says_what_it_holds(tmp_path: Path) -> None:
    """One that does not is refused at once: no commit before it says that it should."""
    create(tmp_path / "t")
    commit = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    first, rest = commit.read_bytes().split(b"\n", 1)
    fields = orjson.loads(first)["commitInfo"]
    del fields[CHAIN]
    commit.write_bytes(orjson.dumps({"commitInfo": fields}) + b"\n" + rest)
    with pytest.raises(TableDamagedError, match=r"0\.json lost the line that says what it holds"):
        DeltaLog(LocalStore(tmp_path / "t")).snapshot()
