"""Records in blocks: every record once and in order, whatever the blocks' and portions' size."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge.ingest.formats import lines as module
from lakemerge.ingest.formats.lines import Lines, Quoting, cut_block, cut_stream
from lakemerge.ingest.source import FileUnreadableError

DATA = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"\r\n", b"", b"\xc3\xa9"]), max_size=12).map(b"".join)


def records(data: bytes) -> list[tuple[int, bytes]]:
    """By hand: what lies between line feeds, without a carriage return at its end; empty lines are none."""
    found, offset = [], 0
    for line in data.split(b"\n"):
        text = line[:-1] if line.endswith(b"\r") else line
        if text:
            found.append((offset, text))
        offset += len(line) + 1
    return found


def told(portions: list[Lines]) -> list[tuple[int, bytes]]:
    return [pair for lines in portions for pair in zip(lines.offsets.tolist(), lines, strict=True)]


@settings(deadline=None)
@given(DATA, st.integers(1, 9), st.integers(1, 9))
def test_any_block_size_gives_the_same_records_in_the_same_order(data: bytes, block: int, portion: int) -> None:
    found: list[tuple[int, bytes]] = []
    for start in range(0, max(1, len(data)), block):
        file, end = pa.BufferReader(data), min(start + block, len(data))
        found += told(list(cut_block(file, start, end, size=len(data), portion_bytes=portion)))
    assert found == records(data)


@settings(deadline=None)
@given(DATA, st.integers(1, 9))
def test_a_stream_gives_the_same_records(data: bytes, portion: int) -> None:
    assert told(list(cut_stream(pa.BufferReader(data), portion_bytes=portion))) == records(data)


@pytest.mark.parametrize("cut", range(1, 21))
def test_a_record_belongs_to_the_block_that_holds_the_byte_before_it(cut: int) -> None:
    data = b"first\nsecond\nthird\n\n"
    file = pa.BufferReader(data)
    first = told(list(cut_block(file, 0, cut, size=len(data))))
    rest = told(list(cut_block(file, cut, len(data), size=len(data))))
    assert first + rest == records(data)
    assert [offset for offset, _ in first] == [o for o, _ in records(data) if o == 0 or o - 1 < cut]


def test_a_quoted_line_feed_ends_no_record() -> None:
    data = b'1,"a\nb"\n2,"c""\n"\n3,d\n'
    for portion in (1, 3, 100):
        quoting = Quoting('"', None)
        found = told(list(cut_stream(pa.BufferReader(data), quoting=quoting, portion_bytes=portion)))
        assert [text for _, text in found] == [b'1,"a\nb"', b'2,"c""\n"', b"3,d"]
    escaped = b'1,"a\\"\nb"\n2,c\n'
    found = told(list(cut_stream(pa.BufferReader(escaped), quoting=Quoting('"', "\\"))))
    assert [text for _, text in found] == [b'1,"a\\"\nb"', b"2,c"]


def test_a_part_of_lines_knows_its_place() -> None:
    lines = Lines(b"a\nbb\n\nccc\n", 100)
    part = lines.part(1, 3)
    assert (list(part), part.offsets.tolist(), part.offset_of(1)) == ([b"bb", b"ccc"], [102, 106], 106)
    assert list(lines.part(1, 1)) == []


def test_a_record_without_an_end_is_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 50)
    data = b"x" * 200
    with pytest.raises(FileUnreadableError, match="the record at byte 0 has more than 50 bytes"):
        list(cut_block(pa.BufferReader(data), 0, 200, size=200, portion_bytes=10))
    with pytest.raises(FileUnreadableError, match="another format, compressed"):
        list(cut_stream(pa.BufferReader(data), portion_bytes=10))


def test_a_compressed_stream_is_read_in_portions() -> None:
    data = b"".join(b"line %d\n" % number for number in range(10_000))
    packed = gzip.compress(data[:50_000]) + gzip.compress(data[50_000:])
    stream = pa.CompressedInputStream(pa.BufferReader(packed), "gzip")
    portions = list(cut_stream(stream, portion_bytes=4096))
    assert told(portions) == records(data)
    assert len(portions) > 10
