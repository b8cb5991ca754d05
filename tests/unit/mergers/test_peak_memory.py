"""The peak memory of compactions and reads, in a process of its own: at most ``merge_budget_bytes`` x 8 + 300 MB.

Each table is larger than that as Arrow data, or nearly so: its values do not compress, so nothing hides in files.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakemerge import LakeTable, Settings
from tests.unit.faults import create

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from Linux's /proc"),
]

ROOT = Path(__file__).resolve().parents[3]
BUDGET = 4 << 20
QUIET = {"lakemerge.maintenance": "off"}
WIDE = {"300 columns": 300, "400 columns": 400}

WORK = """
import sys
from lakemerge import LakeTable, Settings

table = LakeTable.open(sys.argv[1], settings=Settings(threads=1, merge_budget_bytes=int(sys.argv[2])))
if sys.argv[3] == "reads and compactions":
    for batch in table.scan():
        pass
    table.compact(minor=True)
    table.compact()
else:
    table.compact_logs(size_ratio=float("inf"))
rows = sum(batch.num_rows for batch in table.scan())
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(rows, int(peak) * 1024)
"""


def peak_of(path: Path, budget: int, work: str = "reads and compactions") -> tuple[int, int]:
    """Rows and peak bytes of a process that reads, compacts and reads again, or compacts the logs and reads."""
    command = [sys.executable, "-c", WORK, str(path), str(budget), work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True, cwd=ROOT)
    rows, peak = done.stdout.split()
    return int(rows), int(peak)


def most_of(budget: int) -> int:
    """What the guarantee allows."""
    return budget * 8 + 300_000_000


def text(lots: random.Random, size: int) -> str:
    return lots.randbytes(size // 2).hex()


def hot_keys(lots: random.Random) -> Iterator[pa.Table]:
    """60 keys, which each of 40 commits updates, with long values: 300 MB."""
    for at in range(40):
        values = [text(lots, 128_000) for _ in range(60)]
        yield pa.table({"k": range(60), "o": [at] * 60, "v": values})


def many_commits(lots: random.Random) -> Iterator[pa.Table]:
    """100 commits of other keys: 240 MB. A step of the merge looks at each of them, so their rows are few and long."""
    for at in range(100):
        values = [text(lots, 200_000) for _ in range(12)]
        yield pa.table({"k": [lots.randrange(10**6) for _ in range(12)], "o": [at] * 12, "v": values})


def rows_of_columns(columns: int, lots: random.Random) -> Iterator[pa.Table]:
    """20 commits of so many columns of numbers: 240 MB. A row group for each step of a merge would make a footer that
    is larger than that."""
    numbers, count = np.random.default_rng(lots.randrange(2**32)), 1_500_000 // columns
    for at in range(20):
        keys = numbers.choice(10**6, count, replace=False)
        values = {f"c{column}": numbers.integers(0, 2**62, count) for column in range(columns)}
        yield pa.table({"k": keys, "o": np.full(count, at), **values})


TABLES: dict[str, Callable[[random.Random], Iterator[pa.Table]]] = {
    "hot keys": hot_keys,
    "many commits": many_commits,
    **{name: partial(rows_of_columns, columns) for name, columns in WIDE.items()},
}


def written(path: Path, kind: str) -> tuple[int, int]:
    """How many keys the table has, and how many bytes were written as Arrow data."""
    keys, size = set[int](), 0
    for number, frame in enumerate(TABLES[kind](random.Random(7))):
        if not number:
            columns = [f"c{column} BIGINT" for column in range(WIDE.get(kind, 0))] or ["v STRING"]
            schema = ", ".join(["k BIGINT", "o BIGINT", *columns])
            create(path, schema=schema, properties=QUIET, settings=Settings(threads=1))
        LakeTable.open(path).upsert(frame)
        keys |= set(frame["k"].to_pylist())
        size += frame.nbytes
    return len(keys), size


CASES = [
    # Footers and open files have some KiB for each column, whatever the budget is.
    ("300 columns", "reads and compactions", 2 * BUDGET),
    ("hot keys", "reads and compactions", BUDGET),
    ("hot keys", "a log compaction", BUDGET),
    ("many commits", "reads and compactions", BUDGET),
    ("many commits", "a log compaction", BUDGET),
    # The promise ends at 300 columns (docs/guarantees.md): the budget counts values, not the footers and open files,
    # which grow with the columns. To count them, a merge would have to know them before it opens the files. The case
    # stays, and must fail: once it passes, the promise can be raised.
    pytest.param(
        *("400 columns", "reads and compactions", 2 * BUDGET),
        marks=pytest.mark.xfail(
            strict=True, reason="not met: 377 to 415 MB of 367; footers and open files are outside of the budget"
        ),
    ),
]


@pytest.mark.parametrize(("kind", "work", "budget"), CASES)
def test_the_peak_is_bounded_by_the_budget(tmp_path: Path, kind: str, work: str, budget: int) -> None:
    keys, size = written(tmp_path / "t", kind)
    assert size > 230_000_000
    rows, peak = peak_of(tmp_path / "t", budget, work)
    assert rows == keys
    most = most_of(budget)
    assert peak <= most, f"{peak / 1e6:.0f} MB, and {most / 1e6:.0f} MB are allowed"
    print(f"{kind}, {work}: {size / 1e6:.0f} MB written, peak {peak / 1e6:.0f} MB of {most / 1e6:.0f}")  # noqa: T201


def test_a_budget_that_holds_all_is_seen_in_the_peak(tmp_path: Path) -> None:
    """The measure can fail: so it does where the budget bounds nothing."""
    written(tmp_path / "t", "hot keys")
    _, peak = peak_of(tmp_path / "t", 8 << 30)
    assert peak > most_of(BUDGET), f"{peak / 1e6:.0f} MB"
