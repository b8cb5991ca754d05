"""The parts of a soak, each until its figures are reached or its time is over."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import TypeVar

from tests.soak.crowd import Crowd
from tests.soak.damage import fuzz
from tests.soak.doors import Doors
from tests.soak.intake import Intake
from tests.soak.storms import weather

__all__ = ["SHARES", "Part", "Tally", "hush"]

HISTORIES, INPUTS = 20, 400
"""So many are one task of a pool: some ten seconds."""
HANGS_S = 900
ROUND_S = 120.0
"""How long a crowd works. Then its records are verified, and another one begins with an empty table."""
SHARES = {"storms": 0.2, "crowd": 0.2, "intake": 0.2, "doors": 0.25, "damage": 0.15}
"""Shares of the time, where it is given."""

_T = TypeVar("_T")


@dataclass
class Tally:
    """What was done so far, and what is wanted."""

    wanted: dict[str, int]
    done: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    told: float = 0.0
    by_door: dict[str, Counter[str]] = field(default_factory=dict)
    """Figures of each door of a table."""

    def add(self, **figures: int) -> None:
        for name, figure in figures.items():
            self.done[name] = self.done.get(name, 0) + figure
        if time.monotonic() - self.told > 10:
            self.tell()

    def lacks(self, *names: str) -> bool:
        return not self.failures and max(self.rest(*names).values()) > 0

    def rest(self, *names: str) -> dict[str, int]:
        """How many are still wanted."""
        return {name: self.wanted[name] - self.done.get(name, 0) for name in names}

    def tell(self) -> None:
        self.told = time.monotonic()
        names = {**dict.fromkeys(self.wanted), **dict.fromkeys(self.done)}
        figures = [f"{name} {self.done.get(name, 0):,}" + self._of(name) for name in names]
        print(f"{self.told - self.began:7.0f} s  {', '.join(figures)}, losses {len(self.failures)}", flush=True)  # noqa: T201

    def tell_doors(self) -> None:
        for door, figures in sorted(self.by_door.items()):
            told = ", ".join(f"{name} {figures[name]:,}" for name in ("records", "kills", "faults"))
            print(f"           {door}: {told}", flush=True)  # noqa: T201

    def _of(self, name: str) -> str:
        return f" of {self.wanted[name]:,}" if name in self.wanted else ""


@dataclass(frozen=True)
class Part:
    """One part with one seed, until its figures are reached or its time is over."""

    tally: Tally
    seed: int
    folder: Path
    jobs: int
    deadline: float
    url: str = ""
    """Where the crowd's table goes, instead of a local folder."""

    def storms(self) -> None:
        for outcome in self._in_pool("faults", "storms", weather, HISTORIES):
            self.tally.add(faults=outcome.faults, commit_faults=outcome.commit_faults, rows_compared=outcome.rows)

    def damage(self) -> None:
        for outcome in self._in_pool("inputs", "damage", fuzz, INPUTS):
            self.tally.add(inputs=outcome)

    def crowd(self) -> None:
        for number in count():
            if not self.tally.lacks("kills", "records") or self._left() <= 0:
                return
            seed = f"{self.seed}.{number}"
            with self._place() as folder:
                try:
                    done = Crowd(folder, seed, url=self.url).run(
                        seconds=min(ROUND_S, self._left()), **self.tally.rest("kills", "records")
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
                    self._note(f"crowd {seed}", error)
                else:
                    self.tally.add(kills=done.kills, records=done.records, rows_compared=done.read)

    def intake(self) -> None:
        for number in count():
            if not self.tally.lacks("ingest_faults") or self._left() <= 0:
                return
            seed = f"{self.seed}.{number}"
            with self._place() as folder:
                try:
                    wanted = self.tally.rest("ingest_faults")["ingest_faults"]
                    done = Intake(folder, seed).run(seconds=min(ROUND_S, self._left()), kills=wanted)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
                    self._note(f"intake {seed}", error)
                else:
                    self.tally.add(
                        ingest_faults=done.kills + done.faults, ingest_records=done.records, rows_compared=done.read
                    )

    def doors(self) -> None:
        """Rounds until all of faults, kills and records through the doors are reached."""
        # Stores in a cloud get no faults.
        names = [name for name in ("door_faults", "door_kills", "door_records") if name in self.tally.wanted]
        for number in count():
            if not self.tally.lacks(*names) or self._left() <= 0:
                return
            seed = f"{self.seed}.{number}"
            with self._place() as folder:
                try:
                    rest = self.tally.rest(*names)
                    doors = Doors(folder, seed, url=self.url, faults=rest.get("door_faults", 0))
                    done = doors.run(
                        seconds=min(ROUND_S, self._left()), kills=rest["door_kills"], records=rest["door_records"]
                    )
                except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
                    self._note(f"doors {seed}", error)
                else:
                    for door, figures in doors.by_door.items():
                        self.tally.by_door.setdefault(door, Counter()).update(figures)
                    self.tally.add(door_faults=done.faults, door_kills=done.kills, door_records=done.records)

    def _in_pool(self, figure: str, name: str, do: Callable[[Path, int, int], _T], amount: int) -> Iterator[_T]:
        """Tasks with seeds of their own, as many at a time as there are processes."""
        tasks = count(self.seed * 1_000_000)
        running: dict[Future[_T], int] = {}
        processes = get_context("spawn")
        cores: SimpleQueue[int] = processes.SimpleQueue()
        for core in islice(cycle(_cores()), self.jobs):
            cores.put(core)
        with self._place() as folder, ProcessPoolExecutor(self.jobs, processes, _settle, (cores,)) as pool:
            while running or (self.tally.lacks(figure) and self._left() > 0):
                while len(running) < self.jobs and self.tally.lacks(figure) and self._left() > 0:
                    task = next(tasks)
                    running[pool.submit(_in_folder, do, folder, task, amount)] = task
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    task = running.pop(future)
                    error = future.exception()
                    if error is None:
                        yield future.result()
                    else:
                        self._note(f"{name}, task {task} of seed {self.seed}", error)

    def _note(self, what: str, error: BaseException) -> None:
        self.tally.failures.append(f"{what}:\n{''.join(traceback.format_exception(error))}")

    @contextmanager
    def _place(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def _left(self) -> float:
        return self.deadline - time.monotonic()


def _in_folder(do: Callable[[Path, int, int], _T], folder: Path, task: int, amount: int) -> _T:
    # A task that hangs says where, and takes its process with it, which fails the pool.
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        done = do(Path(own), task, amount)
    faulthandler.cancel_dump_traceback_later()
    return done


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else [0]


def _settle(cores: SimpleQueue[int]) -> None:
    """Threads of a process that take turns on one core lose less time than where they wake each other on two."""
    hush()
    core = cores.get()
    if sys.platform == "linux":
        os.sched_setaffinity(0, {core})


def hush() -> None:
    """What the product warns of is what was done to it."""
    logging.disable(logging.CRITICAL)
