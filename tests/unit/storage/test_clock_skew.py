"""Hosts whose clocks differ by hours write, compact and vacuum one table."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from pathlib import Path

import pytest

from lakemerge import CommitConflictError, LakeTable, OutcomeUnknownError, VersionNotFoundError
from lakemerge.delta import DeltaLog
from lakemerge.storage import LocalStore
from lakemerge.testing.faults import Call, Fault
from tests.unit.faults import create, frame, listing, open_over, rows_of, state_of

HOUR_S = 3600
CLOCKS = (0, 7, -9, 30, -30)
"""How many hours the hosts' clocks are ahead."""
HOUR_OF_LOGS = {"delta.logRetentionDuration": "interval 1 hour", "delta.checkpointInterval": "2"}


@pytest.fixture
def real_ns() -> int:
    """A time that stands still, so that hosts differ by their clocks alone."""
    return 1_900_000_000_000_000_000


@contextmanager
def host(hours: float, real_ns: int, *, waited: float = 0) -> Iterator[None]:
    """A host whose clock is so many hours ahead, after so many more by the clock that nobody sets."""
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr("time.time_ns", lambda: real_ns + int((hours + waited) * HOUR_S) * 1_000_000_000)
        clock.setattr("time.monotonic_ns", lambda: int(waited * HOUR_S) * 1_000_000_000)
        yield


def age(path: Path, *, hours: float) -> None:
    """All that is there is older by the store's clock, which is right."""
    for file in path.rglob("*"):
        os.utime(file, (file.stat().st_mtime - hours * HOUR_S,) * 2)


def test_versions_are_in_order_and_nothing_needed_is_deleted(tmp_path: Path, real_ns: int) -> None:
    path = tmp_path / "t"
    with host(CLOCKS[-1], real_ns):
        table = create(path, properties={"delta.deletedFileRetentionDuration": "interval 2 hours"})
    seen = {}
    for number, hours in zip(range(12), cycle(CLOCKS), strict=False):
        with host(hours, real_ns):
            LakeTable.open(path).upsert(frame([(number, 1, f"at {hours}"), (99, number, "newest")]))
            if number % 3 == 2:
                LakeTable.open(path).compact(minor=number % 2 == 0)
            # Everything is young by the clock of the store.
            before = listing(path).keys()
            LakeTable.open(path).vacuum(dry_run=False)
            assert before <= listing(path).keys()
        seen[table.version] = rows_of(table.to_arrow())
        expected = [(n, 1, f"at {CLOCKS[n % len(CLOCKS)]}") for n in range(number + 1)]
        assert seen[table.version] == sorted([*expected, (99, number, "newest")], key=repr)
    for version, rows in seen.items():
        assert rows_of(LakeTable.open(path, version=version).to_arrow()) == rows
    times = [entry.timestamp_ms for entry in reversed(table.history())]
    assert all(left < right for left, right in pairwise(times))
    for version, time_ms in enumerate(times):
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
        assert LakeTable.open(path, timestamp=moment).version == version
    # By the clock of the store, all but the last version are too old; whoever vacuums.
    age(path, hours=3)
    with host(-30, real_ns):
        assert table.vacuum(dry_run=False).files
    assert state_of(path) == seen[max(seen)]
    with pytest.raises(VersionNotFoundError):
        LakeTable.open(path, version=min(seen))


@pytest.mark.parametrize(
    ("ahead", "behind", "set_by"), [(0, 0, 0), (6, 0, 0), (0, -6, 0), (6, -6, 0), (0, 0, -1.5), (0, 0, -2), (0, 0, -9)]
)
def test_a_commit_that_was_cleaned_up_is_not_made_again(
    ahead: float, behind: float, set_by: float, tmp_path: Path, real_ns: int
) -> None:
    """Others write while a host waits for two hours, and the log is cleaned up. By that host's clock, the version
    it stands at is young, or even to come, since the clock was set back: it must not take the commits that are gone
    for ones that were never made."""
    path = tmp_path / "t"
    log = DeltaLog(LocalStore(path))
    with host(ahead, real_ns):
        create(path, properties=HOUR_OF_LOGS)
        LakeTable.open(path).upsert(frame([(0, 1, "first")]))
    with host(behind, real_ns):
        waiting, begin = LakeTable.open(path), log.snapshot()
    for number in range(1, 8):
        LakeTable.open(path).upsert(frame([(number, 1, "meanwhile")]))
    age(path, hours=2)
    LakeTable.open(path).vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
    second = path / "_delta_log" / f"{begin.version + 1:020d}.json"
    assert not second.exists()
    before = state_of(path)
    with host(behind + set_by, real_ns, waited=2):
        with pytest.raises(CommitConflictError, match="cleaned up"):
            log.commit(begin, lambda tip: pytest.fail("judged by half"), operation="X", parameters={})
        waiting.upsert(frame([(8, 1, "late")]))
        assert rows_of(waiting.to_arrow()) == state_of(path) == [*before, (8, 1, "late")]
    assert not second.exists()


@pytest.mark.parametrize("cleaned", [True, False])
def test_a_host_that_stands_still_before_its_commit_file_says_so(cleaned: bool, tmp_path: Path, real_ns: int) -> None:
    """Between a writer's last look at the log and its put, others commit for hours. Where the log was cleaned up
    meanwhile, the put succeeds, and nobody will ever read what it made."""
    path = tmp_path / "t"
    with host(0, real_ns):
        create(path, properties=HOUR_OF_LOGS)
        LakeTable.open(path).upsert(frame([(0, 1, "first")]))
    with host(0, real_ns), contextlib.ExitStack() as later:

        def stand_still(call: Call) -> None:
            if cleaned:
                for number in range(1, 8):
                    LakeTable.open(path).upsert(frame([(number, 1, "meanwhile")]))
                age(path, hours=2)
                LakeTable.open(path).vacuum(dry_run=False, retention=dt.timedelta(0), enforce_retention=False)
            later.enter_context(host(0, real_ns, waited=2))

        table, _ = open_over(path, Fault(action=stand_still, method="put_if_absent", path="_delta_log"))
        outcome = pytest.raises(OutcomeUnknownError, match="looked at") if cleaned else contextlib.nullcontext()
        with outcome:
            table.upsert(frame([(9, 1, "late")]))
    rows = [(number, 1, "meanwhile") for number in range(1, 8)] if cleaned else [(9, 1, "late")]
    assert state_of(path) == [(0, 1, "first"), *rows]
