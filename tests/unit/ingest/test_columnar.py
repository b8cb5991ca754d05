"""Parquet, ORC, Avro, text and compressed files: every record once, typed as the table."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
import zstandard

from lakemerge.ingest.formats.avro_files import AvroRecords
from lakemerge.ingest.formats.base import Format
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.formats.json_lines import JsonLines
from lakemerge.ingest.formats.orc_files import OrcRows
from lakemerge.ingest.formats.parquet_files import ParquetRows
from lakemerge.ingest.formats.text_lines import TextLines
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from tests.unit.ingest.landing import frame_of, read_blocks

SCHEMA = pa.schema([("i", pa.int64()), ("s", pa.string()), ("n", pa.int8()), ("d", pa.decimal128(6, 2))])


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.parametrize("block", [11, 37, 200, 1000, 5000, 1 << 20])
def test_a_row_group_belongs_to_the_block_of_its_middle(block: int) -> None:
    table = pa.table({"I": pa.array(range(100), pa.int32()), "extra": ["x"] * 100, "s": [f"t{k}" for k in range(100)]})
    data = parquet(table, row_group_size=7)
    good, bad = read_blocks(data, ParquetRows(), frame_of(SCHEMA, ignores=True), block_bytes=block)
    assert (good, bad) == ([(k, f"t{k}", None, None) for k in range(100)], [])


def test_values_of_columnar_files_are_cast_without_loss() -> None:
    table = pa.table({"i": ["1", "x", "3"], "n": [1.0, 2.0, 2.5], "d": [1.25, 1.255, 2.0], "s": [1, 2, 3]})
    for data, chosen in ((parquet(table), ParquetRows()), (_orc(table), OrcRows())):
        good, bad = read_blocks(data, chosen, frame_of(SCHEMA))
        assert good == [(1, "1", 1, Decimal("1.25"))]
        assert [place for place, _ in bad] == [None, None]
        assert bad[0][1] == '{"i":"x","n":2.0,"d":1.255,"s":2}'


def test_text_that_is_not_utf_8_is_told_by_row() -> None:
    texts = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    data = parquet(pa.table({"i": [1, 2, 3], "s": texts}))
    good, bad = read_blocks(data, ParquetRows(), frame_of(SCHEMA))
    assert good == [(1, "a", None, None), (3, "c", None, None)]
    assert bad == [(None, '{"i":2,"s":"\\\\xff"}')]


def test_columns_beside_the_tables_are_rescued() -> None:
    table = pa.table({"i": [1, 2], "a.b": [{"x": 1}, None], "when": [dt.date(2026, 1, 2), None]})
    frame = frame_of(pa.schema([("i", pa.int64()), ("rest", pa.string())]), rescued="rest")
    good, bad = read_blocks(parquet(table), ParquetRows(), frame)
    assert (good, bad) == ([(1, '{"a.b":{"x":1},"when":"2026-01-02"}'), (2, None)], [])


@pytest.mark.parametrize("cut", [0, 3, 11, -1, -5])
def test_a_file_that_is_no_parquet_says_so(cut: int) -> None:
    data = parquet(pa.table({"i": [1]}))[: cut or None] if cut else b"hello, world"
    with pytest.raises(FileUnreadableError, match=r"not a Parquet file|footer is damaged"):
        ParquetRows().peek(pa.BufferReader(data), SourceFile("f", len(data), "t", 0))


def test_orc_is_read_stripe_by_stripe() -> None:
    table = pa.table({"i": pa.array(range(1000), pa.int64()), "s": [f"t{k}" for k in range(1000)]})
    data = _orc(table, stripe_size=1024)
    frame = frame_of(pa.schema([("s", pa.string()), ("i", pa.int64())]))
    assert read_blocks(data, OrcRows(), frame, block_bytes=10) == ([(f"t{k}", k) for k in range(1000)], [])
    assert OrcRows().count(pa.BufferReader(data), SourceFile("f", len(data), "t", 0)) == 1000


def _orc(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    orc.write_table(table, sink, **options)
    return sink.getvalue()


AVRO = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "i", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


def avro(records: list[dict[str, Any]], schema: Any = None, codec: str = "null") -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema or AVRO), records, codec=codec, sync_interval=100)
    return sink.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_records_with_logical_types(codec: str) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
    records = [{"i": k, "s": None if k % 2 else "x", "d": Decimal("1.50"), "t": moment} for k in range(50)]
    frame = frame_of(pa.schema([*SCHEMA, ("t", pa.timestamp("us", "UTC"))]))
    data = avro(records, codec=codec)
    good, bad = read_blocks(data, AvroRecords(), frame)
    assert good == [(k, None if k % 2 else "x", None, Decimal("1.50"), moment) for k in range(50)]
    file = SourceFile("f", len(data), "t", 0)
    assert (bad, AvroRecords().count(pa.BufferReader(data), file)) == ([], 50)
    assert AvroRecords().peek(pa.BufferReader(data), file).types == (
        pa.int64(),
        pa.string(),
        pa.decimal128(6, 2),
        pa.timestamp("us", "UTC"),
    )


def test_damaged_avro_is_told() -> None:
    data = avro([{"i": 1, "s": "x" * 50, "d": Decimal(1), "t": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}] * 20)
    with pytest.raises(FileUnreadableError, match="it is damaged"):
        read_blocks(data[:-40], AvroRecords(), frame_of(SCHEMA, ignores=True))


@pytest.mark.parametrize("block", [1, 3, 100])
def test_text_keeps_every_line_and_its_place(block: int) -> None:
    frame = frame_of(pa.schema([("line", pa.string()), ("file", pa.string()), ("at", pa.int64())]))
    chosen = TextLines(column="line", path_column="file", offset_column="at")
    data = b"a\n\nb c\r\n\xc3\xa9"
    good, bad = read_blocks(data, chosen, frame, block_bytes=block)
    assert good == [("a", "file", 0), ("", "file", 2), ("b c", "file", 3), ("é", "file", 8)]
    assert (bad, chosen.count(pa.BufferReader(data), SourceFile("f", len(data), "t", 0))) == ([], 4)
    assert read_blocks(b"x\n\xff\n", TextLines(), frame_of(pa.schema([("value", pa.string())]))) == (
        [("x",)],
        [(2, "\\xff")],
    )


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "f.gz": gzip.compress,
    "f.bz2": bz2.compress,
    "f.zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    ("chosen", "data"),
    [
        (JsonLines(), b'\xef\xbb\xbf{"i":1}\n{"i":2}\n'),
        (Delimited(), b"\xef\xbb\xbfi\n1\n2\n"),
        (Delimited(multiline=True), b'i,x\n1,"\n"\n2,\n'),
    ],
    ids=["json", "csv", "multiline"],
)
def test_compressed_files_are_one_block(name: str, chosen: Format, data: bytes) -> None:
    frame = frame_of(pa.schema([("i", pa.int64())]), ignores=True)
    assert not chosen.splits(name)
    assert read_blocks(PACKED[name](data), chosen, frame, block_bytes=1, name=name) == ([(1,), (2,)], [])


def test_a_compressed_file_that_was_cut_is_an_error() -> None:
    data = gzip.compress(b'{"i":1}\n' * 1000)
    with pytest.raises(OSError, match="Truncated compressed stream"):
        read_blocks(data[:-9], JsonLines(), frame_of(SCHEMA), name="f.gz")
