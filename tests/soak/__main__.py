"""``make soak``: the same promises as in the tests, many thousand times.

Five parts: histories over a store that fails at any call (``storms``), processes that are killed at any moment
(``crowd``), files that are ingested while both happens (``intake``), every door of a table (``doors``), and damaged
files (``damage``). Prints its figures, those of the doors one by one. Ends with status 1
at the first record that is lost or outcome that nobody expects, and names the seed that shows it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.soak.parts import SHARES, Part, Tally, hush

MEMORY = Path("/dev/shm")  # noqa: S108 - folders of random names are made in it
"""A folder in memory is a local store like any other, and does not wait for a disk."""
ROOM_BYTES = 2 << 30


def soak(tally: Tally, seeds: Sequence[int], *, minutes: float | None, folder: Path, jobs: int, url: str) -> None:
    for seed in seeds:
        for name, share in ({"crowd": 0.5, "doors": 0.5} if url else SHARES).items():
            seconds = float("inf") if minutes is None else minutes * 60 * share / len(seeds)
            part = Part(tally, seed, folder, jobs, time.monotonic() + seconds, url)
            parts = {
                "storms": part.storms,
                "crowd": part.crowd,
                "intake": part.intake,
                "doors": part.doors,
                "damage": part.damage,
            }
            parts[name]()


def _scratch() -> Path:
    has_room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM_BYTES
    return MEMORY if has_room else Path(tempfile.gettempdir())


def _seed(text: str) -> int:
    return secrets.randbelow(2**31) if text == "fresh" else int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=(__doc__ or "").split("\n", 2)[2])
    parser.add_argument("--faults", type=int, default=100_000, help="errors of the store to inject (%(default)s)")
    parser.add_argument("--kills", type=int, default=1_000, help="processes to kill (%(default)s)")
    parser.add_argument("--records", type=int, default=1_000_000, help="acknowledged records to find (%(default)s)")
    parser.add_argument("--inputs", type=int, default=100_000, help="files to damage (%(default)s)")
    parser.add_argument("--ingest-faults", type=int, default=10_000, help="kills and faults of ingest (%(default)s)")
    parser.add_argument("--door-faults", type=int, default=1_000, help="faults of stores at all doors (%(default)s)")
    parser.add_argument("--door-kills", type=int, default=100, help="processes at all doors to kill (%(default)s)")
    parser.add_argument("--door-records", type=int, default=20_000, help="records through all doors (%(default)s)")
    parser.add_argument("--minutes", type=float, help="end after so long, whatever was reached")
    parser.add_argument("--seed", type=_seed, action="append", help="a number or 'fresh', which it is by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--path", type=Path, default=_scratch(), help="for tables (%(default)s)")
    parser.add_argument(
        "--url",
        default="",
        help="the crowd and the doors alone, with their tables below this URL; options are variables of the store",
    )
    given = parser.parse_args(arguments)
    seeds = given.seed or [_seed("fresh")]
    of_doors = ("door_faults", "door_kills", "door_records")
    figures: tuple[str, ...] = ("faults", "kills", "records", "inputs", "ingest_faults", *of_doors)
    if given.url:
        figures = ("kills", "records", *of_doors[1:])
    wanted = {name: getattr(given, name) for name in figures}
    tally = Tally(wanted)
    print(f"seeds: {' '.join(map(str, seeds))}", flush=True)  # noqa: T201
    hush()
    try:
        soak(tally, seeds, minutes=given.minutes, folder=given.path, jobs=given.jobs, url=given.url)
    finally:
        logging.disable(logging.NOTSET)
    tally.tell()
    tally.tell_doors()
    for failure in tally.failures:
        print(failure, file=sys.stderr)  # noqa: T201
    if tally.failures:
        repeat = " ".join(f"--seed {seed}" for seed in seeds)
        print(f"\n{len(tally.failures)} failures; once more: make soak ARGS='{repeat}'", file=sys.stderr)  # noqa: T201
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
