"""Followers of a table to which anything happens: what one has applied is the table at its version, always.

The world writes, compacts, rescales, saves, restores, vacuums and expires, with somebody else's work in between. One
follower keeps up; one is slow, and is killed between any two batches. Their consumers hold back vacuum.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given

from lakemerge import LakeTable
from tests.property.effort import examples, thorough
from tests.property.world import SMALL, Step, World, steps

Row = tuple[object, ...]


class Follower:
    """A copy of the table, made of changes alone."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rows: dict[object, Row] = {}
        self.version = -1
        """The version of the last batch; that version may not be complete."""
        self.pulled = 0
        table = LakeTable.open(world.path, settings=SMALL)
        table.consumers.register(name, present_rows=True)
        world.follow()
        self.batches: Iterator[pa.RecordBatch] = iter(())
        self.restart()

    def restart(self) -> None:
        """As a new process does after the last one was killed."""
        table = LakeTable.open(self.world.path, settings=SMALL)
        self.batches = table.follow(self.name, poll=None)

    def pull(self, limit: int | None) -> None:
        """Take so many batches, or all that there are."""
        taken = 0
        while limit is None or taken < limit:
            batch = next(self.batches, None)
            if batch is None:
                self.check(LakeTable.open(self.world.path).version)
                self.restart()
                return
            taken += 1
            self.apply(batch)

    def apply(self, batch: pa.RecordBatch) -> None:
        (version,) = set(batch.column("_commit_version").to_pylist())
        if version != self.version:
            self.check(version - 1)
        self.version = version
        for k, o, v, kind in zip(
            *(batch.column(name).to_pylist() for name in ("k", "o", "v", "_row_kind")), strict=True
        ):
            match kind:
                case "+I" | "+U":
                    self.rows[k] = (k, o, v)
                case "-D":
                    self.rows.pop(k, None)
        self.pulled += batch.num_rows

    def check(self, version: int) -> None:
        """That the copy is the table at a version, once it has begun."""
        if self.version < 0 and version < max(self.world.numbers):
            return
        expected = [tuple(row.values()) for row in self.world.model.rows(self.world.numbers[version])]
        assert sorted(self.rows.values(), key=repr) == sorted(expected, key=repr), f"at version {version}"


@thorough(examples(40))
@given(
    st.lists(st.tuples(steps, st.integers(0, 3), st.booleans()), min_size=1, max_size=12),
)
def test_a_follower_has_the_table(drawn: list[tuple[Step, int, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "t")
        fast, slow = Follower(world, "fast"), Follower(world, "slow")
        for place, (step, batches, is_killed) in enumerate(drawn, start=1):
            world.play(step, place)
            fast.pull(None)
            if is_killed:
                slow.restart()
            slow.pull(batches)
        slow.restart()
        slow.pull(None)
        assert slow.rows == fast.rows
