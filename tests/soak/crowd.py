"""Processes that write, compact, vacuum and read one table while a killer picks them off, one after the other.

Each process has its own files on a desk, a folder beside the table: a process that was killed holds no lock and no
pipe that others wait for. What a writer was told has landed is a line of its file, written after the answer; who
comes in the place of a killed writer repeats the batch after the last line with the same ``txn``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import ClassVar

import pyarrow.compute as pc

from lakemerge import CommitConflictError, LakeTable, Settings, TableDamagedError, VersionNotFoundError
from lakemerge.delta import CommitInfo
from lakemerge.layout.references import snapshot_references
from tests.property.batches import DDL, batch_of, fold

__all__ = [
    "NOW",
    "RETENTION",
    "SETTINGS",
    "Crowd",
    "Deed",
    "Desk",
    "Figures",
    "Task",
    "compact",
    "unless_vacuumed",
    "vacuum",
]

PEOPLE = {"write": 8, "compact": 2, "vacuum": 1, "read": 2}
SETTINGS = Settings(threads=1, row_group_rows=100, inline_blocks=3, target_file_bytes=100_000)
RETENTION = dt.timedelta(seconds=1)
"""What is not in a version that young goes, so vacuum meets writes and reads that are under way."""
NOW = dt.timedelta(0)
START_S, END_S = 120.0, 300.0

_PROCESSES = multiprocessing.get_context("forkserver")
"""A killed process is soon replaced: the server has imported everything, and no thread runs in it."""
_PROCESSES.set_forkserver_preload([__name__, "tests.soak.intake", "tests.soak.doors"])


@dataclass(frozen=True)
class Desk:
    """Files of processes that may be killed at any moment. Lines are appended whole, by one call each."""

    folder: Path

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    def note(self, name: str, line: object = "") -> None:
        file = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def acknowledged(self) -> dict[int, int]:
        """By writer, how many of its batches it was told have landed: the first so many."""
        return {writer: len(self.lines(f"acknowledged-{writer}")) for writer in range(PEOPLE["write"])}

    def errors(self) -> list[str]:
        return [file.read_text() for file in sorted(self.folder.glob("error-*"))]


Deed = Callable[[LakeTable, "Task"], Iterator[object]]
"""What somebody does, again and again; it yields where the process may end."""


@dataclass(frozen=True)
class Task:
    """What a process is given. ``life`` tells those that came one after the other in one place."""

    deed: Deed
    path: str
    desk: Desk
    kind: str
    place: int
    life: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.place}-{self.life}"


def work(task: Task) -> None:
    try:
        table = LakeTable.open(task.path, settings=SETTINGS)
        task.desk.note(f"at-work-{task.name}")
        for _ in task.deed(table, task):
            if task.desk.stop.exists():
                return
    except Exception:
        (task.desk.folder / f"error-{task.name}").write_text(f"{task.name}:\n{traceback.format_exc()}")
        raise


def write(table: LakeTable, task: Task) -> Iterator[object]:
    first = task.desk.acknowledged()[task.place]
    for number in itertools.count(first):
        yield None
        name = f"{task.place}.{number}"
        frame = batch_of(task.place, number, size=task.size)
        landed = False
        while not landed:
            with contextlib.suppress(CommitConflictError):  # a fence was faster
                table.upsert(frame, txn=(f"writer {task.place}", number), info={"batch": name})
                landed = True
        task.desk.note(f"acknowledged-{task.place}", name)


def compact(table: LakeTable, task: Task) -> Iterator[object]:
    """The one merges, the other also packs logs and changes the number of buckets."""
    merges: list[Callable[[], object]] = [
        lambda: table.compact(minor=True),
        lambda: table.compact(minor=True),
        table.compact,
    ]
    reshapes: list[Callable[[], object]] = [
        table.compact_logs,
        table.compact,
        table.compact_logs,
        lambda: table.rescale(buckets=random.choice([2, 4, 8])),
    ]
    for deed in itertools.cycle(reshapes if task.place else merges):
        yield None
        with contextlib.suppress(CommitConflictError):  # also where a vacuum took what it was reading
            deed()


def vacuum(table: LakeTable, task: Task) -> Iterator[object]:
    while True:
        yield None
        table.vacuum(dry_run=False, retention=RETENTION, enforce_retention=False)
        time.sleep(0.2)


def read(table: LakeTable, task: Task) -> Iterator[object]:
    """A version holds the batches that its log names, whole and once, and all that were acknowledged before."""
    batches: dict[str, int] = {}
    last = -1
    for place in itertools.count():
        yield None
        acknowledged = task.desk.acknowledged()
        tip = table.opened.view
        for version, actions in table.opened.handle.log.commits(since=last, until=tip.version):
            infos = [action.fields for action in actions if isinstance(action, CommitInfo)]
            batches.update({str(info["batch"]): version for info in infos if "batch" in info})
            last = version
        missing = [f"{w}.{n}" for w, count in acknowledged.items() for n in range(count) if f"{w}.{n}" not in batches]
        assert not missing, f"acknowledged, and not in the log of version {tip.version}: {missing}"
        version = tip.version if place % 2 else random.randint(tip.state.oldest_version, tip.version)
        with unless_vacuumed(task.path, version):
            rows = LakeTable.open(task.path, version=version, settings=SETTINGS).to_arrow(columns=["k", "batch"])
            own = rows.filter(pc.starts_with(rows["k"], "own "))
            counts = own.group_by("batch").aggregate([("k", "count_distinct"), ("k", "count")]).to_pylist()
            found = {row["batch"]: (row["k_count"], row["k_count_distinct"]) for row in counts}
            expected = {name: (task.size, task.size) for name, landed in batches.items() if landed <= version}
            assert found == expected, f"version {version}: {sorted(found.items() ^ expected.items())}"
            task.desk.note(f"read-{task.name}", own.num_rows)


@contextlib.contextmanager
def unless_vacuumed(path: str, version: int) -> Iterator[None]:
    """Files of versions below the fence may be gone while one works with them; nothing else may be missing."""
    try:
        yield
    except (FileNotFoundError, TableDamagedError, VersionNotFoundError):
        if LakeTable.open(path).opened.view.state.oldest_version <= version:
            raise


_DEEDS: dict[str, Deed] = {
    "write": write,
    "compact": compact,
    "vacuum": vacuum,
    "read": read,
}


@dataclass
class Figures:
    kills: int = 0
    records: int = 0
    """Acknowledged, and found once in the end."""
    read: int = 0
    """Rows that readers verified along the way."""
    faults: int = 0
    """Faults of stores that the processes that were not killed tell of."""


_IN_VAIN = 20
"""After so many kills before the first acknowledged record the killer takes twice the time."""


@dataclass
class Crowd:
    """A table, everybody at work on it, and the killer. ``size`` rows a batch; ``kills_per_second`` on average."""

    folder: Path
    seed: object
    size: int = 250
    kills_per_second: float = 6.0
    figures: Figures = field(default_factory=Figures)
    url: str = ""
    """Where the table goes, in another store than the desk; by default it is beside the desk."""
    people: ClassVar[dict[str, int]] = PEOPLE
    deeds: ClassVar[dict[str, Deed]] = _DEEDS

    def __post_init__(self) -> None:
        self._path = f"{self.url.rstrip('/')}/{self.folder.name}" if self.url else str(self.folder / "table")
        self._desk = Desk(self.folder / "desk")
        self._desk.folder.mkdir()
        self._random = random.Random(f"crowd {self.seed}")
        self._tasks: dict[tuple[str, int], tuple[Task, ForkServerProcess]] = {}
        self._create()

    def run(self, *, seconds: float, kills: int, records: int) -> Figures:
        """Work for so long, or until so many were killed and so many records acknowledged; then check every record.
        Raises :class:`AssertionError`."""
        try:
            for kind, count in self.people.items():
                for place in range(count):
                    self._start(kind, place, life=0)
            end, rate = time.monotonic() + seconds, self.kills_per_second
            self._kill_one()
            while time.monotonic() < end and self._lacks(kills, records):
                time.sleep(self._random.expovariate(rate))
                self._kill_one()
                self._check_living()
                if not self.figures.kills % _IN_VAIN and not self._acknowledged():
                    rate /= 2  # the store is slow: nobody lives long enough to write
            self._desk.stop.touch()
            for task, process in self._tasks.values():
                process.join(END_S)
                assert process.exitcode == 0, f"{task.name} ended with {process.exitcode}\n" + self._told()
        finally:
            for _, process in self._tasks.values():
                process.kill()
        assert not self._desk.errors(), self._told()
        self.verify()
        return self.figures

    def verify(self) -> None:
        """Each acknowledged batch is there once, an unacknowledged one whole or not at all, nothing else."""
        table = LakeTable.open(self._path)
        landed: dict[str, list[int]] = defaultdict(list)
        for entry in table.history():
            if "batch" in entry.info:
                landed[str(entry.info["batch"])].append(entry.version)
        twice = {name: versions for name, versions in landed.items() if len(versions) > 1}
        assert not twice, f"committed more than once: {twice}"
        acknowledged = self._desk.acknowledged()
        for writer, count in acknowledged.items():
            numbers = sorted(int(name.split(".")[1]) for name in landed if name.startswith(f"{writer}."))
            # A writer that was killed may have landed one more than it could note.
            assert numbers in (list(range(count)), list(range(count + 1))), f"writer {writer}: {count}, {numbers}"
        expected = fold(sorted(landed, key=lambda name: landed[name]), size=self.size)
        self._compare(expected, "when all had ended")
        table.compact()
        self._compare(expected, "compacted")
        checked = LakeTable.check(self._path)
        assert checked.ok, str(checked)
        self._vacuum(table)
        self._compare(expected, "vacuumed")
        self.figures.records += self._acknowledged()
        self.figures.read += self._read()

    def _create(self) -> None:
        LakeTable.create(self._path, DDL, key=["k"], ordering=["o"], buckets=4, settings=SETTINGS)

    def _start(self, kind: str, place: int, *, life: int) -> None:
        task = Task(self.deeds[kind], self._path, self._desk, kind, place, life, self.size)
        process = _PROCESSES.Process(target=work, args=(task,), daemon=True, name=task.name)
        process.start()
        self._tasks[kind, place] = (task, process)

    def _kill_one(self) -> None:
        """Somebody who is at work; soon, the first time, everybody is."""
        deadline = time.monotonic() + START_S
        at_work: list[Task] = []
        while not at_work:
            self._check_living()
            assert time.monotonic() < deadline, f"nobody has begun to work within {START_S} s"
            names = {file.name for file in self._desk.folder.glob("at-work-*")}
            at_work = [task for task, _ in self._tasks.values() if f"at-work-{task.name}" in names]
            time.sleep(0 if at_work else 0.05)
        task = self._random.choice(at_work)
        _, process = self._tasks[task.kind, task.place]
        process.kill()
        process.join(END_S)
        assert process.exitcode == -signal.SIGKILL, f"{task.name} ended with {process.exitcode}\n" + self._told()
        process.close()
        self.figures.kills += 1
        self._killed(task.kind)
        self._start(task.kind, task.place, life=task.life + 1)

    def _killed(self, kind: str) -> None:
        """Somebody of a kind was killed."""

    def _lacks(self, kills: int, records: int) -> bool:
        return self.figures.kills < kills or self._acknowledged() < records

    def _check_living(self) -> None:
        gone = [task.name for task, process in self._tasks.values() if process.exitcode is not None]
        assert not gone, f"{gone} ended by themselves\n" + self._told()

    def _acknowledged(self) -> int:
        return sum(self._desk.acknowledged().values()) * self.size

    def _read(self) -> int:
        return sum(int(line) for file in self._desk.folder.glob("read-*") for line in self._desk.lines(file.name))

    def _told(self) -> str:
        return "\n".join(self._desk.errors())

    def _compare(self, expected: list[tuple[object, ...]], when: str) -> None:
        columns = LakeTable.open(self._path).to_arrow().to_pydict().values()
        found = sorted(zip(*columns, strict=True))
        if found != expected:
            lost, more = set(expected) - set(found), set(found) - set(expected)
            raise AssertionError(
                f"{when}: {len(lost)} rows lost, such as {sorted(lost)[:3]}; {len(more)} rows that nobody wrote, such "
                f"as {sorted(more)[:3]}; {len(found)} in all, not {len(expected)}"
            )

    def _vacuum(self, table: LakeTable) -> None:
        """Without any retention, one version after the last write, nothing stays but what the table needs."""
        table.upsert(table.to_arrow().slice(0, 0))
        table.vacuum(dry_run=False, retention=NOW, enforce_retention=False)
        view = LakeTable.open(self._path).opened.view
        store = table.opened.handle.store
        files = {file.path for folder in ("base", "_lakemerge") for file in store.list(folder)}
        spare = sorted(path for path in files - snapshot_references(view.snapshot, store) if "/." not in path)
        assert not spare, f"vacuum left: {spare}"
