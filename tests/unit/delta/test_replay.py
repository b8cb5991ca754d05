"""Reading a log: hand-written commits and checkpoints, time travel, and what a damaged log is taken for."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge.delta import (
    Action,
    AddFile,
    Attempt,
    CommitInfo,
    Committed,
    DeltaLog,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Snapshot,
    Txn,
    encode,
)
from lakemerge.delta.checkpoint import encode_checkpoint
from lakemerge.errors import NotATableError, TableDamagedError, VersionNotFoundError
from lakemerge.storage import FileStat, LocalStore, open_store
from lakemerge.testing.counting import CountingStore
from tests.relink import relink

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
FEATURES = frozenset({"domainMetadata", "inCommitTimestamp", "lakemerge"})
STATS = '{"numRecords":1000,"minValues":{"a":1,"b":"x"},"maxValues":{"a":9,"b":"y"},"nullCount":{"a":0,"b":0}}'


def add(path: str, **tags: str) -> AddFile:
    return AddFile(path, {"p": "1", "q": None}, 1, 0, True, STATS, tags)


def always(*actions: Action) -> Callable[[Snapshot | None], Attempt]:
    return lambda tip: Attempt(actions)


def grow(root: Path, commits: int, *, interval: int = 1000) -> Snapshot:
    """A table with ``commits`` commits after the first; commit v adds ``v-0`` and the domain ``d.v``."""
    log = DeltaLog(open_store(root), clock_ms=lambda: NOW_MS)
    configuration = {"delta.enableInCommitTimestamps": "true", "delta.checkpointInterval": str(interval)}
    first = always(
        Protocol(1, 7, frozenset(), FEATURES),
        Metadata("id", "n", None, '{"type":"struct","fields":[]}', ("p", "q"), configuration, 7),
        DomainMetadata("lakemerge.state", "{}"),
    )
    outcome = log.commit(None, first, operation="CREATE TABLE", parameters={})
    assert isinstance(outcome, Committed)
    for version in range(1, commits + 1):
        actions = (
            add(f"{version}-0", tag="é%"),
            DomainMetadata(f"d.{version}", str(version)),
            Txn("app", version),
        )
        outcome = log.commit(outcome.snapshot, always(*actions), operation="WRITE", parameters={})
        assert isinstance(outcome, Committed)
    return outcome.snapshot


def entry(root: Path, name: str) -> Path:
    return root / "_delta_log" / name


def commit_file(root: Path, version: int) -> Path:
    return entry(root, f"{version:020d}.json")


def checkpoint_file(root: Path, version: int) -> Path:
    return entry(root, f"{version:020d}.checkpoint.parquet")


def read(root: Path, version: int | None = None) -> Snapshot:
    return DeltaLog(open_store(root)).snapshot(version=version)


def put_checkpoint(root: Path, version: int) -> None:
    log = DeltaLog(open_store(root), clock_ms=lambda: NOW_MS)
    log.checkpoint(log.snapshot(version=version))


def test_a_hand_written_log(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    file = {"partitionValues": {}, "size": 1, "modificationTime": 2, "dataChange": True}
    schema = {"schemaString": "{}", "partitionColumns": [], "configuration": {}}
    first = (
        {"commitInfo": {"timestamp": 1, "operation": "WRITE"}},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "i", "format": {"provider": "parquet", "options": {}}, **schema}},
        {"add": {"path": "a%20b", **file}},
        {"add": {"path": "c", **file}},
    )
    commit_file(tmp_path, 0).write_text("\n".join(json.dumps(action) for action in first))
    commit_file(tmp_path, 1).write_text(
        '{"remove":{"path":"a%20b","deletionTimestamp":5,"dataChange":true}}\n{"add":{"path":"d","size":1,'
        '"partitionValues":{},"modificationTime":2,"dataChange":true}}\n{"txn":{"appId":"x","version":3}}\n'
    )
    os.utime(commit_file(tmp_path, 1), (50, 50))
    snapshot = read(tmp_path)
    assert set(snapshot.files) == {"c", "d"}
    assert snapshot.tombstones == {"a b": RemoveFile("a b", 5, True)}
    assert snapshot.txns == {"x": Txn("x", 3)}
    assert (snapshot.version, snapshot.timestamp_ms, snapshot.commits_since_checkpoint) == (1, 50_000, 2)
    assert set(read(tmp_path, 0).files) == {"a b", "c"}


def test_no_log(tmp_path: Path) -> None:
    log = DeltaLog(open_store(tmp_path / "none"))
    assert not log.exists()
    with pytest.raises(NotATableError):
        log.snapshot()
    with pytest.raises(NotATableError):
        log.history()


def test_every_version_with_and_without_checkpoints(tmp_path: Path) -> None:
    grow(tmp_path, 7)
    plain = [read(tmp_path, version) for version in range(8)]
    assert [sorted(snapshot.files) for snapshot in plain] == [[f"{v}-0" for v in range(1, n + 1)] for n in range(8)]
    put_checkpoint(tmp_path, 3)
    put_checkpoint(tmp_path, 5)
    for version, expected in enumerate(plain):
        found = read(tmp_path, version)
        assert (found.files, found.domains, found.txns) == (expected.files, expected.domains, expected.txns)
        assert (found.metadata, found.protocol) == (expected.metadata, expected.protocol)
        assert found.timestamp_ms == expected.timestamp_ms == NOW_MS + version
        assert found.checkpoint_version == (5 if version >= 5 else 3 if version >= 3 else None)
    with pytest.raises(VersionNotFoundError, match="0 to 7"):
        read(tmp_path, 8)
    with pytest.raises(VersionNotFoundError):
        read(tmp_path, -1)


def test_time_travel_by_in_commit_timestamp(tmp_path: Path) -> None:
    grow(tmp_path, 5)
    put_checkpoint(tmp_path, 3)
    log = DeltaLog(open_store(tmp_path))
    assert [log.snapshot(timestamp_ms=NOW_MS + ms).version for ms in range(6)] == list(range(6))
    for timestamp_ms in (NOW_MS - 1, NOW_MS + 6):
        with pytest.raises(VersionNotFoundError) as caught:
            log.snapshot(timestamp_ms=timestamp_ms)
        assert (caught.value.earliest_ms, caught.value.latest_ms) == (NOW_MS, NOW_MS + 5)
        # NOW_MS is the hundredth day of 1970.
        assert "1970-04-11T00:00:00.000+00:00 (version 0) to 1970-04-11T00:00:00.005+00:00 (version 5)" in str(
            caught.value
        )
    for version in range(3):
        commit_file(tmp_path, version).unlink()
    with pytest.raises(VersionNotFoundError, match=r"from 1970-04-11T00:00:00\.003\+00:00 \(version 3\)"):
        log.snapshot(timestamp_ms=NOW_MS + 2)
    assert log.snapshot(timestamp_ms=NOW_MS + 3).version == 3
    with pytest.raises(VersionNotFoundError, match="3 to 5"):
        log.snapshot(version=2)


def test_time_travel_by_file_time_is_monotonic(tmp_path: Path) -> None:
    grow(tmp_path, 3)
    for version in range(4):
        text = commit_file(tmp_path, version).read_text().replace("enableInCommitTimestamps", "other")
        commit_file(tmp_path, version).write_text(text)
    relink(tmp_path)
    for version, seconds in enumerate((10, 30, 20, 40)):
        os.utime(commit_file(tmp_path, version), (seconds, seconds))
    log = DeltaLog(open_store(tmp_path))
    found = [log.snapshot(timestamp_ms=seconds * 1000).version for seconds in (10, 20, 29, 30, 39, 40)]
    assert found == [0, 0, 0, 2, 2, 3]


@pytest.mark.parametrize(
    "hint",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"version":"x"}',
        b'{"version":2}',
        b'{"version":99}',
        b'{"version":-1}',
        b'{"version":0}',
    ],
)
def test_the_last_checkpoint_file_is_only_a_hint(tmp_path: Path, hint: bytes | None) -> None:
    last = grow(tmp_path, 6, interval=4)
    pointer = entry(tmp_path, "_last_checkpoint")
    assert json.loads(pointer.read_bytes())["version"] == 4
    pointer.unlink() if hint is None else pointer.write_bytes(hint)
    found = read(tmp_path)
    assert (found, found.checkpoint_version) == (last, 4)


def test_other_files_in_the_log_are_passed_over(tmp_path: Path) -> None:
    last = grow(tmp_path, 5, interval=4)
    for name in (
        f"{9:020d}.crc",
        f"{1:020d}.{5:020d}.compacted.json",
        f".{6:020d}.json.tmp",
        f"{4:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
        "_commits/x.json",
        "_staged_commits/00000000000000000006.u.json",
    ):
        entry(tmp_path, name).parent.mkdir(exist_ok=True)
        entry(tmp_path, name).write_bytes(b"garbage")
    assert read(tmp_path) == last


def test_a_damaged_checkpoint_of_v2_without_the_commits_is_named(tmp_path: Path) -> None:
    grow(tmp_path, 5)
    entry(tmp_path, f"{4:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet").write_bytes(b"")
    commit_file(tmp_path, 0).unlink()
    with pytest.raises(TableDamagedError, match="80a083e8-7026-4e79-81be-64bd76c43a11"):
        read(tmp_path)


@pytest.mark.parametrize("missing", [0, 2])
def test_a_gap_is_damage_that_names_the_version(tmp_path: Path, missing: int) -> None:
    grow(tmp_path, 4)
    commit_file(tmp_path, missing).unlink()
    with pytest.raises(TableDamagedError, match=f"commit {missing} is missing"):
        read(tmp_path)


class LateListing(LocalStore):
    """A folder that is read while commits are made: the listing shows later ones, but not those in ``hidden``."""

    def __init__(self, root: Path, hidden: set[int]) -> None:
        super().__init__(root)
        self._hidden = {f"_delta_log/{version:020d}.json" for version in hidden}

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        return (stat for stat in super().list(folder, start_after=start_after) if stat.path not in self._hidden)


@pytest.mark.parametrize(
    ("hidden", "interval"), [(hidden, n) for hidden in ({7}, {4}, {5, 6}, {1, 5, 7}) for n in (4, 99)] + [({0}, 99)]
)
def test_a_listing_that_misses_a_commit_made_meanwhile_is_no_gap(
    tmp_path: Path, hidden: set[int], interval: int
) -> None:
    """File systems promise nothing about files that appear while a folder is read."""
    last = grow(tmp_path, 8, interval=interval)
    log = DeltaLog(LateListing(tmp_path, hidden))
    assert log.snapshot() == log.snapshot(timestamp_ms=NOW_MS + 8) == last
    assert [entry.version for entry in log.history()] == list(range(8, -1, -1))
    for version in range(8):
        begin = read(tmp_path, version)
        assert log.snapshot(version=version) == log.snapshot(timestamp_ms=NOW_MS + version) == begin
        assert log.update(begin).files == last.files
        assert [number for number, _ in log.commits(since=version)] == list(range(version + 1, 9))


def test_a_listing_that_misses_the_commit_of_its_last_checkpoint(tmp_path: Path) -> None:
    last = grow(tmp_path, 8, interval=4)
    assert DeltaLog(LateListing(tmp_path, {8})).snapshot() == last


def test_a_gap_after_the_checkpoint_is_damage_too(tmp_path: Path) -> None:
    grow(tmp_path, 6, interval=4)
    commit_file(tmp_path, 5).unlink()
    with pytest.raises(TableDamagedError, match="commit 5 is missing"):
        read(tmp_path)
    assert read(tmp_path, 4).version == 4


def test_truncated_commits_are_damage(tmp_path: Path) -> None:
    grow(tmp_path, 2)
    data = commit_file(tmp_path, 2).read_bytes()
    for cut in (0, len(data) - 10):
        commit_file(tmp_path, 2).write_bytes(data[:cut])
        with pytest.raises(TableDamagedError, match=f"{2:020d}"):
            read(tmp_path)


def test_a_damaged_checkpoint_is_passed_over_where_the_commits_are(tmp_path: Path) -> None:
    last = grow(tmp_path, 9, interval=4)
    whole = checkpoint_file(tmp_path, 8).read_bytes()
    table = pq.read_table(checkpoint_file(tmp_path, 8))
    for damage in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2]):
        checkpoint_file(tmp_path, 8).write_bytes(damage)
        found = read(tmp_path)
        assert (found.checkpoint_version, found.files, found.domains) == (4, last.files, last.domains)
    pq.write_table(table.drop(["protocol"]), checkpoint_file(tmp_path, 8))
    assert read(tmp_path).checkpoint_version == 4
    checkpoint_file(tmp_path, 4).unlink()
    assert read(tmp_path).checkpoint_version is None
    commit_file(tmp_path, 1).unlink()
    with pytest.raises(TableDamagedError, match="no protocol"):
        read(tmp_path)


def test_multi_part_checkpoints(tmp_path: Path) -> None:
    last = grow(tmp_path, 6)
    table = encode_checkpoint(read(tmp_path, 4), now_ms=NOW_MS)
    parts = [entry(tmp_path, f"{4:020d}.checkpoint.{part:010d}.{3:010d}.parquet") for part in (1, 2, 3)]
    size = table.num_rows // 3
    for number, part in enumerate(parts):
        pq.write_table(table.slice(number * size, size if number < 2 else None), part)
    entry(tmp_path, "_last_checkpoint").write_bytes(b'{"version":4,"size":1,"parts":3}')
    found = read(tmp_path)
    assert found.checkpoint_version == 4
    assert (found.files, found.domains, found.txns) == (last.files, last.domains, last.txns)
    parts[1].unlink()
    found = read(tmp_path)
    assert (found.checkpoint_version, found.files) == (None, last.files)


def strip_domains(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.filter(pc.is_null(table["domainMetadata"])).drop(["domainMetadata"]), path)


def test_a_checkpoint_that_lost_the_domains_is_never_trusted(tmp_path: Path) -> None:
    last = grow(tmp_path, 9, interval=4)
    strip_domains(checkpoint_file(tmp_path, 8))
    found = read(tmp_path)
    assert (found.checkpoint_version, found.domains) == (4, last.domains)
    strip_domains(checkpoint_file(tmp_path, 4))
    found = read(tmp_path)
    assert (found.checkpoint_version, found.domains) == (None, last.domains)
    without = DeltaLog(open_store(tmp_path), required_domain=None).snapshot()
    assert set(without.domains) == {"d.9"}
    commit_file(tmp_path, 3).unlink()
    with pytest.raises(TableDamagedError, match="deltalake") as caught:
        read(tmp_path)
    assert "Restore" in caught.value.message
    assert caught.value.domain == "lakemerge.state"


def test_the_next_checkpoint_heals_one_that_lost_the_domains(tmp_path: Path) -> None:
    grow(tmp_path, 4, interval=4)
    strip_domains(checkpoint_file(tmp_path, 4))
    put_checkpoint(tmp_path, 4)
    found = read(tmp_path)
    assert found.checkpoint_version == 4
    assert "d.2" in found.domains


def test_commits(tmp_path: Path) -> None:
    grow(tmp_path, 5)
    log = DeltaLog(open_store(tmp_path))
    assert [version for version, _ in log.commits(since=-1)] == [0, 1, 2, 3, 4, 5]
    assert [version for version, _ in log.commits(since=2, until=4)] == [3, 4]
    assert list(log.commits(since=5)) == []
    ((_, actions),) = log.commits(since=4)
    committed_ms = log.committed_ms(5)
    assert actions[1:] == (add("5-0", tag="é%"), DomainMetadata("d.5", "5"), Txn("app", 5, committed_ms))
    for since, until in ((2, 9), (6, None)):
        with pytest.raises(VersionNotFoundError):
            log.commits(since=since, until=until)
    commit_file(tmp_path, 3).unlink()
    with pytest.raises(TableDamagedError, match="commit 3 is missing"):
        log.commits(since=0)
    with pytest.raises(VersionNotFoundError, match="no longer"):
        log.commits(since=2)


def test_the_cost_is_bounded_by_the_commits_since_the_checkpoint(tmp_path: Path) -> None:
    grow(tmp_path, 47, interval=20)
    store = CountingStore(open_store(tmp_path))
    DeltaLog(store).snapshot()
    counts = store.counts()
    # The hint, the checkpoint of version 40 and the seven commits after it.
    assert dict(counts.calls) == {"get": 1 + 1 + 7, "list": 1}
    assert counts.files_listed <= 1 + 8 + 1


def test_opening_ten_thousand_files_reads_the_checkpoint_alone(tmp_path: Path) -> None:
    """What it does for each file is bounded, too, in calls and not in time, which depends on the machine's load."""
    grow(tmp_path, 0)
    for version in range(1, 1001):
        info = CommitInfo({"inCommitTimestamp": NOW_MS + version})
        adds = [add(f"p={file}/{version}.parquet", **{"lakemerge.slice": f"{file}/16"}) for file in range(10)]
        commit_file(tmp_path, version).write_bytes(encode([info, *adds]))
    relink(tmp_path)
    replayed = read(tmp_path)
    put_checkpoint(tmp_path, 1000)
    store = CountingStore(open_store(tmp_path))
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        found = DeltaLog(store).snapshot()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert found == dataclasses.replace(replayed, checkpoint_version=1000)
    assert len(found.files) == 10_000
    # The hint, the checkpoint, and the commit of its version for the time.
    assert dict(store.counts().calls) == {"get": 3, "list": 1}
    assert calls < 10_000 * 15
