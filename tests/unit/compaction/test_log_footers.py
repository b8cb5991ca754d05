"""A log file has row groups of many file slices. A read or service that merges these parses its footer once."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.read.parquet import files
from lakemerge.read.parquet.footers import Footer, LogFooters
from tests.unit.faults import create, frame, rows_of

COMMITS, BUCKETS = 4, 32


def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the footer of each log file is parsed, from now on."""
    times: Counter[str] = Counter()
    opened, here = files.ParquetFiles._file, threading.local()

    def opening(self: files.ParquetFiles, stored: files.StoredFile) -> pq.ParquetFile:
        here.path = stored.path
        return opened(self, stored)

    class Counting(Footer):
        def __init__(self, tail: bytes) -> None:
            if here.path.startswith("_lakemerge/log/"):
                times[here.path] += 1
            super().__init__(tail)

    monkeypatch.setattr(files.ParquetFiles, "_file", opening)
    monkeypatch.setattr(files, "Footer", Counting)
    return times


def dirty(path: Path) -> LakeTable:
    """Each commit has records in almost every bucket."""
    table = create(path, buckets=BUCKETS, settings=Settings(threads=2))
    for number in range(COMMITS + 1):
        table.upsert(frame([(key, number, f"v{number}") for key in range(500)]))
        if not number:
            table.compact()
    return table


@pytest.mark.parametrize("what", ["read", "minor compaction", "compaction", "log compaction", "changes"])
def test_a_log_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table = dirty(tmp_path / "t")
    since = table.version - COMMITS
    times = parsed(monkeypatch)
    match what:
        case "read":
            table.to_arrow()
        case "minor compaction":
            table.compact(minor=True)
        case "compaction":
            table.compact()
        case "log compaction":
            table.compact_logs()
        case "changes":
            table.changes(since, net=True).read_all()
    # Two threads may parse the same footer at the same time, before either has kept it.
    assert len(times) >= COMMITS
    assert max(times.values()) <= 2
    assert sorted(rows_of(table.to_arrow())) == [(key, COMMITS, f"v{COMMITS}") for key in range(500)]


def test_other_files_are_not_kept_and_none_makes_room(tmp_path: Path) -> None:
    table = dirty(tmp_path / "t")
    [base, *_] = table.opened.view.base_files
    with files.ParquetFiles(table.opened.handle.store) as opened:
        stored = files.StoredFile(base.add.path, base.add.size_bytes)
        opened.footer(stored)
        footer = opened._known[stored.path]
    kept = LogFooters(8 * 32 * 2**20)
    kept.keep(base.add.path, footer, 1)
    assert len(kept) == 0
    first, second, third = (f"_lakemerge/log/{name}.parquet" for name in "abc")
    kept.keep(first, footer, 20 * 2**20)
    kept.keep(second, footer, 20 * 2**20)
    kept.keep(third, footer, 2**20)
    assert [kept.get(path) for path in (first, second, third)] == [footer, None, footer]
    sent = pickle.loads(pickle.dumps(kept))
    assert len(sent) == 0
    assert sent.has_room(32 * 2**20)
    assert not sent.has_room(32 * 2**20 + 1)
