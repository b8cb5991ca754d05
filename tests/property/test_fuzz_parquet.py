"""Parquet files whose fields are not what the norm says: null, absent, of another type, out of range, out of order.

For every kind of file that a table, an ingest job or a merge source has. The outcome is an answer or an error of this
library; the sizes in the log are made to fit, so that readers come to the content.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeMergeError, LakeTable
from lakemerge.ingest import Files
from lakemerge.merge_source import MergeConfig, MergeSource
from tests.property.damage import EVERYBODY, make_whole
from tests.property.effort import some

EVERY = {5: 10, 2: 50, 1: 200}[len(some(range(5)))]
"""One of so many changes of a file is tried; more of them where all is tested."""


def job(path: Path) -> Any:
    landing = Files(path.parent / "landing", format="json")
    return LakeTable.open(path).ingest("job", landing, bad_records="quarantine", max_bad_records=None)


def source(path: Path) -> MergeSource:
    return MergeSource.open(path.parent / "out")


WHO: dict[str, Callable[[Path], object]] = {
    **EVERYBODY,
    "changes": lambda path: LakeTable.open(path).changes(0).read_all(),
    "net changes": lambda path: LakeTable.open(path).changes(1, net=True).read_all(),
    "follow": lambda path: list(LakeTable.open(path).follow("reader", None)),
    "consumers": lambda path: LakeTable.open(path).consumers.list(),
    "explain": lambda path: LakeTable.open(path).explain({"id": 3, "part": "a"}, 0),
    "lineage": lambda path: LakeTable.open(path).lineage(key={"id": 3, "part": "a"}),
    "what_if": lambda path: LakeTable.open(path).what_if("commit-time", since=0).to_arrow(),
    "query": lambda path: LakeTable.open(path).query("SELECT max(v) FROM self WHERE at > 1"),
    "delete": lambda path: LakeTable.open(path).delete_where("at = 3"),
    "minor": lambda path: LakeTable.open(path).compact(minor=True),
    "logs": lambda path: LakeTable.open(path).compact_logs(size_ratio=100.0),
    "rescale": lambda path: LakeTable.open(path).rescale(buckets=2),
    "expiry": lambda path: LakeTable.open(path).expire_tombstones(retention=dt.timedelta(0)),
    "restore": lambda path: LakeTable.open(path).restore(version=3),
    "replay": lambda path: LakeTable.open(path).replay(path.parent / "again"),
    "job status": lambda path: job(path).status(),
    "job files": lambda path: job(path).files(),
    "job rejects": lambda path: job(path).rejects(),
    "job retry": lambda path: job(path).retry(),
    "job run": lambda path: job(path).run(),
    "job replay": lambda path: job(path).replay(force=True),
    "merge run": lambda path: source(path).run(full=True),
    "merge pending": lambda path: source(path).pending(),
    "merge entities": lambda path: source(path).entities(),
    "merge check": lambda path: source(path).check(),
    "merge report": lambda path: source(path).report(),
}
WRITERS = frozenset(
    {"compaction", "delete", "minor", "logs", "rescale", "expiry", "restore", "replay", "job retry", "job run",
     "job replay", "merge run", "follow"}
)  # fmt: skip

Change = Callable[[pa.ChunkedArray], pa.ChunkedArray | pa.Array | None]


def nulls(values: pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(values), values.type)


def first_null(values: pa.ChunkedArray) -> pa.Array:
    return pa.array([None, *values.to_pylist()[1:]], values.type)


def as_type(kind: pa.DataType, value: object) -> Change:
    return lambda values: pa.array([value] * len(values), kind)


def hostile_number(number: int) -> Change:
    def change(values: pa.ChunkedArray) -> pa.Array | None:
        if not pa.types.is_integer(values.type):
            return None
        try:
            return pa.array([number] * len(values), values.type)
        except (OverflowError, pa.ArrowInvalid):
            return None

    return change


def hostile_text(text: str) -> Change:
    return lambda values: pa.array([text] * len(values), values.type) if pa.types.is_string(values.type) else None


def inner_nulls(values: pa.ChunkedArray) -> pa.Array | None:
    """Nulls inside of lists, maps and structs."""
    if pa.types.is_list(values.type):
        return pa.array([None if one is None else [None] * (len(one) + 1) for one in values.to_pylist()], values.type)
    if pa.types.is_struct(values.type):
        names = [values.type.field(place).name for place in range(values.type.num_fields)]
        return pa.array([dict.fromkeys(names) for _ in range(len(values))], values.type)
    return None


COLUMN_CHANGES: dict[str, Change] = {
    "null": nulls,
    "first null": first_null,
    "inner nulls": inner_nulls,
    "absent": lambda values: pa.chunked_array([], pa.null()),
    "integers": as_type(pa.int64(), 3),
    "small integers": as_type(pa.int8(), 3),
    "text": as_type(pa.string(), "x"),
    "bytes": as_type(pa.binary(), b"\xff"),
    "floats": as_type(pa.float64(), float("nan")),
    "lists": as_type(pa.list_(pa.int32()), [1]),
    "structs": as_type(pa.struct([("a", pa.int32())]), {"a": None}),
    "times": as_type(pa.timestamp("us"), 0),
    "minus": hostile_number(-1),
    "much": hostile_number(2**62),
    "some": hostile_number(7),
    "no text": hostile_text(""),
    "a path out": hostile_text("../../outside"),
    "broken JSON": hostile_text('{"a": [nul'),
    "other JSON": hostile_text("[1, null]"),
    "reversed": lambda values: values.take(pa.array(range(len(values) - 1, -1, -1))),
}


def changed(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The table with one thing that is not as it was."""
    for place, field in enumerate(table.schema):
        for what, change in COLUMN_CHANGES.items():
            if what == "absent":
                yield f"{field.name} {what}", table.remove_column(place)
                continue
            values = change(table.column(place))
            if values is not None:
                new = pa.field(field.name, values.type, metadata=field.metadata)
                yield f"{field.name} {what}", table.set_column(place, new, values)
    yield "no rows", table.slice(0, 0)
    yield "one row", table.slice(0, 1)
    yield "twice", pa.concat_tables([table, table])
    yield "one more column", table.append_column("more", pa.nulls(table.num_rows, pa.int32()))
    yield "no metadata", table.replace_schema_metadata(None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet")
    make_whole(folder / "t", sliced=False)
    table = LakeTable.open(folder / "t")
    table.consumers.register("reader", version=2)
    (folder / "landing").mkdir()
    good = [json.dumps({"id": number, "part": "a", "at": 8, "v": "x"}) for number in (70, 71)]
    (folder / "landing/one.json").write_text("\n".join([good[0], "{bad", good[1]]) + "\n")
    job(folder / "t").run()
    MergeSource.create(folder / "out", MergeConfig(datasets={"a": str(folder / "t")})).run()
    return folder


def kinds(folder: Path) -> dict[str, Path]:
    """One Parquet file of each kind, by what its place and columns say."""
    found: dict[str, Path] = {}
    for file in sorted(folder.rglob("*.parquet")):
        part = file.relative_to(folder)
        where = re.sub(r"[0-9a-f-]{8,}|\d+", "#", "/".join(part.parts[:-1]))
        ending = re.sub(r"[0-9a-f-]{8,}|\d+", "#", part.name)
        found.setdefault(f"{where}/{ending}: {','.join(pq.read_schema(file).names)}", file)
    return found


def rewritten(file: Path, table: pa.Table, folder: Path) -> None:
    """Put the table into the file's place, with row groups of the same size, and its size into the log."""
    before = file.stat().st_size
    with pq.ParquetFile(file) as old:
        rows = max(1, old.metadata.row_group(0).num_rows) if old.metadata.num_row_groups else 1
    pq.write_table(table, file, row_group_size=rows)
    after = file.stat().st_size
    for commit in folder.rglob("_delta_log/*.json"):
        text = commit.read_text()
        commit.write_text(re.sub(rf"(?<=\D){before}(?=\D)", str(after), text))


def test_every_kind_of_file_is_there(whole: Path) -> None:
    found = " ".join(kinds(whole))
    for part in ("t/base", "_lakemerge/log", "checkpoint", "t/_lakemerge", "out_state", "out/"):
        assert part in found, found


@pytest.mark.parametrize("number", range(24))
def test_fields_that_are_not_what_the_norm_says(number: int, whole: Path, tmp_path: Path) -> None:
    every = kinds(whole)
    if number >= len(every):
        assert len(every) > 6
        return
    name, file = list(every.items())[number]
    original = pq.read_table(file)
    bad: list[str] = []
    for place, (what, table) in enumerate(changed(original)):
        if place % EVERY:
            continue
        folder = Path(shutil.copytree(whole, tmp_path / "w"))
        try:
            rewritten(folder / file.relative_to(whole), table, folder)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            shutil.rmtree(folder)
            continue
        for who, call in WHO.items():
            if who in WRITERS and (place + len(who)) % 3:
                continue  # what wrote before may hide the damage from them
            try:
                call(folder / "t")
            except LakeMergeError:
                pass
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                bad.append(f"{what}, {who}: {type(error).__name__}: {error}"[:300] + f" at {place_of(error)}")
        shutil.rmtree(folder)
    assert not bad, f"{len(bad)} of {name}:\n" + "\n".join(bad)


def place_of(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in frame.filename]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[::-1][:3])
