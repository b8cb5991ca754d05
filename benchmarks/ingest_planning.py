"""Discovery and planning of an ingest, in a process of its own, whose memory is measured: prints one line of JSON.

python -m benchmarks.ingest_planning FOLDER --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from lakemerge.ingest import Files
from lakemerge.ingest.discovery import Settling, found_by
from lakemerge.ingest.formats.choose import chosen_format
from lakemerge.ingest.job import listing_of
from lakemerge.ingest.windows import Gathering, Window, Windows
from lakemerge.storage import LocalStore

__all__ = ["bare_listing", "main", "plan"]


def bare_listing(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of every file, in the order of their paths: what a listing cannot do without."""
    children = []
    with os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            children.append((f"{entry.name}/" if is_folder else entry.name, entry))
    for name, entry in sorted(children, key=lambda child: child[0]):
        if name.endswith("/"):
            yield from bare_listing(entry.path)
        else:
            found = entry.stat()
            yield entry.path, found.st_size, found.st_mtime_ns


def plan(files: Files) -> tuple[int, int, int]:
    """Files, blocks and windows of a first run over what is there."""
    gathering = Gathering(files, chosen_format("json", {}, columns=("k",)), 200, 1 << 34)
    seen: set[int] = set()
    blocks = windows = 0
    with listing_of(files) as listing:
        found = found_by(
            listing,
            iter(()),
            settling=Settling(0),
            overwrites="ingest",
            exists=lambda path: False,
            keeps_done=False,
            now_ms=0,
        )
        for window in Windows(gathering).of(found):
            if not isinstance(window, Window):
                raise AssertionError(window.reason)
            windows += 1
            blocks += sum(member.piece.blocks for member in window.members)
            seen.update(hash(member.candidate.path) for member in window.members)
        found.close()
    return len(seen), blocks, windows


def peak_bytes() -> int:
    """The peak of resident memory so far. Linux's ``ru_maxrss`` begins with what the parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    files = Files(given.folder, format="json")
    bare, store, discovered = [], [], []
    for _ in range(given.rounds + 1):  # the first one warms up
        started = time.perf_counter()
        listed = sum(1 for _ in bare_listing(str(given.folder)))
        bare.append(time.perf_counter() - started)
        started = time.perf_counter()
        sum(1 for _ in LocalStore(given.folder).list(""))
        store.append(time.perf_counter() - started)
        started = time.perf_counter()
        with listing_of(files) as listing:
            discovered.append(time.perf_counter() - started)
            if listing.rows != listed:
                raise AssertionError(f"{listing.rows} files were discovered, {listed} are there")
    before = peak_bytes()
    started = time.perf_counter()
    seen, blocks, windows = plan(files)
    told = {
        "bare": bare[1:],
        "store": store[1:],
        "discovered": discovered[1:],
        "planned": time.perf_counter() - started,
        "files": seen,
        "blocks": blocks,
        "windows": windows,
        "before": before,
        "peak": peak_bytes(),
    }
    print(json.dumps(told))  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
