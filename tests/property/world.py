"""A table among writers, services, vacuum, savepoints and restores, each overtaken by another at any call to the
store, over a store that may fail, and the plain-Python model of it.

The model is told what landed, in the order of the log. What was acknowledged is in the log, what raised anything
but :class:`OutcomeUnknownError` is not; each version that is promised reads as it did then, each other one is refused.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import pyarrow as pa
import pytest

from lakemerge import (
    CommitConflictError,
    InputError,
    LakeMergeError,
    LakeTable,
    OutcomeUnknownError,
    Settings,
    VersionNotFoundError,
)
from lakemerge.delta import DeltaLog, HistoryEntry
from lakemerge.format.expiries import expiries_of
from lakemerge.format.savepoint import savepoints_of
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version
from lakemerge.storage.local import LocalStore
from lakemerge.testing.faults import Call, Chance, Fault, store_faults
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import assert_rows
from tests.model import ModelTable
from tests.unit.faults import create, frame, open_over

__all__ = ["Step", "Weather", "Work", "World", "play", "steps", "stormy_steps"]

NAMES = ["k", "o", "v"]
SCHEMA = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("v", pa.string())])
SMALL = Settings(inline_blocks=1, target_file_bytes=1, merge_budget_bytes=1, row_group_rows=2, threads=1)
"""Commits with block indexes, and several base files a bucket."""

HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class Work:
    """``choice`` picks a version, counted from the last, or a savepoint, or how many versions vacuum keeps."""

    kind: str
    records: tuple[tuple[int, int, str], ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Weather:
    """A store that fails at each call of ``method`` (``None``: of any) with the probability ``rate``, a host whose
    clock is wrong, and a user who tries so many times."""

    seed: int
    method: str | None
    rate: float
    skew_hours: int
    tries: int


@dataclass(frozen=True)
class Step:
    """``work``, and at its ``at``-th call to the store, before or after it, somebody else's ``meanwhile``."""

    work: Work
    meanwhile: Work | None
    at: int
    after: bool
    weather: Weather | None = None


@st.composite
def works(draw: st.DrawFn) -> Work:
    kind = draw(
        st.sampled_from(
            [
                "write",
                "write",
                "write",
                "overwrite",
                "full",
                "minor",
                "logs",
                "vacuum",
                "save",
                "drop",
                "restore",
                "expire",
                "rescale",
                "read",
            ]
        )
    )
    one = st.tuples(st.integers(1, 4), st.integers(1, 9), st.sampled_from(["+U", "+U", "-D"]))
    records = tuple(draw(st.lists(one, min_size=1, max_size=3))) if kind in ("write", "overwrite") else ()
    return Work(kind, records, draw(st.integers(0, 9)))


steps = st.builds(Step, works(), st.none() | works(), st.integers(1, 30), st.booleans())


def _weathers(methods: Sequence[str | None], rates: Sequence[float]) -> st.SearchStrategy[Weather]:
    return st.builds(
        Weather,
        seed=st.integers(0, 2**32),
        method=st.sampled_from(methods),
        rate=st.sampled_from(rates),
        skew_hours=st.integers(-12, 12),
        tries=st.integers(1, 30),
    )


_anywhere = _weathers([None, None, None, "get", "list", "delete", "publish", "read"], [0.3, 0.1, 0.1, 0.03, 0.01])
_at_commits = _weathers(["put_if_absent"], [0.9, 0.6, 0.3])
"""A work makes few commits, and most of what a store can do wrong matters there."""
_weather = st.none() | _anywhere | _anywhere | _anywhere | _at_commits
stormy_steps = st.builds(Step, works(), st.none() | works(), st.integers(1, 60), st.booleans(), _weather)


def play(path: Path, drawn: Sequence[Step], *, check_every: int = 3) -> World:
    """The story, with the promises checked after every so many steps; the world as it is then."""
    world = World(path)
    for place, step in enumerate(drawn, start=1):
        world.play(step, place)
        if place % check_every == 0 or place == len(drawn):
            world.check()
    return world


class World:
    """The table, the model, and what the numbers of the one are in the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        table = create(path, buckets=2, properties={"delta.checkpointInterval": "3"})
        self.model = ModelTable(SCHEMA, key=("k",), ordering=("o",), mergers=ALL_MERGERS)
        self.numbers = {table.version: 0}
        self.written: dict[str, list[dict[str, object]]] = {}
        self.kinds: dict[str, list[str]] = {}
        self.latest_ms = table.history()[0].timestamp_ms
        self.unsure: set[str] = set()
        """Steps that had an unknown outcome at some try."""
        self.faults: Counter[str] = Counter()
        """What the store failed at so far: how often, by method."""
        self.verified = 0
        """Rows that were read and compared with the model's."""

    def play(self, step: Step, place: int) -> None:
        faults: list[Fault | Chance] = []
        overtakes: Counter[str] = Counter()
        if step.meanwhile is not None:
            other = step.meanwhile

            def overtake(call: Call) -> None:
                overtakes[call.method] += 1
                clean = LakeTable.open(self.path)
                self.attempt(clean, other, f"{place}-meanwhile", overtaken=False, troubled=False)

            faults.append(Fault(action=overtake, at=step.at, after=step.after))
        weather = step.weather
        if weather is not None:
            faults.append(Chance(seed=weather.seed, rate=weather.rate, faults=_faults_at(weather.method)))
        table, store = open_over(self.path, *faults, settings=SMALL)
        overtaken, troubled = step.meanwhile is not None, weather is not None
        with _skewed(0 if weather is None else weather.skew_hours):
            for _ in range(1 if weather is None else weather.tries):
                if self.attempt(table, step.work, str(place), overtaken=overtaken, troubled=troubled):
                    break
        self.faults += store.injected - overtakes
        self.follow()

    def attempt(self, table: LakeTable, work: Work, name: str, *, overtaken: bool, troubled: bool) -> bool:
        """Do the work and hold what its outcome promises; whether it came to an end. ``troubled``: the store may
        fail."""
        version = self.version_of(work)
        asks = work.kind in ("save", "restore", "read")
        tip = LakeTable.open(self.path) if asks else None
        gone = tip is not None and not self.is_promised(version, tip)
        done = False
        try:
            self.act(table, work, name)
        except OutcomeUnknownError:
            assert troubled, f"the outcome of {work} is unknown, although the store never failed"
            self.unsure.add(name)
        except CommitConflictError:
            assert overtaken or troubled, f"{work} had nobody to conflict with"
        except VersionNotFoundError:
            assert gone or overtaken or troubled, f"version {version} was promised"
        except InputError:
            present = work.kind == "restore" and tip is not None and version == tip.version
            assert present or overtaken or troubled, f"{work} asks for nothing wrong"
        except (LakeMergeError, OSError):
            # A read may be overtaken by a vacuum that takes its version.
            late = work.kind == "read" and not self.is_promised(version, LakeTable.open(self.path))
            if not troubled and not late:
                raise
        else:
            # A listing that lags may tell a reader of a savepoint that is dropped; its files are there a while.
            assert not gone or (work.kind == "read" and troubled), f"version {version} was gone"
            done = True
        if work.kind in ("write", "overwrite"):
            names = [entry.info.get("step") for entry in self.news()]
            right = {1} if done else {0, 1} if name in self.unsure else {0}
            assert names.count(name) in right, f"{name} is {names.count(name)} times in the log, not {right} times"
        return done

    def version_of(self, work: Work) -> int:
        versions = sorted(self.numbers, reverse=True)
        return versions[work.choice % len(versions)]

    def is_promised(self, version: int, tip: LakeTable) -> bool:
        saved = {savepoint.version for savepoint in savepoints_of(tip.opened.view.snapshot).values()}
        return version >= tip.opened.view.state.oldest_version or version in saved

    def act(self, table: LakeTable, work: Work, name: str) -> None:
        version = self.version_of(work)
        does: dict[str, Callable[[], object]] = {
            "write": lambda: self.write(table, work, name),
            "overwrite": lambda: self.overwrite(table, work, name),
            "full": table.compact,
            "minor": lambda: table.compact(minor=True),
            "logs": lambda: table.compact_logs(size_ratio=math.inf),
            "vacuum": lambda: self.vacuum(table, work.choice),
            "save": lambda: table.savepoint(f"s{name}", version=version),
            "drop": lambda: self.drop(table, work.choice),
            "restore": lambda: table.restore(version=version),
            "rescale": lambda: table.rescale(buckets=2 ** (work.choice % 3)),
            "expire": lambda: table.expire_tombstones(retention=dt.timedelta(0)),
            "read": lambda: self.read(table.opened.handle, version),
        }
        does[work.kind]()

    def write(self, table: LakeTable, work: Work, name: str) -> None:
        rows = [(k, o, f"{name}.{i}") for i, (k, o, _) in enumerate(work.records)]
        self.kinds[name] = [kind for _, _, kind in work.records]
        self.written[name] = [dict(zip(NAMES, row, strict=True)) for row in rows]
        marked = [(*row, kind) for row, kind in zip(rows, self.kinds[name], strict=True)]
        table.upsert(frame(marked, [*NAMES, "op"]), kind_column="op", info={"step": name}, txn=(name, 0))

    def overwrite(self, table: LakeTable, work: Work, name: str) -> None:
        rows = {k: (k, o, f"{name}.{i}") for i, (k, o, _) in enumerate(work.records)}
        self.written[name] = [dict(zip(NAMES, row, strict=True)) for row in rows.values()]
        table.overwrite(frame(list(rows.values())), info={"step": name}, txn=(name, 0))

    def drop(self, table: LakeTable, choice: int) -> None:
        saved = table.savepoints()
        if saved:
            table.drop_savepoint(saved[choice % len(saved)].name)

    def vacuum(self, table: LakeTable, keep: int) -> None:
        oldest = min(table.version - keep, max(self.numbers))
        for commit in (self.path / "_delta_log").glob("*.json"):
            if int(commit.stem) <= oldest:
                os.utime(commit, (commit.stat().st_mtime - 8 * 86_400,) * 2)
        table.vacuum(dry_run=False)

    def read(self, handle: Handle, version: int) -> None:
        """One version, as the model has it."""
        found = find_version(handle.log, version=version, timestamp=None, savepoint=None)
        then = LakeTable(handle, found, pinned=True, spark=None).to_arrow()
        rows = [tuple(row.values()) for row in self.model.rows(self.numbers[version])]
        assert_rows(then, rows, SCHEMA, f"version {version}")
        self.verified += len(rows)

    def news(self) -> list[HistoryEntry]:
        """The commits that the model does not know yet, oldest first."""
        told = max(self.numbers)
        commits = sorted(int(commit.stem) for commit in (self.path / "_delta_log").glob("*.json"))
        assert commits == [*range(commits[0], commits[-1] + 1)], f"the log has a gap: {commits}"
        assert commits[0] <= told + 1, f"commits after {told} are gone before they are old"
        return DeltaLog(LocalStore(self.path)).history(limit=commits[-1] - told)[::-1]

    def follow(self) -> None:
        """Tell the model what landed."""
        for entry in self.news():
            version = entry.version
            assert entry.timestamp_ms > self.latest_ms, f"version {version} is not after the one before it"
            self.latest_ms = entry.timestamp_ms
            number = self.numbers[version - 1]
            if entry.operation == "UPSERT":
                name = str(entry.info["step"])
                number = self.model.write(NAMES, self.written[name], self.kinds[name])
            elif entry.operation == "OVERWRITE":
                number = self.model.overwrite(NAMES, self.written[str(entry.info["step"])])
            elif entry.operation == "RESTORE":
                number = self.model.restore(self.numbers[int(str(entry.parameters["version"]))])
            elif entry.operation == "EXPIRE TOMBSTONES":
                horizon = expiries_of(DeltaLog(LocalStore(self.path)).snapshot(version=version))[-1].horizon
                number = self.model.expire(self.numbers[horizon])
            self.numbers[version] = number

    def check(self) -> None:
        tip = LakeTable.open(self.path)
        for version in self.numbers:
            if self.is_promised(version, tip):
                self.read(tip.opened.handle, version)
            else:
                with pytest.raises(VersionNotFoundError):
                    LakeTable.open(self.path, version=version)


def _faults_at(method: str | None) -> tuple[Fault, ...]:
    if method is None:
        return store_faults()
    return tuple(replace(fault, method=method) for fault in store_faults() if fault.method in (None, method))


def _skewed(hours: int) -> contextlib.AbstractContextManager[object]:
    """This host's clock is wrong by so much; the store's, which gives files their times, is not."""
    real = time.time_ns

    def skewed() -> int:
        return real() + hours * HOUR_NS

    return mock.patch("time.time_ns", skewed)
