"""The product computes in no thread of Arrow.

Such a thread lets go of what it was given after the call has returned, and needs Python's lock for it. A process that
ends meanwhile is aborted. That is rare. Whether such a thread ever began is certain.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BEGIN = """
import os, sys, threading, time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from lakemerge import LakeTable
from lakemerge.ingest import Files
from lakemerge.ingest.single_file import SingleFile
from tests.property.damage import make_whole


def threads():
    # A thread of Python's that ends is gone for Python before it is for Linux. Those of Arrow stay.
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir("/proc/self/task")) - threading.active_count())
        time.sleep(0.05)
    return min(counts)


root = Path(sys.argv[1])
# Two threads of Arrow fetch bytes and compute nothing: one for Parquet files, one for CSV. They begin before the count.
pa.set_io_thread_count(1)
pq.write_table(pa.table({"a": [1]}), root / "begin")
with pa.OSFile(str(root / "begin")) as file:
    pq.ParquetFile(file, pre_buffer=True).read(use_threads=False)
csv.read_csv(pa.BufferReader(b"a\\n1\\n"), read_options=csv.ReadOptions(use_threads=False))
before = threads()
"""
PACKAGES = ("compaction", "lakemerge", "mergers")
IN_THREADS = ("IpcReadOptions", "IpcWriteOptions", "ReadOptions", "group_by", "join_asof", "to_pandas", "to_table")
"""Calls with an argument ``use_threads``, which is true by default."""
READERS = ("read_csv", "read_json")
"""Calls that take it in their ``read_options``."""
STEPS = {
    "reads of rows": """
make_whole(root / "t")
table = LakeTable.open(root / "t")
assert table.to_arrow().num_rows == 41
assert table.to_arrow(filter="id > 90 OR v LIKE '2.%'").num_rows == 12
assert table.to_arrow(filter=pc.field("id") > 90).num_rows == 4
assert LakeTable.check(root / "t").ok
table.compact()
assert LakeTable.open(root / "t").to_arrow().num_rows == 41
""",
    "an ingest job": """
(root / "landing").mkdir()
pq.write_table(pa.table({"k": [2, 3], "o": [1, 1]}), root / "a.parquet")
(root / "landing" / "a.json").write_text('{"k":1,"o":1}\\njunk\\n')
table = LakeTable.create(root / "t", "k BIGINT, o BIGINT, v STRING", key=["k"], ordering=["o"])
job = table.ingest("feed", Files(root / "landing", format="json"), bad_records="quarantine", max_bad_records=3)
job.run()
assert job.rejects().num_rows == 1
assert table.ingest("more", Files(root, pattern=r".*[.]parquet", format="parquet")).run().rows == 2
assert [str(file.state) for file in job.files()] == ["committed"]
assert LakeTable.check(root / "t").ok
""",
    "guesses": """
(root / "a.csv").write_text("id,v\\n1,x\\n01,y\\n")
(warning,) = SingleFile.found(str(root / "a.csv")).guess(key=["id"], types={"id": "BIGINT"}).warnings
(root / "a.json").write_text('{"a":1}\\n')
assert SingleFile.found(str(root / "a.json")).guess().schema.names == ["a"]
""",
}


def began(code: str, folder: Path) -> int:
    """How many threads that are not Python's began."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}{code}\nprint(threads() - before)", str(folder)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which threads a process has")
@pytest.mark.every_variant
@pytest.mark.parametrize("step", STEPS)
def test_no_thread_of_arrow_begins(step: str, tmp_path: Path) -> None:
    assert began(STEPS[step], tmp_path) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which threads a process has")
def test_the_count_sees_threads_of_arrow(tmp_path: Path) -> None:
    code = 'pq.write_table(pa.table({"a": [1], "b": [1]}), root / "f"); pq.read_table(root / "f")'
    assert began(code, tmp_path) > 0


def test_each_call_that_would_use_threads_is_told_not_to() -> None:
    """Ruff bans pyarrow's own Parquet readers."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                told = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                if node.func.attr in IN_THREADS:
                    found.append((path.name, node.lineno, told.get("use_threads") == "False"))
                elif node.func.attr in READERS:
                    found.append((path.name, node.lineno, "read_options" in told))
    assert len(found) > 11
    assert [call for call in found if not call[2]] == []
