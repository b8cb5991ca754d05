"""CSV: every line by the same reader, whatever is wrong with its neighbours and wherever blocks are cut."""

from __future__ import annotations

import csv
import datetime as dt
import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge.ingest.formats import lines as lines_module
from lakemerge.ingest.formats.base import Piece
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from tests.unit.ingest.landing import frame_of, read_blocks

SCHEMA = pa.schema(
    [("i", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(6, 2)), ("t", pa.timestamp("us", "UTC"))]
)
CELLS = st.one_of(st.none(), st.text(st.sampled_from('ab,"; é\\'), max_size=4))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), CELLS), min_size=1, max_size=6), st.integers(1, 30), st.integers(3, 40))
def test_what_pythons_csv_module_writes_is_read(rows: list[tuple[int, str | None]], block: int, portion: int) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["i", "s"])
    for number, value in rows:
        # An empty text is quoted, null is nothing.
        writer.writerow([number, value]) if value != "" else text.write(f'{number},""\n')
    frame = frame_of(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    good, bad = _portioned(text.getvalue().encode(), Delimited(), frame, block, portion)
    assert (good, bad) == (rows, [])


BAD = ["x,a,,", "3,b", "4,c,1,2,3,4", '5,"open,,', "6,,1.555,", "7,,,yesterday", "8,,99999.00,", "9,z"]
GOOD = ["1,a,1.5,2026-01-02", '2,"x,""y",,2026-01-02T03:04:05Z', '3,a"b,,', '4,"",0,\r', "5, padded ,,", ""]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(BAD + GOOD), max_size=8), st.integers(1, 60), st.integers(3, 60), st.booleans())
def test_lines_at_fault_are_told_and_the_others_read(lines: list[str], block: int, portion: int, ends: bool) -> None:
    data = "\n".join(["i,s,d,t", *lines]).encode() + (b"\n" if ends else b"")
    good, bad = _portioned(data, Delimited(), frame_of(SCHEMA), block, portion)
    kept = {"1": 1, "2": 2, "3": 3, "4": 4, "5": 5}
    assert [row[0] for row in good] == [kept[line[0]] for line in lines if line in GOOD and line]
    told = [text.rstrip("\r") for _, text in bad]
    assert told == [line for line in lines if line in BAD]
    offset = len("i,s,d,t\n")
    places = []
    for line in lines:
        places += [offset] if line in BAD else []
        offset += len(line.encode()) + 1
    assert [place for place, _ in bad] == places


def _portioned(data: bytes, chosen: Delimited, frame: Any, block: int, portion: int) -> tuple[Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "PORTION_BYTES", portion)
        good, bad = read_blocks(data, chosen, frame, block_bytes=block)
    return good, sorted(bad, key=lambda one: one[0] or 0)


def test_values_are_typed_as_the_table_has_them() -> None:
    data = b"t,d,s,i\n2026-01-02 03:04:05,12.5,text,7\n,,,\n"
    good, bad = read_blocks(data, Delimited(), frame_of(SCHEMA))
    assert good == [(7, "text", Decimal("12.50"), dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)), (None,) * 4]
    assert bad == []


def test_quoted_line_breaks_are_read_where_they_are_announced() -> None:
    data = b'i,s\n1,"a\nb"\n2,"c""\n\n"\nx,"d\n"\n'
    frame = frame_of(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    assert read_blocks(data, Delimited(multiline=True), frame, block_bytes=3) == (
        [(1, "a\nb"), (2, 'c"\n\n')],
        [(data.index(b"x,"), 'x,"d\n"')],
    )
    good, bad = read_blocks(data, Delimited(), frame)
    assert (good, [text for _, text in bad]) == ([], ['1,"a\nb"', '2,"c""\n\n"', 'x,"d\n"'])


def test_options_are_heeded() -> None:
    frame = frame_of(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    plain = Delimited(header=False, names=("i", "s"), delimiter=";", quote="'", null=("-", "NA"), encoding="latin-1")
    data = "1;'é;'\n2;-\n-;'NA'\n".encode("latin-1")
    assert read_blocks(data, plain, frame, block_bytes=4) == ([(1, "é;"), (2, None), (None, "NA")], [])
    escaped = Delimited(escape="\\")
    assert read_blocks(b'i,s\n1,"a\\"b"\n', escaped, frame) == ([(1, 'a"b')], [])
    unquoted = Delimited(quote=None)
    assert read_blocks(b'i,s\n1,"a\n', unquoted, frame) == ([(1, '"a')], [])


@pytest.mark.parametrize("block", [1, 2, 3, 9, 100])
def test_a_header_is_no_record_wherever_blocks_are_cut(block: int) -> None:
    frame = frame_of(pa.schema([("i", pa.int64()), ("s", pa.string())]))
    data = b"\xef\xbb\xbfi,s\n1,a\n2,b"
    assert read_blocks(data, Delimited(), frame, block_bytes=block) == ([(1, "a"), (2, "b")], [])
    bare = Delimited(header=False, names=("i", "s"))
    assert read_blocks(b"\xef\xbb\xbf1,a\n2,b", bare, frame, block_bytes=block) == ([(1, "a"), (2, "b")], [])


def test_the_reason_names_the_column() -> None:
    data = b"i,s,other,d\n1,a,b,c\n"
    file = SourceFile("f", len(data), "t", 0)
    chosen = Delimited()
    peek = chosen.peek(pa.BufferReader(data), file)
    frame = frame_of(pa.schema([("i", pa.int64()), ("d", pa.decimal128(4, 1))]))
    (parsed,) = chosen.parsed(pa.BufferReader(data), Piece(file, 0, 1, 0, len(data), peek), frame)
    assert [reason for _, reason in parsed.unread] == ["column 'd': The string 'c' is not a valid decimal128 number"]


def test_what_is_beside_the_tables_columns_is_rescued() -> None:
    frame = frame_of(pa.schema([("i", pa.int64()), ("rest", pa.string())]), rescued="rest")
    data = b'i,a,b\n1,"x",\n2,,\n'
    assert read_blocks(data, Delimited(), frame) == ([(1, '{"a":"x"}'), (2, None)], [])


def test_empty_files_have_no_columns() -> None:
    for data in (b"", b"\n\n", b"\xef\xbb\xbf"):
        peek = Delimited().peek(pa.BufferReader(data), SourceFile("f", len(data), "t", 0))
        assert peek.names == ()


def test_a_header_that_is_none_is_told() -> None:
    with pytest.raises(FileUnreadableError, match="its header is not a line of CSV"):
        Delimited().peek(pa.BufferReader(b"\xff,b\n"), SourceFile("f", 5, "t", 0))


def test_records_are_counted() -> None:
    for data, count in ((b"", 0), (b"i\n", 0), (b"i\n1\n\n2", 2)):
        assert Delimited().count(pa.BufferReader(data), SourceFile("f", len(data), "t", 0)) == count
