"""Reads of some keys: what they find, and what they do not touch."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakemerge import FrameError, InputError, LakeTable, Settings
from lakemerge.delta import DeltaLog
from lakemerge.handle import Handle
from lakemerge.read.filter import prune
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore
from lakemerge.testing.faults import FaultStore
from mergers import default_registry
from tests.packages import needs_newer_arrow
from tests.unit.faults import create, frame, open_over

SMALL_GROUPS = Settings(row_group_rows=10)


def keyed(path: Path, **options: Any) -> LakeTable:
    """2,000 rows in eight buckets of many row groups; key ``k`` is even. A log over some keys."""
    table = create(path, buckets=8, settings=SMALL_GROUPS, **options)
    table.upsert(frame([(2 * k, 10, f"base{2 * k}") for k in range(2_000)]))
    table.upsert(frame([(8, 20, "new"), (9, 20, "added"), (10, 5, "late")]))
    table.delete(frame([(12, 20)], ["k", "o"]))
    return table


def touched(store: FaultStore) -> set[str]:
    """Data files that were opened."""
    return {call.path for call in store.calls if call.method == "open_input" and call.path.endswith(".parquet")}


EXPECTED = {8: (20, "new"), 9: (20, "added"), 10: (10, "base10"), 12: None, 14: (10, "base14"), 15: None, 99: None}


@pytest.mark.parametrize("compaction", ["none", "minor", "full", "minor and more"])
def test_one_key(tmp_path: Path, compaction: str) -> None:
    table = keyed(tmp_path / "t")
    if compaction != "none":
        table.compact(minor="minor" in compaction)
    expected = dict(EXPECTED)
    if compaction == "minor and more":
        table.upsert(frame([(8, 30, "newest"), (14, 30, "newest")]))
        expected |= {8: (30, "newest"), 14: (30, "newest")}
    for key, value in expected.items():
        row = None if value is None else {"k": key, "o": value[0], "v": value[1]}
        assert table.get({"k": key}) == row
        for condition in (f"k = {key}", f"{key} = k AND o > 0", f"k IN ({key}, -1) AND v <> ''", f"k IN ({key})"):
            assert table.to_arrow(filter=condition).to_pylist() == ([] if row is None else [row]), condition
        assert table.to_arrow(filter=pc.field("k") == key).to_pylist() == ([] if row is None else [row])
    assert table.get({"k": 8}, columns=["v"]) == {"v": expected[8][1] if expected[8] else None}
    found = table.get([{"k": key} for key in expected], columns=["k"])
    assert sorted(found["k"].to_pylist()) == sorted(key for key, value in expected.items() if value is not None)


@pytest.mark.parametrize("listed", [100, 0])
@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_many_keys_by_frame(tmp_path: Path, kind: pa.DataType, listed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where so many keys are asked for that only their ends are held against the logs."""
    monkeypatch.setattr(prune, "_FEW_KEYS", listed)
    table = keyed(tmp_path / "t")
    keys = pa.table({"k": pa.array([8, 15, 3_998, 8, 12, 600], kind)})
    found = {row["k"]: row["v"] for row in table.get(keys).to_pylist()}
    assert found == {8: "new", 3_998: "base3998", 600: "base600"}
    assert table.get(keys.slice(0, 0)).num_rows == 0
    assert table.get([]).num_rows == 0


def test_a_key_costs_one_bucket(tmp_path: Path) -> None:
    """One of eight base files is opened, and only the logs whose range of keys has the wanted key."""
    keyed(tmp_path / "t").compact()
    LakeTable.open(tmp_path / "t").upsert(frame([(4, 30, "x")]))
    table, store = open_over(tmp_path / "t")
    assert table.get({"k": 2_000}) == {"k": 2_000, "o": 10, "v": "base2000"}
    assert [path.split("/")[0] for path in touched(store)] == ["base"]
    for condition in ("k = 2000", "k in (2000)", "o = 10 and (k = 2000)"):
        table, store = open_over(tmp_path / "t")
        assert table.to_arrow(filter=condition).num_rows == 1
        assert [path.split("/")[0] for path in touched(store)] == ["base"], condition
    table, store = open_over(tmp_path / "t")
    assert table.get({"k": 4}) == {"k": 4, "o": 30, "v": "x"}
    assert sorted(path.split("/")[0] for path in touched(store)) == ["_lakemerge", "base"]


def _compressed_bytes(file: Path) -> int:
    """What the column chunks of a Parquet file take, without footer and indexes."""
    groups = pq.read_metadata(file)
    chunks = (groups.row_group(at).column(c) for at in range(groups.num_row_groups) for c in range(groups.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks)


@needs_newer_arrow("reads the columns of a local file one by one")
def test_only_row_groups_that_can_hold_the_key_are_read(tmp_path: Path) -> None:
    keyed(tmp_path / "t").compact()
    sizes = {}
    reads: dict[str, Callable[[LakeTable], object]] = {
        "key": lambda table: table.get({"k": 2_000}),
        "filter": lambda table: table.to_arrow(filter="k > 2000 and k < 2020"),
        "all": lambda table: table.to_arrow(),
    }
    for name, read in reads.items():
        store = CountingStore(LocalStore(tmp_path / "t"))
        log = DeltaLog(store)
        table = LakeTable(Handle(store, log, default_registry(), Settings()), log.snapshot(), pinned=False, spark=None)
        store.reset()
        read(table)
        sizes[name] = store.counts().bytes_read
    # For the footer the last 64 KiB of each file are read, which is the whole file here. Rows are read in addition.
    files = [tmp_path / "t" / path for path in table.opened.view.snapshot.files]
    whole = sum(file.stat().st_size for file in files)
    rows = sum(_compressed_bytes(file) for file in files)
    assert sizes["key"] < whole / 8 * 1.2
    assert sizes["filter"] < whole + rows / 4
    assert sizes["all"] > whole + rows * 0.9


@pytest.mark.parametrize(
    ("ddl", "keys"),
    [
        ("k STRING, o BIGINT, v STRING", ["", "a", "ä", "z" * 300]),
        ("k BINARY, o BIGINT, v STRING", [b"", b"\xff", b"a" * 300]),
        ("k DATE, o BIGINT, v STRING", [dt.date(1969, 1, 1), dt.date(2024, 2, 29)]),
        ("k BOOLEAN, o BIGINT, v STRING", [True, False]),
        ("k DECIMAL(30,2), o BIGINT, v STRING", [decimal.Decimal("-1.50"), decimal.Decimal("12345678901234567890.25")]),
        ("k DECIMAL(9,2), o BIGINT, v STRING", [decimal.Decimal("-1.50"), decimal.Decimal("7.25")]),
        (
            "k TIMESTAMP, o BIGINT, v STRING",
            [dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC)],
        ),
    ],
    ids=lambda value: value.split()[1] if isinstance(value, str) else "",
)
def test_every_kind_of_key(tmp_path: Path, ddl: str, keys: list[Any]) -> None:
    table = create(tmp_path / "t", schema=ddl, buckets=4, settings=Settings(row_group_rows=1))
    kind = table.schema.field("k").type
    first = pa.table({"k": pa.array(keys, kind), "o": [1] * len(keys), "v": ["a"] * len(keys)})
    table.upsert(first)
    table.upsert(first.slice(1).set_column(2, "v", pa.array(["b"] * (len(keys) - 1))))
    for minor in (None, True, False):
        if minor is not None:
            table.compact(minor=minor)
        for number, key in enumerate(keys):
            assert table.get({"k": key}) == {"k": key, "o": 1, "v": "b" if number else "a"}


def test_partitioned_and_composite_keys(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = create(path, schema="p STRING, k BIGINT, o BIGINT, v STRING", key=["p", "k"], partition_by=["p"], buckets=2)
    rows = [(p, k, 1, f"{p}{k}") for p in "ab" for k in range(50)]
    table.upsert(frame(rows, ["p", "k", "o", "v"]))
    table.upsert(frame([("b", 7, 2, "new")], ["p", "k", "o", "v"]))
    assert table.get({"k": 7, "p": "a"}, columns=["v"]) == {"v": "a7"}
    assert table.get({"k": 7, "p": "b"}, columns=["v"]) == {"v": "new"}
    assert table.get({"k": 7, "p": "c"}) is None
    assert table.get({"k": 7, "p": ""}) is None
    table, store = open_over(path)
    assert table.to_arrow(filter="p = 'a' and k in (7, 8)").num_rows == 2
    assert len(touched(store)) <= 2
    assert table.to_arrow(filter="p in ('a', 'b') and k = 7").num_rows == 2
    assert table.to_arrow(filter="p = 'a' or k = 7").num_rows == 51


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path / "t")
    for keys, message in [
        ({"id": 1}, "missing: k; not in the key: id"),
        ({"k": 1, "o": 1}, "not in the key: o"),
        ({}, "missing: k"),
        ({"k": None}, "null in 1 key"),
        ({"k": "x"}, "do not fit"),
        ([{"k": 1}, {}], "every key needs"),
        ({"k": 2.5}, "2.5 is none"),
        ([{"k": 2}, {"k": decimal.Decimal("2.5")}], "is none|do not fit"),
        (7, "not int"),
        (pa.table({"k": ["a"]}), "not STRING"),
        ({"k": 1, "K": 2}, "'k' twice"),
        (pa.table([[1], [2]], ["k", "k"]), "'k' twice"),
        ({7: 1}, "missing: k; not in the key: 7"),
    ]:
        with pytest.raises(FrameError, match=message):
            table.get(keys)
    with pytest.raises(InputError, match="at least one column"):
        table.get({"k": 1}, columns=[])
    assert table.get({"K": 2}) == table.get([{"K": 2}]).to_pylist()[0] == table.get(pa.table({"K": [2]})).to_pylist()[0]
    assert table.get({"K": 2}) == table.get({"k": 2.0}) == table.get({"k": 2}) == {"k": 2, "o": 10, "v": "base2"}


def test_a_time_is_no_day(tmp_path: Path) -> None:
    table = LakeTable.create(tmp_path / "t", "k DATE", key=["k"])
    table.upsert(pa.table({"k": [dt.date(2020, 1, 1)]}))
    assert table.get({"k": dt.date(2020, 1, 1)}) == {"k": dt.date(2020, 1, 1)}
    with pytest.raises(FrameError, match="is none"):
        table.get({"k": dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)})
