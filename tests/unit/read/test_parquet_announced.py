"""What a read of a Parquet file announces to its store is what pyarrow then asks for, and no more."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.schema.names import ColumnNames
from lakemerge.storage import LocalStore
from lakemerge.storage.base import RangedFile

ROWS = pa.table(
    {
        "k": pa.array(range(40_000)),
        "s": pa.array([{"x": n % 7, "y": f"text {n}"} for n in range(40_000)]),
        "t": pa.array([f"another text {n * 31}" for n in range(40_000)]),
    }
)


class Noting(io.BytesIO):
    """A file that notes what is announced, and what is read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.announced: list[list[tuple[int, int]]] = []
        self.reads: list[tuple[int, int]] = []

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.announced.append(list(ranges))

    def read(self, size: int | None = -1) -> bytes:
        start = self.tell()
        found = super().read(size)
        self.reads.append((start, start + len(found)))
        return found


class NotingStore(LocalStore):
    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self.file = Noting(self.get(path))
        return RangedFile(self.file, mode="r")


@pytest.mark.parametrize(
    ("columns", "groups", "budget", "portions"),
    [
        (["k"], None, 1 << 30, 1),
        (["k", "t"], [1, 2], 1 << 30, 1),
        (["s"], [0, 3], 1 << 30, 2),  # they are no neighbours
        (["k", "s", "t"], None, 1_000_000, 4),
    ],
)
def test_announced_is_what_is_read(
    tmp_path: Path, columns: list[str], groups: list[int] | None, budget: int, portions: int
) -> None:
    pq.write_table(ROWS, tmp_path / "f.parquet", row_group_size=10_000)
    store = NotingStore(tmp_path)
    schema = pa.schema([ROWS.schema.field(name) for name in columns])
    with ParquetFiles(store) as files:
        stored = StoredFile("f.parquet")
        files.footer(stored)
        store.file.reads.clear()
        found = pa.concat_tables(
            table
            for table, _, _ in files.stream(
                stored, schema=schema, names=ColumnNames(), budget_bytes=budget, row_groups=groups
            )
        )
        reads, announced = store.file.reads, store.file.announced
    taken = [0, 1, 2, 3] if groups is None else groups
    assert found.equals(pa.concat_tables(ROWS.slice(group * 10_000, 10_000) for group in taken).select(columns))
    assert len(announced) == portions
    ranges = sorted(each for portion in announced for each in portion)
    wanted = {byte for start, end in reads for byte in range(start, end)}
    told = {byte for start, end in ranges for byte in range(start, end)}
    assert told <= wanted, "nothing is announced that is not read"
    # pyarrow reads over gaps of up to 8 KiB between two chunks.
    gaps = wanted - told
    assert len(gaps) <= 8192 * len(ranges)
    assert min(told) <= min(wanted)
    assert max(told) >= max(wanted)


def test_a_file_that_wants_nothing_announced_is_read_as_before(tmp_path: Path) -> None:
    pq.write_table(ROWS, tmp_path / "f.parquet")
    with ParquetFiles(LocalStore(tmp_path)) as files:
        ((table, first, last),) = files.stream(
            StoredFile("f.parquet"), schema=ROWS.schema, names=ColumnNames(), budget_bytes=1 << 30
        )
    assert (table.equals(ROWS), first, last) == (True, 0, True)
