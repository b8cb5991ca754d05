"""Footers that pyarrow would end the process for are refused, and no others.

A damaged footer is one of a file that pyarrow wrote, with bytes changed. Whether the process ends, a process of its
own finds out.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemerge import LakeTable, TableDamagedError
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.parquet.footers import END, check_chunks
from lakemerge.schema.names import ColumnNames
from lakemerge.storage import LocalStore
from lakemerge.testing.counting import CountingStore
from tests.packages import needs_newer_arrow

ROOT = Path(__file__).parents[3]


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


def plain() -> bytes:
    return parquet(pa.table({"a": pa.array(range(10), pa.int64()), "s": [f"x{i}" for i in range(10)]}))


def footer_of(file: bytes) -> bytes:
    return file[-END - int.from_bytes(file[-END:][:4], "little") : -END]


def with_footer(file: bytes, footer: bytes) -> bytes:
    return file[: -END - len(footer_of(file))] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


BOUND = b"\x18\x08" + bytes(8)
"""A minimum of eight bytes, zero."""
DAMAGE = {
    "a bound that is too short": (BOUND, b"\x18\x04" + bytes(4), "a bound of column 'a' has 4 bytes, not 8"),
    "a chunk of another type": (b"\x15\x04\x19\x25", b"\x15\x0c\x19\x25", "is BYTE_ARRAY"),
    "a type that is none": (b"\x15\x04\x19\x25", b"\x15\x1e\x19\x25", "is None"),
    "a type below zero": (b"\x15\x04\x19\x25", b"\x15\x0b\x19\x25", "is None"),
    "levels of a deeper column": (b"\x29\x06\x19\x26", b"\x29\x36" + bytes(3) + b"\x19\x26", "1 levels, not 3"),
    "two size statistics": (b"\x3c\x29\x06", b"\x3c\x29\x36" + bytes(3) + b"\x00\x0c\x20\x29\x06", "two fields 16"),
    "another column's name": (b"\x19\x18\x01a", b"\x19\x18\x01b", "in place of one of column 'a'"),
}  # fmt: skip


def test_a_whole_footer_is_one() -> None:
    nested = pa.table(
        {
            "l": pa.array([[1], [], None], pa.list_(pa.int64())),
            "s": [{"x": 1, "y": "a"}] * 3,
            "m": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int32())),
            "d": pa.array([1, 2, 3], pa.decimal128(30, 2)),
            "f": [1.0, 2.0, float("nan")],
            "b": [True, None, False],
            "n": pa.nulls(3),
            "e": pa.array([None, b"", b"\xff"]),
            "t": pa.array([1, 2, 3], pa.timestamp("us")),
        }
    )
    for file in (plain(), parquet(nested), parquet(nested.slice(0, 0)), parquet(pa.table({}))):
        check_chunks(footer_of(file), pq.read_metadata(io.BytesIO(file)))
    many = io.BytesIO()
    pq.write_table(nested, many, row_group_size=1, store_decimal_as_integer=True, use_deprecated_int96_timestamps=True)
    check_chunks(footer_of(many.getvalue()), pq.read_metadata(many))


SIZES = needs_newer_arrow("writes no statistics of sizes")


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=SIZES) if "level" in what or "size" in what else what for what in DAMAGE],
)
def test_damage_is_named(tmp_path: Path, what: str) -> None:
    before, after, message = DAMAGE[what]
    footer = footer_of(plain())
    assert before in footer, "this version of pyarrow writes other footers; the test is to follow it"
    damaged = with_footer(plain(), footer.replace(before, after, 1))
    metadata = pq.read_metadata(io.BytesIO(damaged))  # which sees nothing in it
    with pytest.raises(ValueError, match=message):
        check_chunks(footer_of(damaged), metadata)
    (tmp_path / "file").write_bytes(damaged)
    schema = pa.schema([("a", pa.int64())])
    with ParquetFiles(LocalStore(tmp_path)) as files, pytest.raises(TableDamagedError, match="file 'file'.*" + message):
        list(files.stream(StoredFile("file"), schema=schema, names=ColumnNames(), budget_bytes=2**20))


@pytest.mark.parametrize("size", [None, 0, 9, 2**31 - 1, 2**32 - 1])
def test_what_is_no_file_at_all(tmp_path: Path, size: int | None) -> None:
    (tmp_path / "file").write_bytes(b"" if size is None else size.to_bytes(4, "little") + b"PAR1")
    with ParquetFiles(LocalStore(tmp_path)) as files, pytest.raises(TableDamagedError, match="file 'file'"):
        files.footer(StoredFile("file"))


def test_a_large_file_is_asked_once_for_a_large_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a smaller file is: the first read is a share of the file, as the footer is."""
    monkeypatch.setattr("lakemerge.read.parquet.files._TAIL", 100)
    file = parquet(pa.table({"a": [bytes(1 << 20) for _ in range(2)]}))
    assert 100 < len(footer_of(file)) < len(file) // 512
    (tmp_path / "f").write_bytes(file)
    store = CountingStore(LocalStore(tmp_path))
    with ParquetFiles(store) as files:
        assert files.footer(StoredFile("f", len(file))).num_rows == 2
    assert store.counts().calls["read"] == 1


def test_a_footer_larger_than_the_first_read(tmp_path: Path) -> None:
    wide = pa.table({f"column {number} with a long name to fill the footer": [number] for number in range(1500)})
    (tmp_path / "file").write_bytes(parquet(wide))
    assert len(footer_of(parquet(wide))) > 2**17
    with ParquetFiles(LocalStore(tmp_path)) as files:
        assert files.column_footer(StoredFile("file")).num_columns == 1500


SWEEP = """
import io, sys
import pyarrow as pa, pyarrow.parquet as pq
from lakemerge.read.parquet.footers import END, check_chunks
from tests.unit.read.test_footers import END, footer_of, plain, with_footer

file = plain()
footer = footer_of(file)
told = refused = 0
for place in range(footer.index(b"ARROW:schema")):
    for bit in range(8):
        changed = footer[:place] + bytes([footer[place] ^ 1 << bit]) + footer[place + 1 :]
        try:
            metadata = pq.read_metadata(io.BytesIO(with_footer(file, changed)))
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            continue
        try:
            check_chunks(changed, metadata)
        except ValueError:
            refused += 1
            continue
        for group in range(metadata.num_row_groups):
            for index in range(metadata.row_group(group).num_columns):
                chunk = metadata.row_group(group).column(index)
                if chunk.is_stats_set and chunk.statistics.has_min_max:
                    chunk.statistics.min_raw
                told += 1
print(told, refused)
"""


READ = """
import sys
from pathlib import Path
import pyarrow as pa
from lakemerge import LakeTable, TableDamagedError
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.format.block_index import _INDEX_SCHEMA, _index_columns
from lakemerge.format.ingests import NamedFile
from lakemerge.format.ledger import ledger_tables, rejects_tables
from lakemerge.format.minor import positions_table
from lakemerge.ingest import Files
from lakemerge.schema.names import ColumnNames
from lakemerge.storage import LocalStore
from tests.property.damage import make_whole
from tests.unit.read.test_footers import END, footer_of

root = Path(sys.argv[1])
make_whole(root)
landing = root.with_name("landing")
landing.mkdir()
(landing / "a.json").write_text('{"id":1,"part":"a","at":9,"v":"x"}\\njunk\\n')
LakeTable.open(root).ingest("feed", Files(landing, format="json"), bad_records="quarantine", max_bad_records=3).run()
schema, store = LakeTable.open(root).schema, LocalStore(root)


def rows(path):
    with ParquetFiles(store) as files:
        return list(files.stream(StoredFile(path), schema=schema, names=ColumnNames(), budget_bytes=100))


def file_of(path):
    return NamedFile(path, (root / path).stat().st_size, 1)


files = [path.relative_to(root).as_posix() for path in root.rglob("*.parquet")]
readers = {
    "base/": rows,
    "-index.parquet": lambda path: _index_columns(path, store.get(path), _INDEX_SCHEMA),
    ".positions.parquet": lambda path: positions_table(store, path),
    "-ledger.parquet": lambda path: list(ledger_tables(store, [file_of(path)])),
    "-rejects-": lambda path: rejects_tables(store, [file_of(path)]),
}
for name, read in readers.items():
    path = next(file for file in files if name in file)
    whole = (root / path).read_bytes()
    told = named = 0
    for place in range(len(whole) - END - len(footer_of(whole)), len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        (root / path).write_bytes(changed)
        try:
            read(path)
            told += 1
        except TableDamagedError as error:
            assert path in str(error), error
            named += 1
    assert told > 50 and named > 50, (name, told, named)
"""


@pytest.mark.long
def test_no_changed_bit_of_a_table_goes_without_a_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "t")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_changed_bit_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SWEEP], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    told, refused = map(int, done.stdout.split())
    assert told > 500
    assert refused > 50


def test_values_beyond_those_of_python_bound_nothing(tmp_path: Path) -> None:
    """Dates and instants of the year 200,000, and strings that are no UTF-8, are read all the same."""
    ddl = "id BIGINT, day DATE, at TIMESTAMP"
    table = LakeTable.create(tmp_path, ddl, key=["id"], buckets=1)
    days, times = pa.array([1, 10**8], pa.int32()).cast(pa.date32()), pa.array([1, 2**62], pa.timestamp("us", "UTC"))
    table.upsert(pa.table({"id": [1, 2], "day": days, "at": times}))
    table.compact()
    for condition in ("day > DATE '2000-01-01'", "at > TIMESTAMP '2000-01-01 00:00:00'"):
        assert table.to_arrow(columns=["id"], filter=condition).to_pylist() == [{"id": 2}]
