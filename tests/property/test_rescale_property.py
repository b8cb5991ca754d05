"""Random histories with rescales, finished or killed half-way, against the plain-Python model.

Buckets have several base files and stand at different bucket counts side by side; writers that began under one
count land under another. Every version is read again at the end, by us and by deltalake.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakemerge import CommitConflictError, LakeTable, OutcomeUnknownError, Settings
from lakemerge.testing.faults import Call, Fail, Fault
from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.values import arrow_schema, assert_rows, rows_of
from tests.model import ModelTable
from tests.property.effort import some
from tests.unit.faults import open_over

DDL = "k BIGINT, p STRING, o BIGINT, n INT"
SCHEMA = arrow_schema(DDL)
KEYS = [(k, p) for k in range(12) for p in ("a", "b")]
TINY = Settings(merge_budget_bytes=1, row_group_rows=2, target_file_bytes=1, target_task_bytes=1, threads=1)
"""Several base files a bucket, and a commit for each group of buckets."""
STEPS = 16


class Story:
    """A table and its model, step by step."""

    def __init__(self, path: Path, seed: int, merger: str, *, partitioned: bool) -> None:
        self.rng = random.Random(f"{merger}/{partitioned}/{seed}")
        self.path = path
        key, ordering = ["k", "p"], ["o"]
        self.table = LakeTable.create(
            path,
            DDL,
            key=key,
            ordering=ordering,
            merger=merger,
            buckets=self.rng.choice([2, 4, 8]),
            partition_by=["p"] if partitioned else [],
            settings=self.rng.choice([TINY, Settings(target_task_bytes=1, threads=1)]),
        )
        self.settings = self.table.opened.handle.settings
        self.model = ModelTable(SCHEMA, key=key, ordering=ordering, merger=merger, options={}, mergers=ALL_MERGERS)
        self.seen: dict[int, list[tuple[Any, ...]]] = {}
        self.done: list[str] = []

    def write(self) -> None:
        self._write(self.table)

    def write_across_a_rescale(self) -> None:
        """The rescale lands, or dies, while the writer has its file open."""
        self._write(self._over(lambda call: self.rescale(), method="open_output", path="_lakemerge/log/"))

    def begin(self) -> None:
        """Loaded, then split in part: the first commit sets the count, the second reserves ordinals."""
        self._record([{"k": k, "p": p, "o": self.rng.randrange(6), "n": 0} for k, p in KEYS], "+U", self.table)
        self.check()
        self._rescale(16, at=self.rng.choice([3, 4]))
        assert LakeTable.open(self.path).opened.view.layout.counts, "buckets of a smaller bucket count are left"

    def rescale(self) -> None:
        """To any count; many die at one of their commits."""
        self._rescale(self.rng.choice([1, 2, 4, 8, 16]), at=self.rng.choice([1, 2, 3, 4, 5, 6, 99, 99]))

    def compact(self) -> None:
        """Now and then with room for large files, so that small neighbours are joined."""
        settings = self.rng.choice([self.settings, Settings()])
        LakeTable.open(self.path, settings=settings).compact(minor=self.rng.random() < 0.5)

    def compact_across_a_rescale(self) -> None:
        """The compaction that loses leaves the table as it was."""
        loser = self._over(lambda call: self.rescale(), method="open_output", path="base/")
        with contextlib.suppress(CommitConflictError):
            loser.compact()

    def compact_logs(self) -> None:
        self.table.compact_logs(size_ratio=self.rng.choice([1, 10**9]))

    def check(self) -> None:
        expected = [tuple(row.values()) for row in self.model.rows()]
        about = f"version {self.table.version} after {self.done}"
        self.seen[self.table.version] = expected
        assert_rows(self.table.to_arrow(), expected, SCHEMA, about)
        asked = self.rng.sample(KEYS, self.rng.choice([1, 5, 20]))
        wanted = [row for row in expected if row[:2] in asked]
        assert_rows(self.table.get([{"k": k, "p": p} for k, p in asked]), wanted, SCHEMA, f"{about}: {asked}")
        k = self.rng.randrange(12)
        condition = f"k = {k} and p in ('a', 'b')"
        found = self.table.to_arrow(filter=condition)
        assert_rows(found, [row for row in expected if row[0] == k], SCHEMA, f"{about}: {condition}")

    def check_versions(self) -> None:
        for version, expected in self.seen.items():
            then = LakeTable.open(self.path, version=version)
            assert_rows(then.to_arrow(), expected, SCHEMA, f"version {version}")
        for version in range(self.table.version + 1):
            self._check_delta_reader(version)
        self._check_changes()

    def _check_delta_reader(self, version: int) -> None:
        """It shows each key once at every version; where there are no logs to merge, the very rows."""
        view = LakeTable.open(self.path, version=version).opened.view
        rows = rows_of(DeltaTable(self.path, version=version).to_pyarrow_table().select(SCHEMA.names))
        assert len({row[:2] for row in rows}) == len(rows)
        if all(file_slice.is_clean for file_slice in view.file_slices):
            merged = rows_of(LakeTable.open(self.path, version=version).to_arrow())
            assert sorted(rows, key=repr) == sorted(merged, key=repr)

    def _check_changes(self) -> None:
        """The feed, replayed, is the table: rescales and compactions are no changes."""
        state: dict[Any, tuple[Any, ...]] = {}
        for row in self.table.changes(0).read_all().to_pylist():
            values = tuple(row[name] for name in SCHEMA.names)
            if row["_row_kind"] in ("+I", "+U"):
                state[values[:2]] = values
            else:
                assert state.pop(values[:2]) == values
        assert sorted(state.values(), key=repr) == sorted(self.seen[self.table.version], key=repr)

    def _rescale(self, count: int, *, at: int) -> None:
        dying = self._over(Fail(ConnectionError("killed")), method="put_if_absent", at=at, lasting=True)
        try:
            dying.rescale(buckets=count)
        except OutcomeUnknownError:
            self.done.append("killed")

    def _write(self, table: LakeTable) -> None:
        keys = [self.rng.choice(KEYS) for _ in range(self.rng.randint(1, 10))]
        rows = [{"k": k, "p": p, "o": self.rng.randrange(6), "n": self.rng.randrange(9)} for k, p in keys]
        self._record(rows, "-D" if self.rng.random() < 0.3 else "+U", table)

    def _record(self, rows: Sequence[dict[str, Any]], kind: str, table: LakeTable) -> None:
        names = SCHEMA.names[:3] if kind == "-D" else SCHEMA.names
        given = [{name: row[name] for name in names} for row in rows]
        self.model.write(names, given, [kind] * len(rows))
        frame = pa.Table.from_pylist(given, schema=pa.schema([SCHEMA.field(name) for name in names]))
        if kind == "-D":
            table.delete(frame)
        else:
            table.upsert(frame)

    def _over(self, action: Callable[[Call], object], **when: Any) -> LakeTable:
        return open_over(self.path, Fault(action=action, **when), settings=self.settings)[0]


WEIGHTED: Sequence[tuple[str, int]] = (
    ("write", 8),
    ("write_across_a_rescale", 2),
    ("rescale", 5),
    ("compact", 3),
    ("compact_across_a_rescale", 2),
    ("compact_logs", 2),
)


STORIES: Sequence[tuple[str, bool, int]] = [
    (merger, partitioned, seed)
    for seed in range(2)
    for merger, partitioned in (
        ("event-time", True),
        ("partial-update", False),
        ("event-time", False),
        ("partial-update", True),
    )
]


@pytest.mark.long
@pytest.mark.parametrize(("merger", "partitioned", "seed"), some(STORIES))
def test_no_rescale_changes_an_answer(merger: str, partitioned: bool, seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, seed, merger, partitioned=partitioned)
    if merger == "partial-update":
        story.table.alter(options={"remove_record_on_delete": True})
        story.model.change_merger(merger, {"remove_record_on_delete": True})
    story.begin()
    story.check()
    names, weights = zip(*WEIGHTED, strict=True)
    for _ in range(STEPS):
        step = story.rng.choices(names, weights)[0]
        story.done.append(step)
        getattr(story, step)()
        story.check()
    story.table.rescale(buckets=4)
    story.table.compact()
    story.check()
    assert {base.buckets for base in story.table.opened.view.base_files} == {4}
    story.check_versions()
