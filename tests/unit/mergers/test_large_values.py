"""Values and records that are too many bytes for one Arrow array, or for the budget of a merge.

Arrow's strings, lists and maps have 32-bit offsets, so an array of them ends at 2 GiB. The tests set the limit from
which tables are taken in portions to a few bytes. Then small tables take the ways of large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import FrameError, LakeTable, MergeOverflowError, Settings
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.schema.names import ColumnNames
from lakemerge.storage import LocalStore
from mergers import Groups, Merged, default_registry, portions
from mergers.builtin.functions import base as functions
from mergers.builtin.partial_update import PartialUpdate
from mergers.keys import key_columns
from mergers.portions import bounded_batches, gather, is_large, plain_bytes, row_bytes, spans, together
from tests.unit.faults import create, frame, rows_of
from tests.unit.mergers.folds import build, fold_frames, shape_of
from tests.unit.pools import counted

MIB = 2**20


# From how many bytes on tables are large, and the merge budget. Each record is a portion of its own, or some are one.
# Each key is a step of its own, or all are in one step.
LIMITS = [(1, 256 * MIB), (300, 500)]


# One key, or some keys, with records that are large together. For each table: its options, its commits, and the rows
# by hand.
LONG = "x" * 60
Rows = Sequence[tuple[Any, ...]]


def partial_update() -> tuple[Mapping[str, Any], list[pa.Table], Rows]:
    """The highest ordering wins, column by column. Null does not overwrite."""
    options = {"schema": "k BIGINT, o BIGINT, v STRING, n TINYINT", "merger": "partial-update"}
    types = {"n": pa.int8()}
    commits = [frame([(k, 0, "base", 0) for k in (1, 2, 3)], ("k", "o", "v", "n"), **types)]
    for number in range(1, 5):
        rows = [(2, 10 * number + i, f"{number}.{i}" + LONG, None if i % 2 else number) for i in range(3)]
        rows.append((2, 5, "late" + LONG, 9))
        commits.append(frame(rows, ("k", "o", "v", "n"), **types))
    commits.append(frame([(3, 7, None, 3), (4, 1, "new", None)], ("k", "o", "v", "n"), **types))
    return options, commits, [(1, 0, "base", 0), (2, 42, "4.2" + LONG, 4), (3, 7, "base", 3), (4, 1, "new", None)]


def event_time() -> tuple[Mapping[str, Any], list[pa.Table], Rows]:
    commits = [frame([(k, 0, "base") for k in (1, 2, 3)])]
    commits += [frame([(2, n if n != 3 else 99, f"{n}" + LONG), (1, -1, "late")]) for n in range(1, 7)]
    commits.append(frame([(3, 1, None, "-D")], ("k", "o", "v", "op")))
    return {"merger": "event-time"}, commits, [(1, 0, "base"), (2, 99, "3" + LONG)]


def aggregate() -> tuple[Mapping[str, Any], list[pa.Table], Rows]:
    """The sum leaves the range of its type in between: twice 100, then twice -100, in TINYINT."""
    schema = "k BIGINT, n TINYINT, s STRING, l ARRAY<STRING>, m MAP<STRING,STRING>"
    chosen = {"n": "sum", "s": "listagg", "l": "collect", "m": "merge_map"}
    options = {"schema": schema, "merger": "aggregate", "options": {"aggregates": chosen}, "ordering": []}
    kinds = {"n": pa.int8(), "l": pa.list_(pa.string()), "m": pa.map_(pa.string(), pa.string())}
    names = ("k", "n", "s", "l", "m")
    commits = [frame([(k, 1, "b", ["b"], [("b", "b")]) for k in (1, 2)], names, **kinds)]
    places = [f"{n}{i}" for n in range(2) for i in range(4)]
    for n in range(2):
        rows = [(2, 100 if i < 2 else -100, f"s{n}{i}", [f"l{n}{i}"], [(f"m{i % 2}", f"{n}{i}")]) for i in range(4)]
        commits.append(frame(rows, names, **kinds))
    many = (
        2,
        1,
        ",".join(["b", *(f"s{place}" for place in places)]),
        ["b", *(f"l{place}" for place in places)],
        [("b", "b"), ("m0", "12"), ("m1", "13")],
    )
    return options, commits, [(1, 1, "b", ["b"], [("b", "b")]), many]


def sequence_groups() -> tuple[Mapping[str, Any], list[pa.Table], Rows]:
    schema = "k BIGINT, a STRING, ta STRING, b ARRAY<STRUCT<x: STRING>>, tb BIGINT"
    chosen = {"sequence_groups": {"ta": ["a"], "tb": ["b"]}}
    options = {"schema": schema, "merger": "partial-update", "options": chosen, "ordering": []}
    names, kind = ("k", "a", "ta", "b", "tb"), pa.list_(pa.struct([("x", pa.string())]))
    kinds = {"a": pa.string(), "ta": pa.string(), "b": kind, "tb": pa.int64()}
    commits = [frame([(k, "base", "t0" + LONG, [{"x": "base"}], 0) for k in (1, 2)], names, **kinds)]
    # The first group's sequence is a long text that ascends; the second's descends, so its first record stays.
    commits += [
        frame([(2, f"a{n}", f"t{n}" + LONG, [{"x": f"b{n}" + LONG}], 20 - n)], names, **kinds) for n in range(1, 7)
    ]
    expected = [
        (1, "base", "t0" + LONG, [{"x": "base"}], 0),
        (2, "a6", "t6" + LONG, [{"x": "b1" + LONG}], 19),
    ]
    return options, commits, expected


def change_capture() -> tuple[Mapping[str, Any], list[pa.Table], Rows]:
    """A marked value keeps the value before it."""
    schema = "k BIGINT, o BIGINT, v STRING, d STRING"
    options = {"schema": schema, "merger": "debezium-postgres", "options": {"op_column": "d"}}
    names, kinds = ("k", "o", "v", "d"), {"d": pa.string()}
    commits = [frame([(k, 0, "base", "c") for k in (1, 2)], names, **kinds)]
    commits += [
        frame([(2, n, f"v{n}" + LONG if n < 5 else "__debezium_unavailable_value", "u")], names, **kinds)
        for n in range(1, 8)
    ]
    commits.append(frame([(1, 1, None, "d")], names, **kinds))
    return options, commits, [(2, 7, "v4" + LONG, "u")]


CASES = [partial_update, event_time, aggregate, sequence_groups, change_capture]
Case = Callable[[], tuple[Mapping[str, Any], list[pa.Table], Rows]]


def written(path: Path, case: Case, settings: Settings | None = None) -> tuple[LakeTable, Rows]:
    options, commits, expected = case()
    table = create(path, settings=settings, properties={"lakemerge.maintenance": "off"}, **options)
    for commit in commits:
        table.upsert(commit, kind_column="op" if "op" in commit.column_names else None)
    return table, sorted(expected, key=repr)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize(("largest", "budget"), LIMITS)
def test_every_route_answers(
    case: Case, largest: int, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "LARGEST_BYTES", largest)
    settings = Settings(merge_budget_bytes=budget, write_budget_bytes=budget, threads=1)
    table, expected = written(tmp_path / "t", case, settings)
    keys = {"k": [row[0] for row in expected]}

    def check(about: str) -> None:
        fresh = LakeTable.open(tmp_path / "t", settings=settings)
        assert rows_of(fresh.to_arrow()) == expected, about
        assert sorted((tuple(row.values()) for b in fresh.scan() for row in b.to_pylist()), key=repr) == expected, about
        assert rows_of(fresh.get(pa.table(keys))) == expected, about
        for place, name in enumerate(fresh.schema.names if about == "logs" else ()):
            found = fresh.to_arrow(columns=[name]).column(0).to_pylist()
            assert sorted(found, key=repr) == sorted((row[place] for row in expected), key=repr), name
        assert rows_of(fresh.to_arrow(filter="k = 2")) == [row for row in expected if row[0] == 2], about

    check("logs")
    net = [(row["_row_kind"], row["k"]) for row in table.changes(since=0, net=True).read_all().to_pylist()]
    assert sorted(net) == sorted(("+I", row[0]) for row in expected)
    # The feed's inserts, updates and deletes, one after the other, make the table.
    rows: dict[int, tuple[Any, ...]] = {}
    for batch in table.changes(since=0):
        for change in batch.to_pylist():
            told = tuple(change[name] for name in table.schema.names)
            if change["_row_kind"] in ("-D", "-U"):
                assert rows.pop(change["k"]) == told
            else:
                rows[change["k"]] = told
    assert sorted(rows.values(), key=repr) == expected
    assert table.explain({"k": 2}).row == dict(
        zip(table.schema.names, next(r for r in expected if r[0] == 2), strict=True)
    )
    table.compact_logs()
    check("log compaction")
    table.compact(minor=True)
    check("minor compaction")
    table.compact()
    check("compaction")
    if case in (event_time, change_capture):
        LakeTable.open(tmp_path / "t", settings=settings).delete_where("k = 2")
        expected = [row for row in expected if row[0] != 2]
        keys = {"k": [1, 2]}
        check("delete")


def test_a_merger_never_sees_more_than_a_portion(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """300 records of one key, with 100 bytes each: whatever reads them gives the merger few at a time."""
    seen: list[int] = []
    merge = PartialUpdate.merge_groups

    def noting(self: PartialUpdate, groups: Groups) -> Merged:
        seen.append(groups.rows.num_rows)
        return merge(self, groups)

    monkeypatch.setattr(PartialUpdate, "merge_groups", noting)
    monkeypatch.setattr(portions, "LARGEST_BYTES", 2000)
    table = create(tmp_path / "t", merger="partial-update", properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(k, -1, "base") for k in range(50)]))
    for n in range(3):
        table.upsert(frame([(7, 100 * n + i, f"{n}.{i:02}".ljust(100)) for i in range(100)]))
    seen.clear()
    for _ in range(2):
        assert table.get({"k": 7}) == {"k": 7, "o": 299, "v": "2.99".ljust(100)}
        assert table.to_arrow().num_rows == 50
        table.compact_logs()
        table = LakeTable.open(tmp_path / "t")
    table.compact()
    assert LakeTable.open(tmp_path / "t").get({"k": 7}, columns=["o"]) == {"o": 299}
    assert max(seen) <= 2000 // 100 + 1


def test_rows_of_many_commits_are_not_all_in_memory(tmp_path: Path) -> None:
    """40 commits of one row with 1 MiB, read and compacted within 2 MiB."""
    budget = 2 * MIB
    settings = Settings(merge_budget_bytes=budget, threads=1)
    table = create(tmp_path / "t", settings=settings, properties={"lakemerge.maintenance": "off"})
    for n in range(40):
        table.upsert(frame([(n, n, chr(97 + n % 26) * MIB)]))

    def peak(call: Callable[[], object]) -> int:
        with counted() as pool:
            call()
        return int(pool.max_memory())

    assert peak(lambda: [batch.num_rows for batch in table.scan()]) < 6 * budget
    assert peak(table.compact_logs) < 8 * budget
    assert peak(lambda: [batch.num_rows for batch in table.changes(since=0)]) < 8 * budget
    table = LakeTable.open(tmp_path / "t", settings=settings)
    assert peak(lambda: table.compact(minor=True)) < 8 * budget
    assert [len(row[2]) for row in rows_of(LakeTable.open(tmp_path / "t").to_arrow())] == [MIB] * 40


@pytest.mark.parametrize("largest", [1, 300])
def test_long_keys(largest: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "LARGEST_BYTES", largest)
    table = create(tmp_path / "t", schema="k STRING, o STRING, v BINARY", properties={"lakemerge.maintenance": "off"})
    kinds = {"k": pa.string(), "o": pa.string(), "v": pa.binary()}
    keys = [letter * 70 for letter in "abcd"]
    for n in range(4):
        table.upsert(frame([(key, f"{n}" + LONG, f"{n}{key}".encode()) for key in keys], **kinds))
    expected = [(key, "3" + LONG, f"3{key}".encode()) for key in keys]
    for _ in range(2):
        table = LakeTable.open(tmp_path / "t")
        assert rows_of(table.to_arrow()) == expected
        assert rows_of(table.get(pa.table({"k": keys[:2]}))) == expected[:2]
        table.compact_logs()
    table.compact()
    assert rows_of(LakeTable.open(tmp_path / "t").to_arrow()) == expected


def test_lists_that_one_array_cannot_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lists of some keys together have too many elements, and then the list of one key has. An array may have 2^31 - 1
    elements; here it may have six."""
    monkeypatch.setattr(functions, "_MOST_ELEMENTS", 6)
    options = {"aggregates": {"l": "collect"}}
    schema, kind = "k BIGINT, l ARRAY<INT>", pa.list_(pa.int32())
    table = create(tmp_path / "t", schema=schema, merger="aggregate", options=options, ordering=[])
    for _ in range(2):
        table.upsert(frame([(k, [k, k]) for k in (1, 2, 3)], ("k", "l"), l=kind))
    assert rows_of(table.to_arrow()) == [(k, [k] * 4) for k in (1, 2, 3)]
    table.upsert(frame([(2, [7, 7, 7])], ("k", "l"), l=kind))
    with pytest.raises(MergeOverflowError, match=r"more than 2 GiB in column 'l' for key \{'k': 2\}") as caught:
        table.to_arrow()
    assert (caught.value.key, caught.value.column) == ({"k": 2}, "l")
    assert table.get({"k": 3}) == {"k": 3, "l": [3] * 4}
    [skipped] = table.compact().skipped
    assert (skipped.key, skipped.column) == ({"k": 2}, "l")


def test_values_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lakemerge.write.frame.VALUE_BYTES", 100)
    table = create(tmp_path / "t")
    version = table.version
    with pytest.raises(FrameError, match=r"column 'v' holds a value of 105 bytes in row 1; a value has at most 100"):
        table.upsert(frame([(1, 1, "a"), (2, 1, "x" * 101)]))
    assert LakeTable.open(tmp_path / "t").version == version
    table.upsert(frame([(1, 1, "x" * 90), (2, 1, "x" * 90)]))


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.large_string()], ids=str)
def test_shared_values_count_each_time_that_they_are_written(kind: pa.DataType, tmp_path: Path) -> None:
    """A frame of a few bytes, with one value a thousand times, is written within the budget."""
    settings = Settings(write_budget_bytes=10_000, threads=1)
    table = create(tmp_path / "t", settings=settings, properties={"lakemerge.maintenance": "off"})
    table.upsert(frame([(-1, 0, "")]))
    values = pa.array(["x" * 1000], pa.string()).dictionary_encode().take(pa.array([0] * 100))
    column = values if pa.types.is_dictionary(kind) else values.cast(pa.string()).cast(kind)
    table.upsert(pa.table({"k": range(100), "o": range(100), "v": column}))
    blocks = [block for file_slice in table.opened.view.file_slices for block in file_slice.blocks]
    assert sum(block.rows for block in blocks) >= 100
    assert max(block.data_bytes for block in blocks) <= 11_000
    assert (
        rows_of(table.to_arrow(columns=["k", "v"]))[1:] == sorted(((k, "x" * 1000) for k in range(100)), key=repr)[:100]
    )


def test_row_groups_end_at_some_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lakemerge.write.parquet.output.GROUP_BYTES", 1000)
    table = create(tmp_path / "t", properties={"lakemerge.maintenance": "off"})
    for n in range(2):
        table.upsert(frame([(k, n, str(k).ljust(300)) for k in range(10)]))
    table.upsert(frame([(k, 3, str(k).ljust(300)) for k in range(10, 20)]))
    expected = sorted(((k, 1 if k < 10 else 3, str(k).ljust(300)) for k in range(20)), key=repr)
    for _ in range(3):
        table = LakeTable.open(tmp_path / "t")
        assert rows_of(table.to_arrow()) == expected
        assert table.get({"k": 13}) == {"k": 13, "o": 3, "v": "13".ljust(300)}
        table.compact_logs()
        table = LakeTable.open(tmp_path / "t")
    assert rows_of(table.to_arrow()) == expected
    table.compact()
    files = sorted((tmp_path / "t").rglob("*.parquet"))
    groups = [pq.ParquetFile(file).metadata for file in files if "_delta_log" not in file.parts]
    rows = [[footer.row_group(i).num_rows for i in range(footer.num_row_groups)] for footer in groups]
    assert [3, 3, 3, 1] in rows
    assert max(max(counts) for counts in rows if sum(counts) > 1) == 3
    assert rows_of(LakeTable.open(tmp_path / "t").to_arrow()) == expected


def test_a_dictionary_does_not_hide_how_large_values_are(tmp_path: Path) -> None:
    """A file of some KiB, with one value of 8 KiB two thousand times, is read within 256 KiB."""
    value, rows = "x" * 8192, 2000
    pq.write_table(pa.table({"v": [value] * rows, "n": range(rows)}), tmp_path / "f.parquet", use_dictionary=["v"])
    assert (tmp_path / "f.parquet").stat().st_size < 40_000
    schema = pa.schema([("n", pa.int64()), ("v", pa.string())])
    seen: list[int] = []
    largest = 0
    with ParquetFiles(LocalStore(tmp_path)) as files:
        for table, first, last in files.stream(
            StoredFile("f.parquet"), schema=schema, names=ColumnNames(), budget_bytes=256 * 1024
        ):
            assert first == len(seen)
            seen += table.column("n").to_pylist()
            largest = max(largest, table.nbytes)
            assert last == (len(seen) == rows)
            assert table.column("v")[0].as_py() == value
    assert seen == list(range(rows))
    assert largest <= 256 * 1024


NESTED = pa.list_(pa.struct([("s", pa.string()), ("m", pa.map_(pa.string(), pa.binary()))]))
COLUMNS: dict[str, tuple[pa.Array, list[int]]] = {
    # By hand: an offset of 4 bytes and the text; integers of 8 bytes; a boolean counts as a byte.
    "text": (pa.array(["abc", None, "x" * 30, ""]), [7, 4, 34, 4]),
    "large text": (pa.array(["abc", None, "x" * 30, ""], pa.large_string()), [7, 4, 34, 4]),
    "dictionary": (pa.array(["abc", "abc", "de", None]).dictionary_encode(), [7, 7, 6, 7]),
    "view": (pa.array(["abc", "x" * 30, "", "de"], pa.string_view()), [7, 34, 4, 6]),
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["a", "bcd"])), [5, 7, 7, 7]),
    "list": (pa.array([["a", "bb"], None, [], ["c" * 9]]), [15, 4, 4, 17]),
    "booleans": (pa.array([[True], [], [False, True], None]), [5, 4, 6, 4]),
    "nested": (pa.array([[{"s": "ab", "m": [("k", b"v")]}], [], None, [{"s": "", "m": []}]], NESTED), [24, 4, 4, 12]),
    "integers": (pa.array([1, 2, None, 4]), [8, 8, 8, 8]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_bytes_of_rows(name: str) -> None:
    array, expected = COLUMNS[name]
    batch = pa.record_batch([array], names=["c"])
    for start in range(5):
        for count in range(5 - start):
            assert row_bytes(batch.slice(start, count)).tolist() == expected[start : start + count]
    if name in ("dictionary", "view", "runs"):
        assert plain_bytes(batch) == sum(expected)


def test_spans_are_within_the_limit_or_one_entry() -> None:
    sizes = np.array([3, 3, 3, 9, 1, 1, 0, 0, 20])
    assert list(spans(sizes, 6)) == [(0, 2), (2, 3), (3, 4), (4, 8), (8, 9)]
    assert list(spans(sizes, -1)) == [(n, n + 1) for n in range(9)]
    assert list(spans(sizes, 1000)) == [(0, 9)]
    assert list(spans(np.empty(0, dtype=np.int64), 6)) == []


@pytest.mark.parametrize("limit", [1, 40, 10_000])
def test_gathered_rows(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [pa.table({"s": [f"{n}{i}" * n for i in range(n)], "l": [[n, i] for i in range(n)]}) for n in range(1, 6)]
    table = pa.concat_tables(chunks)
    monkeypatch.setattr(portions, "LARGEST_BYTES", limit)
    for positions in ([], [3], [14, 0, 7, 1, 2], list(range(15))[::-1]):
        found = gather(table, np.array(positions, dtype=np.int64))
        assert found.to_pylist() == [table.to_pylist()[place] for place in positions]
        assert found.schema == table.schema
    assert together(table).column("s").num_chunks == (1 if limit == 10_000 else 5)
    parts = list(bounded_batches(table, rows=4))
    assert pa.Table.from_batches(parts).to_pylist() == table.to_pylist()
    assert max(part.num_rows for part in parts) <= (4 if limit == 10_000 else 1)


def test_many_booleans_in_lists_are_large() -> None:
    """Eight elements are in a byte, and the number of elements is limited, too."""
    lists = pa.table({"l": [[True] * 8_000]})
    assert lists.nbytes < 1_100
    assert is_large(lists, than=7_000)
    assert not is_large(pa.table({"b": [True] * 8_000}), than=7_000)


def test_key_columns_that_are_too_long_have_large_types(monkeypatch: pytest.MonkeyPatch) -> None:
    chunked = pa.chunked_array([["a" * 50], ["b" * 50]])
    assert key_columns(pa.table({"k": chunked}), ["k"])[0].type == pa.string()
    monkeypatch.setattr(portions, "LARGEST_BYTES", 60)
    assert key_columns(pa.table({"k": chunked}), ["k"])[0].type == pa.large_string()


def test_what_a_merger_needs_it_can_go_on_from() -> None:
    """The columns that a merger needs for some columns are enough for themselves, so that a fold can be continued."""
    for merger, shape in _built():
        for name in shape.schema.names:
            needed = merger.needs(shape, [name])
            assert merger.needs(shape, needed) == needed, merger


def _built() -> Iterator[tuple[Any, Any]]:
    fields = {"a": pa.string(), "b": pa.string(), "ta": pa.int64(), "tb": pa.int64()}
    groups = {"sequence_groups": {"ta": ["a"], "tb": ["b"]}}
    for name in sorted(merger.name for merger in default_registry() if merger.__module__.startswith("mergers.builtin")):
        options: dict[str, Mapping[str, Any]] = {"partial-update": groups}
        options |= {capture: {"op_column": "a"} for capture in ("aws-dms", "debezium-mysql", "debezium-postgres")}
        ordering = {"event-time": ["ta"], "debezium-mysql": ["b", "tb"], "debezium-postgres": ["tb"]}.get(name, [])
        shape = shape_of(fields, ordering=ordering)
        yield build(name, options.get(name, {}), shape), shape


def test_not_null_is_judged_after_the_last_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without a value is followed by one that has it. In between, the row is not what the table allows."""
    monkeypatch.setattr(portions, "LARGEST_BYTES", 1)
    shape = shape_of({"v": pa.string(), "w": pa.string()})
    merger = build("commit-time", {}, shape)
    assert fold_frames(merger, shape, [("+U", 1, "a", None), ("+U", 1, "b", "w")]) == [(1, "b", "w")]
