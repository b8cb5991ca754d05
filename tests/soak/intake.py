"""Processes that land files, ingest them, compact and vacuum, while a killer picks them off and stores fail by lot.

The table sums ``n``, which is 1 in each record: a record that is there twice has 2, whatever was merged since. A file's
records follow from its name, so they are known also where the file was deleted. A killed lander is followed by one
with names of its own, because a file that lands once more would be another file.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge import LakeMergeError, LakeTable
from lakemerge.ingest import Bins, Files, IngestJob
from lakemerge.ingest.places import Places
from lakemerge.ingest.source import Outcome, Source, SourceFile
from lakemerge.ingest.source_local import LocalSource
from lakemerge.testing.faults import Chance, store_faults
from tests.soak.crowd import SETTINGS, Crowd, Deed, Figures, Task, compact, unless_vacuumed, vacuum
from tests.unit.faults import open_over

__all__ = ["Intake", "records_of", "text_of"]

SHARED = 3
"""Keys that all files have records of."""
RATE = 0.01
"""The share of calls that fail."""
AFTER: tuple[Literal["keep", "archive", "delete"], ...] = ("keep", "archive", "delete")
"""By place of the runner."""


def records_of(name: str, size: int) -> list[dict[str, Any]]:
    """The good records of a file."""
    return [{"id": f"own {name} {line}" if line >= SHARED else f"shared {line}", "n": 1} for line in range(size)]


def text_of(name: str, size: int) -> str:
    """One line of it is none."""
    lines = [json.dumps(record) for record in records_of(name, size)]
    lines.insert(len(name) % size, f"junk of {name}")
    return "".join(f"{line}\n" for line in lines)


def job_of(table: LakeTable, landing: Path, place: int, *, bins: bool) -> IngestJob:
    return table.ingest(
        "feed",
        # Blocks of a few lines, so that files span windows.
        Files(landing, format="json", block_bytes=300),
        bins=Bins(min_bytes=2_000, max_bytes=20_000, max_age="1s") if bins else None,
        blocks_per_window=40,
        bad_records="quarantine",
        max_bad_records=None,
        after=AFTER[place % len(AFTER)],
    )


def landing_of(task: Task) -> Path:
    return task.desk.folder.parent / "landing"


def land(table: LakeTable, task: Task) -> Iterator[object]:
    landing = landing_of(task)
    for number in itertools.count():
        yield None
        name = f"{task.place}-{task.life}-{number}.json"
        half = landing / f".{name}"
        half.write_text(text_of(name, task.size))
        os.rename(half, landing / name)
        task.desk.note("landed", name)
        time.sleep(0.03)


def ingest(table: LakeTable, task: Task) -> Iterator[object]:
    """Run after run; the first of the runners has no faults, and nothing but contention may stop it."""
    logging.disable(logging.CRITICAL)  # what the product warns of is what was done to it
    bins = (task.desk.folder / "bins").exists()
    faults = Counter[str]()
    seed = f"{task.name} {os.getpid()}"
    with _over(StormySource(random.Random(seed), RATE if task.place else 0.0, faults)):
        for number in itertools.count():
            yield None
            opened, store = table, None
            if task.place:
                path = Path(task.path)
                chance = Chance(seed=f"{seed} {number}", rate=RATE, faults=store_faults())
                opened, store = open_over(path, chance, settings=SETTINGS)
            # What a store fails with, or a conflict that does not end in time, is repeated by the next run.
            expected = (LakeMergeError, OSError) if task.place else ()
            with contextlib.suppress(*expected):
                job_of(opened, landing_of(task), task.place, bins=bins).run()
            done = faults.total() + (0 if store is None else store.injected.total())
            faults.clear()
            if done:
                task.desk.note("faults", done)
            time.sleep(0.01)


def read(table: LakeTable, task: Task) -> Iterator[object]:
    """At every version each record of a file's own is there once or not yet."""
    for place in itertools.count():
        yield None
        tip = table.opened.view
        version = random.randint(tip.state.oldest_version, tip.version) if place % 2 else tip.version
        with unless_vacuumed(task.path, version):
            rows = LakeTable.open(task.path, version=version, settings=SETTINGS).to_arrow()
            own = rows.filter(pc.starts_with(rows["id"], "own "))
            twice = own.filter(pc.not_equal(own["n"], 1)).to_pylist()
            assert not twice, f"version {version}: {twice[:3]}"
            shared = sum(rows.filter(pc.starts_with(rows["id"], "shared "))["n"].to_pylist())
            assert bool(shared) == bool(rows.num_rows)
            task.desk.note(f"read-{task.name}", own.num_rows)
        time.sleep(0.1)


class StormySource(Source):
    """Local files. Some calls fail by lot, before or after their effect."""

    def __init__(self, lots: random.Random, rate: float, faults: Counter[str]) -> None:
        self._lots, self._rate, self._faults = lots, rate, faults
        self._source = LocalSource()

    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        self._lot("list")
        yield from self._source.list(folder, recursive=recursive)
        self._lot("list")

    def stat(self, path: str) -> SourceFile | None:
        self._lot("stat")
        return self._source.stat(path)

    def open(self, file: SourceFile) -> AbstractContextManager[pa.NativeFile]:
        return self._opened(file)

    def delete(self, file: SourceFile) -> Outcome:
        self._lot("delete")
        outcome = self._source.delete(file)
        self._lot("delete")
        return outcome

    def move(self, file: SourceFile, target: str) -> Outcome:
        self._lot("move")
        outcome = self._source.move(file, target)
        self._lot("move")
        return outcome

    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        return self._source.archived(folder)

    @contextmanager
    def _opened(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        self._lot("open")
        with self._source.open(file) as data:
            yield data
            self._lot("read")

    def _lot(self, method: str) -> None:
        if self._lots.random() < self._rate:
            self._faults[method] += 1
            raise ConnectionError(f"{method}: connection reset by peer")


def _over(source: Source) -> AbstractContextManager[object]:
    return patch.object(Places, "of", lambda places, path: source)


@dataclass
class Intake(Crowd):
    """A landing folder and a table. ``size`` records a file; by the seed, files are gathered in bins or not."""

    size: int = 12
    kills_per_second: float = 1.5
    people: ClassVar[dict[str, int]] = {"ingest": 3, "land": 2, "compact": 1, "vacuum": 1, "read": 1}
    deeds: ClassVar[dict[str, Deed]] = {
        "ingest": ingest,
        "land": land,
        "compact": compact,
        "vacuum": vacuum,
        "read": read,
    }

    def run(self, *, seconds: float, kills: int, records: int = 100) -> Figures:
        """``kills`` and faults of stores together."""
        return super().run(seconds=seconds, kills=kills, records=records)

    def verify(self) -> None:
        """Once all that landed is ingested, each record of each file is there once."""
        table = LakeTable.open(self._path)
        job = job_of(table, self.folder / "landing", 0, bins=self._bins)
        job.run(drain=True)
        names = {Path(file.path).name: file for file in job.files()}
        told = set(self._desk.lines("landed"))
        assert not told - names.keys(), f"landed, and not in the ledger: {sorted(told - names.keys())[:3]}"
        # A killed lander may have landed one more than it could note.
        more = Counter(name.rsplit("-", 1)[0] for name in names.keys() - told)
        assert not more or max(more.values()) == 1, f"nobody landed {sorted(names.keys() - told)[:3]}"
        open_files = {name: file.state for name, file in names.items() if file.state != "committed"}
        assert not open_files, f"not taken up: {open_files}"
        expected = self._expected(names)
        self._compare(expected, "when all had ended")
        rejects = Counter(job.rejects()["text"].to_pylist())
        assert rejects == Counter(f"junk of {name}" for name in names), "not each bad record is set aside once"
        assert job.run(drain=True).files == 0
        table.compact()
        self._compare(expected, "compacted")
        checked = LakeTable.check(self._path)
        assert checked.ok, str(checked)
        self._vacuum(table)
        self._compare(expected, "vacuumed")
        self.figures.records += len(names) * self.size
        self.figures.faults += self._faults()
        self.figures.read += self._read()

    @property
    def _bins(self) -> bool:
        return (self._desk.folder / "bins").exists()

    def _expected(self, names: Mapping[str, object]) -> list[tuple[object, ...]]:
        totals = Counter(str(record["id"]) for name in names for record in records_of(name, self.size))
        return sorted(totals.items())

    def _create(self) -> None:
        options = {"aggregates": {"n": "sum"}}
        LakeTable.create(
            self._path,
            "id STRING, n BIGINT",
            key=["id"],
            merger="aggregate",
            options=options,
            buckets=4,
            settings=SETTINGS,
        )
        (self.folder / "landing").mkdir()
        if self._random.random() < 0.5:
            (self._desk.folder / "bins").touch()

    def _lacks(self, kills: int, records: int) -> bool:
        return self.figures.kills + self._faults() < kills or len(self._desk.lines("landed")) * self.size < records

    def _faults(self) -> int:
        return sum(map(int, self._desk.lines("faults")))
