"""The peak memory of compactions and reads, in a process of its own: at most ``merge_budget_bytes`` x 8 + 300 MB.

Each table is larger than that as Arrow data, or nearly so: its values do not compress, so nothing hides in files.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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
MOST = BUDGET * 8 + 300_000_000
QUIET = {"lakemerge.maintenance": "off"}
SCHEMA = "k BIGINT, o BIGINT, v STRING"

WORK = """
import sys
from lakemerge import LakeTable, Settings

table = LakeTable.open(sys.argv[1], settings=Settings(threads=1, merge_budget_bytes=int(sys.argv[2])))
for batch in table.scan():
    pass
table.compact(minor=True)
table.compact()
rows = sum(batch.num_rows for batch in table.scan())
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(rows, int(peak) * 1024)
"""


def peak_of(path: Path, budget: int) -> tuple[int, int]:
    """Rows and peak bytes of a process that reads, compacts and reads again."""
    command = [sys.executable, "-c", WORK, str(path), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=True, cwd=ROOT)
    rows, peak = done.stdout.split()
    return int(rows), int(peak)


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


TABLES: dict[str, Callable[[random.Random], Iterator[pa.Table]]] = {
    "hot keys": hot_keys,
    "many commits": many_commits,
}


def written(path: Path, kind: str) -> tuple[int, int]:
    """How many keys the table has, and how many bytes were written as Arrow data."""
    keys, size = set[int](), 0
    for number, frame in enumerate(TABLES[kind](random.Random(7))):
        if not number:
            create(path, schema=SCHEMA, properties=QUIET, settings=Settings(threads=1))
        LakeTable.open(path).upsert(frame)
        keys |= set(frame["k"].to_pylist())
        size += frame.nbytes
    return len(keys), size


@pytest.mark.parametrize("kind", TABLES)
def test_the_peak_is_bounded_by_the_budget(tmp_path: Path, kind: str) -> None:
    keys, size = written(tmp_path / "t", kind)
    assert size > 230_000_000
    rows, peak = peak_of(tmp_path / "t", BUDGET)
    assert rows == keys
    assert peak <= MOST, f"{peak / 1e6:.0f} MB, and {MOST / 1e6:.0f} MB are allowed"
    print(f"{kind}: {size / 1e6:.0f} MB written, peak {peak / 1e6:.0f} MB of {MOST / 1e6:.0f}")  # noqa: T201


def test_a_budget_that_holds_all_is_seen_in_the_peak(tmp_path: Path) -> None:
    """The measure can fail: so it does where the budget bounds nothing."""
    written(tmp_path / "t", "hot keys")
    _, peak = peak_of(tmp_path / "t", 8 << 30)
    assert peak > MOST, f"{peak / 1e6:.0f} MB"
