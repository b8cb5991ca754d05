"""A log file has row groups of many file slices. Whoever merges these parses its footer once."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, Settings
from lakemerge.read.parquet import files
from lakemerge.read.parquet.footers import LogFooters
from tests.unit.faults import create, frame, rows_of

COMMITS, BUCKETS = 4, 32


def parsed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the footer of each log file is parsed, from now on."""
    times: Counter[str] = Counter()
    opened = files.ParquetFiles._file

    def counting(self: files.ParquetFiles, stored: files.StoredFile) -> pq.ParquetFile:
        is_known = stored.path in self._open or (self._footers is not None and self._footers.get(stored.path))
        if stored.path.startswith("_lakemerge/log/") and not is_known:
            times[stored.path] += 1
        return opened(self, stored)

    monkeypatch.setattr(files.ParquetFiles, "_file", counting)
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
    kept = LogFooters()
    kept.keep(base.add.path, footer, 1)
    assert len(kept) == 0
    first, second, third = (f"_lakemerge/log/{name}.parquet" for name in "abc")
    kept.keep(first, footer, 20 * 2**20)
    kept.keep(second, footer, 20 * 2**20)
    kept.keep(third, footer, 2**20)
    assert [kept.get(path) for path in (first, second, third)] == [footer, None, footer]
    assert len(pickle.loads(pickle.dumps(kept))) == 0
