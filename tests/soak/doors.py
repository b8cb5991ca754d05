"""Processes that write one table through every door, while a killer picks them off and their stores fail by lot.

A writer's batch has a number, which is committed with it (``txn``, or the number of a micro-batch), so a writer that
comes in the place of a killed one goes on after the last number that the table has. What a door's batches leave is
told by a model in plain Python. In the end each number is in the log once, and the rows are those of the model.

Statements of SQL are no door here. A killed writer would have to start a Spark application each time, which takes some
ten seconds: a thousand kills would take hours in which hardly a record lands. Two Spark applications that write at
once are in ``tests/spark/applications/test_two_applications.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from lakemerge import CommitConflictError, InputError, LakeMergeError, LakeTable
from lakemerge.datasource.stream_batches import RowSum, stream_app
from lakemerge.datasource.stream_sink import StreamWriter, _Message
from lakemerge.delta import Txn
from lakemerge.ingest import Files
from lakemerge.merge_source import MergeConfig, MergeSource
from lakemerge.spark.writer import pack_rows
from lakemerge.testing.faults import Chance, store_faults
from tests.soak.crowd import SETTINGS, Crowd, Deed, Task, compact, vacuum
from tests.unit.faults import open_over

__all__ = ["DOORS", "Doors", "rows_after"]

RATES = (0.01, 0.2)
"""The share of calls that fail in a turn, by lot. Under the first most turns land. Under the other most turns fail at
one of their first calls, which costs little time."""
Rows = Mapping[str, str]
"""Key to value."""

DOORS = ("upsert", "delete", "update", "merge", "stream", "ingest", "source")
"""Doors for records. ``publish`` and ``copy`` work beside them."""


def key(door: str, place: int, number: int, line: int) -> str:
    return f"{door} {place}.{number} {line}"


def batch(door: str, place: int, number: int, size: int) -> Rows:
    return {key(door, place, number, line): f"{number}" for line in range(size)}


def rows_after(door: str, place: int, count: int, size: int) -> Rows:
    """What the first ``count`` batches of a writer leave."""
    rows: dict[str, str] = {}
    for number in range(count):
        before = batch(door, place, number - 1, size)
        match door:
            case "delete" if number % 2:
                for line in range(size // 2):
                    del rows[key(door, place, number - 1, line)]
            case "update" if number % 2:
                rows |= dict.fromkeys(before, "updated")
            case "merge":
                rows |= dict.fromkeys(before, "merged") if number else {}
                rows |= batch(door, place, number, size)
            case _:
                rows |= batch(door, place, number, size)
    return rows


def frame(rows: Rows) -> pa.Table:
    return pa.table({"k": pa.array(rows.keys(), pa.string()), "v": pa.array(rows.values(), pa.string())})


def app(task: Task) -> str:
    return stream_app(f"q{task.place}") if task.kind == "stream" else f"{task.kind} {task.place}"


def done(table: LakeTable, name: str) -> int:
    """How many batches of a writer the table has."""
    txn = table.opened.view.snapshot.txns.get(name)
    return 0 if txn is None else txn.version + 1


# What writers do with a batch


def _upsert(table: LakeTable, task: Task, number: int) -> None:
    table.upsert(frame(batch(task.kind, task.place, number, task.size)), txn=(app(task), number))


def _delete(table: LakeTable, task: Task, number: int) -> None:
    if number % 2 == 0:
        _upsert(table, task, number)
        return
    gone = [key(task.kind, task.place, number - 1, line) for line in range(task.size // 2)]
    table.delete(pa.table({"k": gone}), txn=(app(task), number))


def _update(table: LakeTable, task: Task, number: int) -> None:
    if number % 2 == 0:
        _upsert(table, task, number)
        return
    name = key(task.kind, task.place, number - 1, 0).rpartition(" ")[0]
    table.update_where(f"k LIKE '{name} %'", {"v": "'updated'"}, txn=(app(task), number))


def _merge(table: LakeTable, task: Task, number: int) -> None:
    before = dict.fromkeys(batch(task.kind, task.place, number - 1, task.size), "merged") if number else {}
    source = frame({**before, **batch(task.kind, task.place, number, task.size)})
    merge = table.merge(source, "target.k = source.k", txn=(app(task), number))
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


_SCHEMA = StructType.fromJson(
    {"type": "struct", "fields": [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in ("k", "v")]}
)


def _stream(table: LakeTable, task: Task, number: int) -> None:
    """A micro-batch as Spark's driver plans and commits it; the task's part is done here, too."""
    writer = StreamWriter(table.opened, _SCHEMA, {})
    told, rows = RowSum(), frame(batch(task.kind, task.place, number, task.size))
    place, packed = pack_rows(told.passing(iter(rows.to_batches())), writer._plan.pack)
    writer.commit([_Message(place, packed, writer._plan, f"q{task.place}", (told.rows, told.total))], number)


def write(do: Callable[[LakeTable, Task, int], None], table: LakeTable, task: Task) -> Iterator[object]:
    """Batch after batch. What a store fails with is repeated under the same number."""
    logging.disable(logging.CRITICAL)  # what the product warns of is what was done to it
    for turn in itertools.count():
        yield None
        with _faulty(task, turn) as opened:
            do(opened, task, done(table, app(task)))
            task.desk.note(f"landed-{task.kind}", task.size)


@contextlib.contextmanager
def _faulty(task: Task, turn: object) -> Iterator[LakeTable]:
    """The table over a store that fails, if it is a local one."""
    if "://" in task.path:
        with contextlib.suppress(CommitConflictError):
            yield LakeTable.open(task.path, settings=SETTINGS)
        return
    seed = f"{task.name} {os.getpid()} {turn}"
    chance = Chance(seed=seed, rate=random.Random(seed).choice(RATES), faults=store_faults())
    with contextlib.suppress(LakeMergeError, OSError):
        table, store = open_over(Path(task.path), chance, settings=SETTINGS)
        try:
            yield table
        finally:
            if store.injected.total():
                task.desk.note(f"faults-{task.kind}", store.injected.total())


def ingest(table: LakeTable, task: Task) -> Iterator[object]:
    """A file a batch. It has its name only once it is whole, so a killed process lands it again or not at all."""
    logging.disable(logging.CRITICAL)
    landing = _landing(task.desk.folder, task.place)
    landing.mkdir(exist_ok=True)
    for turn in itertools.count(len([*landing.glob("*.json")])):
        yield None
        half = landing / ".half"
        rows = batch(task.kind, task.place, turn, task.size)
        half.write_text("".join(json.dumps({"k": name, "v": value}) + "\n" for name, value in rows.items()))
        half.rename(landing / f"{turn:06d}.json")
        # The next file waits until this one is in the table: the more files wait, the more calls of a run can fail.
        for attempt in itertools.count():
            yield None
            with _faulty(task, f"{turn}.{attempt}") as opened:
                _job(opened, landing, task.place).run()
                task.desk.note("landed-ingest", task.size)
                break


def _landing(desk: Path, place: int) -> Path:
    return desk / f"landing-{place}"


def _job(table: LakeTable, landing: Path, place: int) -> Any:
    return table.ingest(f"feed{place}", Files(landing, format="json"), blocks_per_window=3)


def publish(table: LakeTable, task: Task) -> Iterator[object]:
    while True:
        yield None
        with contextlib.suppress(CommitConflictError):
            table.compact(minor=True)
            task.desk.note("landed-publish", 1)
        time.sleep(0.1)


def copy(table: LakeTable, task: Task) -> Iterator[object]:
    """A backup, over the one before. A vacuum may take what is being copied."""
    while True:
        yield None
        # Whoever was killed in the middle of a copy is followed by one who goes on with it.
        with contextlib.suppress(LakeMergeError, OSError):
            table.copy_to(_copy(task.desk.folder))
            task.desk.note("landed-copy", 1)
        time.sleep(0.2)


def _copy(desk: Path) -> str:
    return str(desk.parent / "copy")


def source(table: LakeTable, task: Task) -> Iterator[object]:
    """Rows of two tables, which a merge source makes one entity each."""
    logging.disable(logging.CRITICAL)
    place = f"{task.path}-source"
    left, right = (LakeTable.open(f"{place}-{name}", settings=SETTINGS) for name in "ab")
    for _ in itertools.count():
        yield None
        number = done(right, app(task))
        numbers = range(number * task.size, (number + 1) * task.size)
        with contextlib.suppress(CommitConflictError):
            for name, one in (("a", left), ("b", right)):
                rows = {"_id": [f"{name}{n}" for n in numbers], "x": pa.array(numbers, pa.int64())}
                one.upsert(pa.table(rows), txn=(app(task), number))
            MergeSource.open(place, settings=SETTINGS).run()
            task.desk.note("landed-source", 2 * task.size)


_WRITERS: dict[str, Callable[[LakeTable, Task, int], None]] = {
    "upsert": _upsert,
    "delete": _delete,
    "update": _update,
    "merge": _merge,
    "stream": _stream,
}


@dataclass
class Doors(Crowd):
    """A table that publishes, with writers at each door."""

    size: int = 100
    faults: int = 0
    """A round lasts until so many calls of the store have failed, too."""
    kills_per_second: float = 3.0
    people: ClassVar[dict[str, int]] = {
        **dict.fromkeys((*DOORS, "publish", "copy", "vacuum"), 1),
        "upsert": 2,
        "stream": 2,
        "compact": 1,
    }
    deeds: ClassVar[dict[str, Deed]] = {
        **{name: partial(write, do) for name, do in _WRITERS.items()},
        "ingest": ingest,
        "source": source,
        "publish": publish,
        "copy": copy,
        "compact": compact,
        "vacuum": vacuum,
    }
    by_door: dict[str, Counter[str]] = field(default_factory=dict)
    """Figures of each door: records that were found in the end, kills and faults."""

    def verify(self) -> None:
        table = LakeTable.open(self._path)
        for place in range(self.people["ingest"]):
            self._ingested(table, place)
        self._numbers_come_once(table)
        expected: dict[str, str] = {}
        for door in ("upsert", "delete", "update", "merge", "stream", "ingest"):
            for place in range(self.people[door]):
                count = self._count(table, door, place)
                expected |= rows_after(door, place, count, self.size)
                self._found(door, count * self.size)
        rows = sorted(expected.items())
        self._compare(rows, "when all had ended")  # type: ignore[arg-type]
        table.compact(minor=True)
        self._is_published(rows, table)
        table.compact()
        self._compare(rows, "compacted")  # type: ignore[arg-type]
        checked = LakeTable.check(self._path)
        assert checked.ok, str(checked)
        table.copy_to(_copy(self._desk.folder))
        copied = LakeTable.open(_copy(self._desk.folder))
        assert sorted(zip(*copied.to_arrow().to_pydict().values(), strict=True)) == rows, "the copy has other rows"
        assert LakeTable.check(_copy(self._desk.folder)).ok
        for name in ("publish", "copy"):
            self._found(name, 1 + sum(map(int, self._desk.lines(f"landed-{name}"))))
        self._merged()
        for door in self.people:
            faults = self._failed(door)
            self.by_door.setdefault(door, Counter())["faults"] += faults
            self.figures.faults += faults

    def _found(self, door: str, records: int) -> None:
        self.by_door.setdefault(door, Counter())["records"] += records
        if door in DOORS:
            self.figures.records += records

    def _ingested(self, table: LakeTable, place: int) -> None:
        landing = _landing(self._desk.folder, place)
        if not landing.exists():
            return
        job = _job(table, landing, place)
        job.run(drain=True)
        states = Counter(file.state for file in job.files())
        assert states == Counter({"committed": len([*landing.glob("*.json")])}), f"of job {place}: {states}"

    def _count(self, table: LakeTable, door: str, place: int) -> int:
        if door == "ingest":
            return len([*_landing(self._desk.folder, place).glob("*.json")])
        name = stream_app(f"q{place}") if door == "stream" else f"{door} {place}"
        return done(table, name)

    def _numbers_come_once(self, table: LakeTable) -> None:
        """Each number of a writer is in one commit, in order."""
        own = re.compile(rf"({'|'.join(DOORS)}) \d+|{re.escape(stream_app('q'))}\d+")
        seen: dict[str, list[int]] = {}
        for _, actions in table.opened.handle.log.commits(since=0, until=table.version):
            for action in actions:
                if isinstance(action, Txn) and own.fullmatch(action.app_id):
                    seen.setdefault(action.app_id, []).append(action.version)
        for name, numbers in seen.items():
            assert numbers == list(range(len(numbers))), f"{name} has the numbers {numbers[:20]}"

    def _is_published(self, rows: list[tuple[str, str]], table: LakeTable) -> None:
        """What other engines see is the table as it is."""
        seen = table.to_arrow(mode="base").to_pydict().values()
        assert sorted(zip(*seen, strict=True)) == rows, "what is published is not what is there"

    def _merged(self) -> None:
        """The entities are the pairs of rows with one value."""
        place = f"{self._path}-source"
        source = MergeSource.open(place, settings=SETTINGS)
        with contextlib.suppress(InputError):
            source.run()
        count = done(LakeTable.open(f"{place}-b"), "source 0") * self.size
        left = LakeTable.open(f"{place}-a").to_arrow().num_rows
        assert left in (count, count + self.size), f"{left} rows of one table, {count} of the other"
        found = sorted(tuple(entity["$ids"]) for entity in source.entities() if not entity.get("_deleted"))
        pairs = [(f"a{n}", f"b{n}") if n < count else (f"a{n}",) for n in range(left)]
        assert found == sorted(pairs), f"{len(found)} entities, not {len(pairs)}"
        self._found("source", left + count)

    def _create(self) -> None:
        properties = {"lakemerge.publish": "deletionVectors", "lakemerge.maxPendingCommits": "40"}
        LakeTable.create(
            self._path, "k STRING, v STRING", key=["k"], buckets=4, settings=SETTINGS, properties=properties
        )
        place = f"{self._path}-source"
        for name in "ab":
            LakeTable.create(f"{place}-{name}", "_id STRING, x BIGINT", key=["_id"], buckets=1, settings=SETTINGS)
        config = MergeConfig(
            datasets={name: f"{place}-{name}" for name in "ab"}, equality=["a.x = b.x"], max_retired=1.0
        )
        MergeSource.create(place, config, settings=SETTINGS)

    def _killed(self, kind: str) -> None:
        self.by_door.setdefault(kind, Counter())["kills"] += 1

    def _lacks(self, kills: int, records: int) -> bool:
        idle = [door for door in DOORS if not self._desk.lines(f"landed-{door}")]
        few = sum(map(self._failed, self.people)) < self.faults
        return bool(idle) or few or self.figures.kills < kills or self._landed() < records

    def _failed(self, door: str) -> int:
        return sum(map(int, self._desk.lines(f"faults-{door}")))

    def _landed(self) -> int:
        return sum(int(line) for door in DOORS for line in self._desk.lines(f"landed-{door}"))
