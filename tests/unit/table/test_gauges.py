"""Numbers for a scraper, checked against what was written and against the text format's rules."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

import pytest

from lakemerge.cli import main
from tests.unit.faults import create, frame, open_over

SAMPLE = re.compile(r'(lakemerge_[a-z_]+)\{table="((?:[^"\\]|\\.)*)"(?:,consumer="([^"]*)")?\} (\S+)')


def samples(text: str) -> dict[tuple[str, str, str | None], float]:
    """The samples of OpenMetrics text. Each metric is declared once, before its samples, and the text ends with EOF."""
    *lines, end = text.splitlines()
    assert (end, text[-1]) == ("# EOF", "\n")
    found: dict[tuple[str, str, str | None], float] = {}
    declared: list[str] = []
    for line in lines:
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split(" ")
            assert kind == "gauge"
            assert name not in declared
            declared.append(name)
        elif not line.startswith(f"# HELP {declared[-1]} "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == declared[-1]
            found[match[1].removeprefix("lakemerge_"), match[2], match[3]] = float(match[4])
    return found


def test_what_is_pending(tmp_path: Path) -> None:
    before = time.time() - 2
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(1, 1, "a"), (2, 1, "b")]))
    table.compact()
    clean = table.gauges().values
    assert (clean["rows"], clean["pending_commits"], clean["read_amplification"]) == (2, 0, 1)
    assert "oldest_pending_timestamp_seconds" not in clean
    assert "vacuum_timestamp_seconds" not in clean
    table.upsert(frame([(1, 2, "c"), (3, 2, "c")]))
    oldest = (tmp_path / "t" / "_delta_log" / f"{table.version:020d}.json").stat().st_mtime
    table.upsert(frame([(4, 2, "c")]))
    table.consumers.register("billing", version=1)
    found = table.gauges()
    assert (found.values["pending_commits"], found.values["pending_rows"]) == (2, 3)
    assert found.values["oldest_pending_timestamp_seconds"] == pytest.approx(oldest, abs=0.01)
    assert before < clean["compaction_timestamp_seconds"] <= found.values["commit_timestamp_seconds"] + 1
    assert found.consumers == {"billing": 1}
    table.vacuum(dry_run=False)
    table.maintain()
    assert table.gauges().values["vacuum_timestamp_seconds"] == pytest.approx(time.time(), abs=60)


def test_a_log_compaction_makes_nothing_younger(tmp_path: Path) -> None:
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"}, buckets=1)
    table.upsert(frame([(1, 1, "a")]))
    for order in range(2, 5):
        table.upsert(frame([(1, order, "c"), (order, 2, "c")]))
    for number, commit in enumerate(sorted((tmp_path / "t" / "_delta_log").glob("*.json"))):
        os.utime(commit, (1_000_000 + number, 1_000_000 + number))
    assert table.gauges().values["oldest_pending_timestamp_seconds"] == 1_000_002
    assert table.compact_logs(size_ratio=math.inf).commits == 3
    assert table.gauges().values["oldest_pending_timestamp_seconds"] == 1_000_002
    table.upsert(frame([(9, 2, "c")]))
    assert table.gauges().values["oldest_pending_timestamp_seconds"] == 1_000_002


def test_text_of_several_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / 'a "b" \\c'
    tables = [create(path) for path in (tmp_path / "t", odd)]
    tables[0].upsert(frame([(1, 1, "a")]))
    tables[1].consumers.register("x", version=0)
    assert main(["metrics", str(tmp_path / "t"), str(odd)]) == 0
    found = samples(capsys.readouterr().out)
    names = [table.url.replace("\\", r"\\").replace('"', r"\"") for table in tables]
    assert [found["version", name, None] for name in names] == [1, 1]
    assert [found["rows", name, None] for name in names] == [1, 0]
    assert found["consumer_version", names[1], "x"] == 0
    assert samples(str(tables[0].gauges())) == {key: value for key, value in found.items() if key[1] == names[0]}


def test_only_metadata_is_read(tmp_path: Path) -> None:
    create(tmp_path / "t").upsert(frame([(number, 1, "a" * 100) for number in range(1000)]))
    table, store = open_over(tmp_path / "t")
    table.gauges()
    read = {call.path for call in store.calls if call.path}
    assert read
    assert not [path for path in read if not path.startswith("_delta_log")], read
