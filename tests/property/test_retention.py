"""Writers, services, vacuum, savepoints and restores, each overtaken by another at any call to the store.

The plain model is told what landed, in the order of the log; after every step each version that is promised
still reads as it did then, each other one is refused, and every savepoint holds.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from lakemerge import CommitConflictError, InputError, LakeTable, Settings, VersionNotFoundError
from lakemerge.log import DeltaLog
from lakemerge.slices.expiry import expiries_of
from lakemerge.slices.savepoints import savepoints_of
from lakemerge.storage.local import LocalStore
from lakemerge.testing.faults import Call, Fault
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import assert_rows
from tests.model import ModelTable
from tests.unit.faults import create, frame, open_over

EXAMPLES = int(os.environ.get("LAKEMERGE_RETENTION_EXAMPLES", "10"))
NAMES = ["k", "o", "v"]
SCHEMA = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("v", pa.string())])
SMALL = Settings(inline_blocks=1, target_file_bytes=1, merge_budget_bytes=1, row_group_rows=2, threads=1)
"""Commits with block indexes, and several base files a slice."""


@dataclass(frozen=True)
class Work:
    """``choice`` picks a version, counted from the last, or a savepoint, or how many versions vacuum keeps."""

    kind: str
    records: tuple[tuple[int, int, str], ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Step:
    """``work``, and at its ``at``-th call to the store, before or after it, somebody else's ``meanwhile``."""

    work: Work
    meanwhile: Work | None
    at: int
    after: bool


@st.composite
def works(draw: st.DrawFn) -> Work:
    kind = draw(
        st.sampled_from(
            [
                "write",
                "write",
                "write",
                "full",
                "minor",
                "logs",
                "vacuum",
                "save",
                "drop",
                "restore",
                "expire",
                "rescale",
            ]
        )
    )
    one = st.tuples(st.integers(1, 4), st.integers(1, 9), st.sampled_from(["+U", "+U", "-D"]))
    records = tuple(draw(st.lists(one, min_size=1, max_size=3))) if kind == "write" else ()
    return Work(kind, records, draw(st.integers(0, 9)))


steps = st.builds(Step, works(), st.none() | works(), st.integers(1, 30), st.booleans())


class World:
    """The table, the model, and what the numbers of the one are in the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        table = create(path, buckets=2, properties={"delta.checkpointInterval": "3"})
        self.model = ModelTable(SCHEMA, key=("k",), ordering=("o",), mergers=ALL_MERGERS)
        self.numbers = {table.version: 0}
        self.written: dict[str, list[dict[str, object]]] = {}
        self.kinds: dict[str, list[str]] = {}

    def play(self, step: Step, place: int) -> None:
        faults = []
        if step.meanwhile is not None:
            other = step.meanwhile

            def overtake(call: Call) -> None:
                self.attempt(LakeTable.open(self.path), other, f"{place}-meanwhile", overtaken=False)

            faults.append(Fault(action=overtake, at=step.at, after=step.after))
        table, _ = open_over(self.path, *faults, settings=SMALL)
        self.attempt(table, step.work, str(place), overtaken=bool(faults))
        self.follow()

    def attempt(self, table: LakeTable, work: Work, name: str, *, overtaken: bool) -> None:
        tip = LakeTable.open(self.path)
        version = self.version_of(work)
        gone = work.kind in ("save", "restore") and not self.is_promised(version, tip)
        try:
            self.act(table, work, name)
        except CommitConflictError:
            assert overtaken, f"{work} had nobody to conflict with"
        except VersionNotFoundError:
            assert gone or overtaken, f"version {version} was promised"
        except InputError:
            present = work.kind == "restore" and version == tip.version
            assert present or overtaken, f"{work} asks for nothing wrong"
        else:
            assert not gone, f"version {version} was gone"

    def version_of(self, work: Work) -> int:
        versions = sorted(self.numbers, reverse=True)
        return versions[work.choice % len(versions)]

    def is_promised(self, version: int, tip: LakeTable) -> bool:
        saved = {savepoint.version for savepoint in savepoints_of(tip.view.snapshot).values()}
        return version >= tip.view.state.oldest_version or version in saved

    def act(self, table: LakeTable, work: Work, name: str) -> None:
        version = self.version_of(work)
        saved = [savepoint.name for savepoint in table.savepoints()]
        does: dict[str, Callable[[], object]] = {
            "write": lambda: self.write(table, work, name),
            "full": table.compact,
            "minor": lambda: table.compact(minor=True),
            "logs": lambda: table.compact_logs(size_ratio=math.inf),
            "vacuum": lambda: self.vacuum(table, work.choice),
            "save": lambda: table.savepoint(f"s{name}", version=version),
            "drop": lambda: table.drop_savepoint(saved[work.choice % len(saved)]) if saved else None,
            "restore": lambda: table.restore(version=version),
            "rescale": lambda: table.rescale(buckets=2 ** (work.choice % 3)),
            "expire": lambda: table.expire_tombstones(retention=dt.timedelta(0)),
        }
        does[work.kind]()

    def write(self, table: LakeTable, work: Work, name: str) -> None:
        rows = [(k, o, f"{name}.{i}") for i, (k, o, _) in enumerate(work.records)]
        self.kinds[name] = [kind for _, _, kind in work.records]
        self.written[name] = [dict(zip(NAMES, row, strict=True)) for row in rows]
        marked = [(*row, kind) for row, kind in zip(rows, self.kinds[name], strict=True)]
        table.upsert(frame(marked, [*NAMES, "op"]), kind_column="op", info={"step": name})

    def vacuum(self, table: LakeTable, keep: int) -> None:
        for commit in (self.path / "_delta_log").glob("*.json"):
            if int(commit.stem) <= table.version - keep:
                os.utime(commit, (commit.stat().st_mtime - 8 * 86_400,) * 2)
        table.vacuum(dry_run=False)

    def follow(self) -> None:
        """Tell the model what landed."""
        log = DeltaLog(LocalStore(self.path))
        entries = {entry.version: entry for entry in log.history()}
        for version in range(max(self.numbers) + 1, max(entries) + 1):
            entry = entries[version]
            number = self.numbers[version - 1]
            if entry.operation == "UPSERT":
                name = str(entry.info["step"])
                number = self.model.write(NAMES, self.written[name], self.kinds[name])
            elif entry.operation == "RESTORE":
                number = self.model.restore(self.numbers[int(str(entry.parameters["version"]))])
            elif entry.operation == "EXPIRE TOMBSTONES":
                horizon = expiries_of(log.snapshot(version=version))[-1].horizon
                number = self.model.expire(self.numbers[horizon])
            self.numbers[version] = number

    def check(self) -> None:
        tip = LakeTable.open(self.path)
        for version, number in self.numbers.items():
            if self.is_promised(version, tip):
                then = LakeTable.open(self.path, version=version).to_arrow()
                rows = [tuple(row.values()) for row in self.model.rows(number)]
                assert_rows(then, rows, SCHEMA, f"version {version}")
            else:
                with pytest.raises(VersionNotFoundError):
                    LakeTable.open(self.path, version=version)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(steps, min_size=6, max_size=14))
def test_no_promised_version_is_ever_lost(drawn: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "t")
        for place, step in enumerate(drawn):
            world.play(step, place)
            if place % 3 == 2:
                world.check()
        world.check()
