"""The commit path: exactly one writer per version, and no lost or doubled commit when a store stutters."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from lakemerge.delta import (
    Action,
    AddFile,
    AlreadyDone,
    Attempt,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
    Transaction,
    Txn,
)
from lakemerge.errors import (
    CommitConflictError,
    InputError,
    OutcomeUnknownError,
    StoreError,
    TableDamagedError,
    TableReplacedError,
    UnsupportedFeatureError,
)
from lakemerge.storage import FileStat, Put, Store, open_store
from lakemerge.storage.base import NothingCreatedError
from lakemerge.testing.counting import CountingStore

FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", "lakemerge"})
STATE = DomainMetadata("lakemerge.state", "{}")


def metadata(**configuration: str) -> Metadata:
    given = {key.replace("__", "."): value for key, value in configuration.items()}
    configured = {"delta.enableInCommitTimestamps": "true", **given}
    return Metadata("id", None, None, '{"type":"struct","fields":[]}', (), configured, 0)


def add(path: str) -> AddFile:
    return AddFile(path, {}, 1, 0, True)


def always(*actions: Action) -> Callable[[Snapshot | None], Attempt]:
    return lambda tip: Attempt(actions)


def create(log: DeltaLog, **configuration: str) -> Snapshot:
    first = always(Protocol(1, 7, frozenset(), FEATURES), metadata(**configuration), STATE)
    return landed(log.commit(None, first, operation="CREATE TABLE", parameters={}))


def write(log: DeltaLog, begin: Snapshot, *actions: Action, txn_id: str | None = None) -> Snapshot:
    own = None if txn_id is None else Transaction(txn_id)
    return landed(log.commit(begin, always(*actions), operation="WRITE", parameters={}, transaction=own))


def landed(outcome: Committed | AlreadyDone) -> Snapshot:
    assert isinstance(outcome, Committed)
    assert outcome.version == outcome.snapshot.version
    return outcome.snapshot


def lines(root: Path, version: int) -> list[dict[str, dict[str, object]]]:
    return [json.loads(line) for line in (root / f"_delta_log/{version:020d}.json").read_text().splitlines()]


class Stutter(Store):
    """Answers the next puts and gets as scripted; ``True`` carries a put out before its answer is lost."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.puts: list[tuple[bool, Put | BaseException]] = []
        self.gets: list[BaseException | None] = []
        self.before_put: list[Callable[[], object]] = []

    @property
    def url(self) -> str:
        return self.inner.url

    def spark_url(self, path: str) -> str:
        return self.inner.spark_url(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        if self.before_put:
            self.before_put.pop(0)()
        if not self.puts:
            return self.inner.put_if_absent(path, data)
        carried_out, answer = self.puts.pop(0)
        if carried_out:
            self.inner.put_if_absent(path, data)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)

    def get(self, path: str) -> bytes:
        failure = self.gets.pop(0) if self.gets else None
        if failure is not None:
            raise failure
        return self.inner.get(path)

    def stat(self, path: str) -> FileStat | None:
        return self.inner.stat(path)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        return self.inner.list(folder, start_after=start_after)

    def folders(self, folder: str) -> Sequence[str]:
        return self.inner.folders(folder)

    def delete_empty_folders(self, folder: str) -> None:
        self.inner.delete_empty_folders(folder)

    def delete(self, paths: Sequence[str]) -> None:
        self.inner.delete(paths)

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        return self.inner.delete_exact(files)

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        return self.inner.replace_exact(file, data)

    def sync(self, paths: Sequence[str]) -> None:
        self.inner.sync(paths)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        return self.inner.clean_up(before_ms=before_ms, dry_run=dry_run)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        return self.inner.open_input(path, size_bytes=size_bytes)

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return self.inner.open_output(path)


@pytest.fixture
def store(tmp_path: Path) -> Stutter:
    return Stutter(open_store(tmp_path))


@pytest.fixture
def naps() -> list[float]:
    return []


@pytest.fixture
def log(store: Stutter, naps: list[float]) -> DeltaLog:
    ids = iter(f"txn-{number}" for number in range(10_000))
    return DeltaLog(store, clock_ms=lambda: 1_000, sleep=naps.append, new_id=lambda: next(ids))


def test_the_provenance_of_a_commit(log: DeltaLog, tmp_path: Path) -> None:
    begin = create(log)
    log.commit(
        begin,
        lambda tip: Attempt([add("a b.parquet")], {"numFiles": 1, "note": "x"}),
        operation="WRITE",
        parameters={"mode": "Append", "partitionBy": ["c"]},
        info={"lakemerge": {"rows": 3}},
        transaction=Transaction("mine"),
    )
    info, added = lines(tmp_path, 1)
    assert info["commitInfo"] == {
        "timestamp": 1_001,
        "inCommitTimestamp": 1_001,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": '["c"]'},
        "operationMetrics": {"numFiles": "1", "note": "x"},
        "engineInfo": info["commitInfo"]["engineInfo"],
        "txnId": "mine",
        "isBlindAppend": True,
        "readVersion": 0,
        "lakemerge": {"rows": 3},
        "lakemerge.chain": info["commitInfo"]["lakemerge.chain"],
    }
    assert str(info["commitInfo"]["engineInfo"]).startswith("LakeMerge/")
    assert added["add"]["path"] == "a%20b.parquet"
    entry = log.history(limit=1)[0]
    assert (entry.version, entry.timestamp_ms, entry.operation) == (1, 1_001, "WRITE")
    assert (entry.parameters["mode"], entry.metrics["numFiles"], entry.info["txnId"]) == ("Append", "1", "mine")
    assert [e.version for e in log.history()] == [1, 0]


def test_blind_appends(log: DeltaLog, tmp_path: Path) -> None:
    snapshot = write(log, create(log), add("a"))
    snapshot = write(log, snapshot, RemoveFile("a", 5, True))
    write(log, snapshot, DomainMetadata("d", "", removed=True))
    flags = [lines(tmp_path, version)[0]["commitInfo"]["isBlindAppend"] for version in range(4)]
    assert flags == [False, True, False, False]


def test_the_snapshot_after_a_commit_equals_a_fresh_one(log: DeltaLog) -> None:
    snapshot = create(log)
    snapshot = write(log, snapshot, add("a"), add("b"), Txn("app", 3), DomainMetadata("d", "1"))
    snapshot = write(log, snapshot, RemoveFile("a", 5, True), Txn("app", 4), DomainMetadata("d", "1", removed=True))
    assert set(snapshot.files) == {"b"}
    assert set(snapshot.tombstones) == {"a"}
    assert snapshot.txns["app"].version == 4
    assert set(snapshot.domains) == {"lakemerge.state"}
    assert snapshot.timestamp_ms == 1_002
    assert snapshot == log.snapshot() == pickle.loads(pickle.dumps(snapshot))


def test_a_loser_sees_the_winners_and_builds_again(log: DeltaLog, store: Stutter) -> None:
    begin = create(log)
    other = DeltaLog(store.inner, clock_ms=lambda: 1_000)
    store.before_put = [lambda: write(other, begin, add("theirs")), lambda: write(other, begin, add("theirs2"))]
    seen: list[tuple[int, set[str]]] = []

    def build(tip: Snapshot | None) -> Attempt:
        assert tip is not None
        seen.append((tip.version, set(tip.files)))
        return Attempt([add("mine")])

    snapshot = landed(log.commit(begin, build, operation="WRITE", parameters={}))
    assert seen == [(0, set()), (1, {"theirs"}), (2, {"theirs", "theirs2"})]
    assert snapshot.version == 3
    assert snapshot == log.snapshot()


def test_a_build_may_stop_or_abort(log: DeltaLog, tmp_path: Path) -> None:
    begin = create(log)
    done = log.commit(begin, lambda tip: AlreadyDone(0), operation="W", parameters={})
    assert done == AlreadyDone(0)

    def refuse(tip: Snapshot | None) -> Attempt:
        raise CommitConflictError("changed")

    with pytest.raises(CommitConflictError, match="changed"):
        log.commit(begin, refuse, operation="W", parameters={})
    assert len(list((tmp_path / "_delta_log").iterdir())) == 1


@pytest.mark.parametrize("answer", [Put.UNKNOWN, Put.EXISTS, TimeoutError(errno.ETIMEDOUT, "lost")])
def test_a_put_that_landed_without_an_answer_is_ours(log: DeltaLog, store: Stutter, answer: Put | Exception) -> None:
    begin = create(log)
    store.puts = [(True, answer)]
    assert write(log, begin, add("a")).version == 1
    assert log.snapshot().version == 1


@pytest.mark.parametrize("answer", [Put.UNKNOWN, TimeoutError(errno.ETIMEDOUT, "lost")])
def test_a_put_that_did_not_land_is_tried_again_at_the_same_version(
    log: DeltaLog, store: Stutter, naps: list[float], answer: Put | Exception
) -> None:
    begin = create(log)
    store.puts = [(False, answer), (False, answer)]
    assert write(log, begin, add("a")).version == 1
    assert naps == sorted(naps)
    assert len(naps) == 2
    assert log.snapshot().version == 1


def test_another_writers_file_after_an_unknown_outcome_is_a_lost_race(log: DeltaLog, store: Stutter) -> None:
    begin = create(log)
    store.before_put = [lambda: write(DeltaLog(store.inner), begin, add("theirs"))]
    store.puts = [(False, Put.UNKNOWN)]
    snapshot = write(log, begin, add("mine"))
    assert (snapshot.version, set(snapshot.files)) == (2, {"theirs", "mine"})


def test_an_outcome_that_cannot_be_found_out(log: DeltaLog, store: Stutter, tmp_path: Path) -> None:
    begin = create(log)
    store.puts = [(True, Put.UNKNOWN)] + [(False, TimeoutError(errno.ETIMEDOUT, "gone"))] * 20
    store.gets = [None, *[TimeoutError(errno.ETIMEDOUT, "gone")] * 20]
    with pytest.raises(OutcomeUnknownError, match="kept") as caught:
        write(log, begin, add("a"), txn_id="mine")
    assert (caught.value.version, caught.value.txn_id) == (1, "mine")
    assert (tmp_path / "_delta_log" / f"{1:020d}.json").exists()
    store.puts, store.gets = [], []
    assert write(log, begin, add("a"), txn_id="mine").version == 1
    assert log.snapshot().version == 1


def test_a_landed_commit_that_cannot_be_read_back_is_no_failed_commit(log: DeltaLog, tmp_path: Path) -> None:
    begin = create(log)
    write(log, write(log, begin, add("a"), txn_id="mine"), add("b"))
    commit = tmp_path / "_delta_log" / f"{0:020d}.json"
    commit.rename(tmp_path / "elsewhere")  # version 1, where "mine" landed, can no longer be replayed
    with pytest.raises(OutcomeUnknownError, match="landed as version 1") as caught:
        write(log, begin, add("a"), txn_id="mine")
    assert caught.value.facts == {"version": 1, "txn_id": "mine"}


def test_a_store_that_surely_created_nothing_is_no_unknown_outcome(
    log: DeltaLog, store: Stutter, naps: list[float]
) -> None:
    begin, own = create(log), Transaction("mine")
    store.puts = [(False, NothingCreatedError("no space"))]
    with pytest.raises(StoreError, match="no space"):
        log.commit(begin, always(add("a")), operation="WRITE", parameters={}, transaction=own)
    assert naps == []
    assert not own.may_land
    store.puts = [(False, Put.UNKNOWN), *[(False, NothingCreatedError("no space"))] * 20]
    with pytest.raises(OutcomeUnknownError):
        log.commit(begin, always(add("a")), operation="WRITE", parameters={}, transaction=own)
    assert own.may_land


@pytest.mark.parametrize("is_done", [False, True])
def test_a_refusal_over_a_network_proves_nothing(log: DeltaLog, store: Stutter, is_done: bool) -> None:
    """The client, or a proxy, may have sent the request twice, and the refusal may answer the second."""
    begin, own = create(log), Transaction("mine")
    store.puts = [(is_done, StoreError("ExpiredToken"))] * 7
    if is_done:
        assert write(log, begin, add("a")).version == 1
        return
    with pytest.raises(OutcomeUnknownError, match="ExpiredToken"):
        log.commit(begin, always(add("a")), operation="WRITE", parameters={}, transaction=own)
    assert own.may_land


class AlarmError(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize("alarm", [AlarmError(), TimeoutError("the job took too long"), KeyboardInterrupt()])
def test_an_exception_that_is_not_the_stores_passes_through(
    log: DeltaLog, store: Stutter, alarm: BaseException
) -> None:
    begin = create(log)
    for puts, gets in (([(False, alarm)], []), ([(False, Put.UNKNOWN)], [alarm])):
        own = Transaction("mine")
        store.puts, store.gets = [*puts], [*gets]
        with pytest.raises(type(alarm)) as caught:
            log.commit(begin, always(add("a")), operation="WRITE", parameters={}, transaction=own)
        assert caught.value is alarm
        assert own.may_land


def test_a_lost_race_and_a_refused_attempt_leave_nothing_that_may_land(log: DeltaLog, store: Stutter) -> None:
    """What was sent was read back as another's, so the caller may delete its files."""
    begin, own = create(log), Transaction("mine")
    store.before_put = [lambda: write(DeltaLog(store.inner), begin, add("theirs"))]
    store.puts = [(False, Put.UNKNOWN)]

    def once(tip: Snapshot | None) -> Attempt:
        assert tip is not None
        if tip.version:
            assert not own.may_land
            raise CommitConflictError("changed")
        return Attempt([add("mine")])

    with pytest.raises(CommitConflictError):
        log.commit(begin, once, operation="WRITE", parameters={}, transaction=own)
    assert not own.may_land


def test_a_part_of_our_own_file_is_not_anothers(log: DeltaLog, store: Stutter, tmp_path: Path) -> None:
    begin, own = create(log), Transaction("mine")
    path = tmp_path / "_delta_log" / f"{1:020d}.json"
    store.before_put = [lambda: path.write_bytes(b"")]
    with pytest.raises(OutcomeUnknownError):
        log.commit(begin, always(add("a")), operation="WRITE", parameters={}, transaction=own)
    assert own.may_land


def _cut_after(lines: int) -> Callable[[bytes, bytes], bytes]:
    return lambda data, other: b"".join(data.splitlines(keepends=True)[:lines])


@pytest.mark.parametrize(
    "damage",
    [
        _cut_after(0),
        _cut_after(1),
        _cut_after(2),
        lambda data, other: b"".join(data.splitlines(keepends=True)[1:]),
        lambda data, other: data.rstrip(b"\n"),
        lambda data, other: data[:-2] + b" " + data[-2:],
        lambda data, other: data + data.splitlines(keepends=True)[-1],
        lambda data, other: other,
        lambda data, other: data[: len(data) // 2],
    ],
)
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_commit_file_that_is_not_whole_is_found_by_reading(
    log: DeltaLog, tmp_path: Path, version: int, damage: Callable[[bytes, bytes], bytes]
) -> None:
    snapshots = [create(log)]
    for name in ("a", "b", "c"):
        snapshots.append(write(log, snapshots[-1], add(name), add(f"{name}/b")))
    folder = tmp_path / "_delta_log"
    files = [folder / f"{number:020d}.json" for number in range(4)]
    whole, other = files[version].read_bytes(), files[version - 1].read_bytes()
    files[version].write_bytes(damage(whole, other))
    with pytest.raises(TableDamagedError) as caught:
        log.snapshot()
    assert str(caught.value.facts["path"]).startswith("_delta_log/")
    if version:
        with pytest.raises((TableDamagedError, TableReplacedError)):
            log.update(snapshots[version - 1])
    with pytest.raises((TableDamagedError, TableReplacedError)):
        write(log, snapshots[0], add("d"))
    assert not (folder / f"{4:020d}.json").exists()
    files[version].write_bytes(whole)
    assert log.snapshot() == snapshots[-1]


def test_a_late_commit_of_a_table_that_was_here_before(log: DeltaLog, store: Stutter, tmp_path: Path) -> None:
    """Its request was under way when the table was removed and made anew. It takes a version of the new one."""
    old = create(log)
    write(log, old, add("old"))
    late = (tmp_path / "_delta_log" / f"{1:020d}.json").read_bytes()
    shutil.rmtree(tmp_path / "_delta_log")
    new = create(log)
    store.inner.put("_delta_log/" + f"{1:020d}.json", late)
    with pytest.raises(TableDamagedError, match="another version or table"):
        log.snapshot()
    with pytest.raises(TableDamagedError, match="another version or table"):
        write(log, new, add("new"))


def test_a_snapshot_from_a_cleaned_up_version_goes_on_by_the_chain(log: DeltaLog, tmp_path: Path) -> None:
    """The commit after it says for which commit it was made. So no other proof is needed that it is the same table."""
    begin = create(log)
    write(log, begin, add("a"))
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()
    assert log.update(begin).version == 1


def test_creation(log: DeltaLog, store: Stutter) -> None:
    assert not log.exists()
    store.before_put = [lambda: create(DeltaLog(store.inner))]
    tips: list[int | None] = []

    def build(tip: Snapshot | None) -> Attempt | AlreadyDone:
        tips.append(None if tip is None else tip.version)
        return Attempt([Protocol(1, 7), metadata()]) if tip is None else AlreadyDone(tip.version)

    assert log.commit(None, build, operation="CREATE", parameters={}) == AlreadyDone(0)
    assert log.commit(None, build, operation="CREATE", parameters={}) == AlreadyDone(0)
    assert tips == [None, 0, 0]
    assert log.exists()


def test_a_table_whose_first_commit_was_cleaned_up_is_not_created_again(log: DeltaLog, tmp_path: Path) -> None:
    log.checkpoint(write(log, create(log), add("a")))
    (tmp_path / "_delta_log" / f"{0:020d}.json").unlink()

    def build(tip: Snapshot | None) -> AlreadyDone:
        return AlreadyDone(-1 if tip is None else tip.version)

    assert log.commit(None, build, operation="CREATE", parameters={}) == AlreadyDone(1)


def test_a_begin_below_cleaned_up_commits_is_a_conflict(tmp_path: Path) -> None:
    log = DeltaLog(open_store(tmp_path), clock_ms=lambda: 1_000)
    begin = create(log)
    log.checkpoint(write(log, write(log, begin, add("a")), add("b")))
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    late = DeltaLog(open_store(tmp_path), clock_ms=lambda: 40 * 86_400_000)
    with pytest.raises(CommitConflictError, match="cleaned up"):
        write(late, begin, add("c"))
    assert late.update(begin).version == 2


@pytest.mark.parametrize(
    "actions",
    [
        (add("a"), add("a")),
        (add("a"), RemoveFile("a", 0, True)),
        (Txn("x", 1), Txn("x", 2)),
        (DomainMetadata("d", "1"), DomainMetadata("d", "2")),
        (metadata(), metadata()),
    ],
)
def test_contradicting_actions_are_refused(log: DeltaLog, actions: tuple[Action, ...]) -> None:
    begin = create(log)
    with pytest.raises(InputError, match="one action each"):
        write(log, begin, *actions)
    assert log.snapshot().version == 0


def test_edges_of_the_input(log: DeltaLog) -> None:
    with pytest.raises(InputError, match="Protocol"):
        log.commit(None, always(add("a")), operation="C", parameters={})
    begin = create(log)
    with pytest.raises(InputError, match="txnId"):
        log.commit(begin, always(add("a")), operation="W", parameters={}, info={"txnId": "x"})
    with pytest.raises(UnsupportedFeatureError, match="rowTracking"):
        write(log, begin, Protocol(1, 7, frozenset(), FEATURES | {"rowTracking"}))
    with pytest.raises(InputError, match="not for both"):
        log.snapshot(version=0, timestamp_ms=0)
    assert log.snapshot().version == 0


def test_append_only_tables_lose_no_data(store: Stutter) -> None:
    log = DeltaLog(store, writer_features=FEATURES | {"appendOnly"})
    begin = create(log, delta__appendOnly="true")
    snapshot = write(log, begin, add("a"))
    with pytest.raises(UnsupportedFeatureError, match="append-only"):
        write(log, snapshot, RemoveFile("a", 0, True))
    assert write(log, snapshot, RemoveFile("a", 0, False), add("b")).version == 2


def test_a_file_is_removed_under_the_spelling_it_was_added_with(log: DeltaLog, tmp_path: Path) -> None:
    begin = landed(log.commit(None, always(Protocol(1, 2), metadata()), operation="CREATE TABLE", parameters={}))
    foreign = {
        "add": {"path": "a+b.parquet", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
    }
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text(json.dumps(foreign))
    write(log, begin, RemoveFile("a+b.parquet", 1, True))
    assert lines(tmp_path, 2)[1]["remove"]["path"] == "a+b.parquet"


def test_turning_in_commit_timestamps_on_later_says_since_when(log: DeltaLog, tmp_path: Path) -> None:
    begin = create(log, delta__enableInCommitTimestamps="false")
    assert "inCommitTimestamp" not in lines(tmp_path, 0)[0]["commitInfo"]
    begin = log.snapshot()
    snapshot = write(log, begin, metadata())
    own = lines(tmp_path, 1)[0]["commitInfo"]["inCommitTimestamp"]
    assert own == begin.timestamp_ms + 1
    assert snapshot.metadata.configuration["delta.inCommitTimestampEnablementVersion"] == "1"
    assert snapshot.metadata.configuration["delta.inCommitTimestampEnablementTimestamp"] == str(own)
    assert log.snapshot(timestamp_ms=begin.timestamp_ms).version == 0
    assert log.snapshot(timestamp_ms=snapshot.timestamp_ms).version == 1


def test_update_costs_one_listing_and_commit_two_requests(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path))
    log = DeltaLog(store)
    snapshot = write(log, create(log), add("a"))
    assert log.update(snapshot) is snapshot  # reads its own commit file once, to know it again in listings
    store.reset()
    assert log.update(snapshot) is snapshot
    assert dict(store.counts().calls) == {"list": 1}
    assert store.counts().files_listed == 1
    store.reset()
    write(log, snapshot, add("b"))
    assert dict(store.counts().calls) == {"list": 1, "put_if_absent": 1}
    assert log.update(snapshot) == log.snapshot()


def test_damage_between_two_versions_is_not_skipped(log: DeltaLog, tmp_path: Path) -> None:
    begin = create(log)
    write(log, write(log, write(log, begin, add("a")), add("b")), add("c"))
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(TableDamagedError, match="commit 2 is missing"):
        log.update(begin)


def test_endless_lost_races_end_in_a_conflict(log: DeltaLog, store: Stutter, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = create(log)
    other = DeltaLog(store.inner)
    monkeypatch.setattr("lakemerge.delta.log._MAX_LOST_RACES", 3)
    store.before_put = [lambda: write(other, other.snapshot(), add("x"))] * 3
    with pytest.raises(CommitConflictError, match="3 times"):
        write(log, begin, add("mine"))
    assert "mine" not in log.snapshot().files


def test_a_failing_automatic_checkpoint_does_not_fail_the_commit(
    log: DeltaLog, store: Stutter, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = create(log, delta__checkpointInterval="2")
    snapshot = write(log, snapshot, add("a"))
    store.puts = [(True, Put.CREATED), (False, OSError(errno.ENOSPC, "full"))]
    snapshot = write(log, snapshot, add("b"))
    assert (snapshot.version, snapshot.checkpoint_version) == (2, None)
    assert "checkpoint of version 2" in caplog.text
    snapshot = write(log, write(log, snapshot, add("c")), add("d"))
    assert (snapshot.version, snapshot.checkpoint_version, snapshot.commits_since_checkpoint) == (4, 4, 0)


def _race(root: str, writer: int, count: int) -> Mapping[str, int]:
    log = DeltaLog(open_store(root))
    return {
        f"{writer}-{number}": write(log, log.snapshot(version=0), add(f"{writer}-{number}")).version
        for number in range(count)
    }


def test_racing_threads_get_each_version_once(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    create(DeltaLog(open_store(tmp_path)))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda writer: _race(str(tmp_path), writer, 5), range(4)))
    versions = {name: version for result in results for name, version in result.items()}
    assert sorted(versions.values()) == list(range(1, 21))
    final = DeltaLog(open_store(tmp_path)).snapshot()
    assert set(final.files) == set(versions)
    for version, actions in DeltaLog(open_store(tmp_path)).commits(since=0):
        (added,) = [action for action in actions if isinstance(action, AddFile)]
        assert versions[added.path] == version
