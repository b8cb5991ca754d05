"""CSV that is not what it seems: what Python, DuckDB and Spark agree on is read so; elsewhere one of them is right, or
the record is set aside as a whole. Nothing is invented, lost or doubled, wherever blocks are cut."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from lakemerge.ingest.formats.base import Piece
from lakemerge.ingest.formats.delimited import Delimited
from lakemerge.ingest.source import FileUnreadableError, SourceFile
from tests.unit.ingest.csv_cases import Case, answers, cases, python_rows, python_rows_of
from tests.unit.ingest.landing import frame_of

FRAME = frame_of(pa.schema([("x", pa.string()), ("y", pa.string())]))


class Read(NamedTuple):
    rows: list[tuple[str, ...]]
    taken: list[tuple[int, str]]
    """Where the records of the rows are, and their text."""
    aside: list[tuple[int, str]]


@cache
def read(case: Case, block: int) -> Read | None:
    """``None``: the file is refused."""
    data = case.text.encode()
    chosen = Delimited(
        names=("x", "y") if not case.header else (),
        header=case.header,
        delimiter=case.delimiter,
        quote=case.quote,
        escape=case.escape,
        multiline=case.multiline,
    )
    file = SourceFile("f", len(data), "t", 0)
    peek = chosen.peek(pa.BufferReader(data), file) if case.header else None
    size = block if chosen.splits("f") else len(data)
    found = Read([], [], [])
    try:
        for number, offset in enumerate(range(0, len(data), size)):
            piece = Piece(file, number, 1, offset, min(size, len(data) - offset), peek)
            for parsed in chosen.parsed(pa.BufferReader(data), piece, FRAME):
                assert not parsed.problems
                found.rows.extend(tuple(value or "" for value in row.values()) for row in parsed.rows.to_pylist())
                found.taken.extend((o.offset or 0, o.text) for o in map(parsed.origin, range(parsed.rows.num_rows)))
                found.aside.extend((origin.offset or 0, origin.text) for origin, _ in parsed.unread)
    except FileUnreadableError:
        return None
    return found


def test_what_three_readers_agree_on_is_read_and_nothing_is_invented() -> None:
    agreed = 0
    for case, told in zip(cases(), answers(), strict=True):
        found = read(case, len(case.text))
        assert found is not None
        own = python_rows(case)
        whole = [row for row in own if len(row) == 2]
        if whole == told["duckdb"] == told["spark"]:
            agreed += 1
            assert found.rows == whole, case
            assert bool(found.aside) <= (len(whole) < len(own)), case
        else:
            most: Counter[tuple[str, ...]] = Counter()
            for rows in (whole, told["duckdb"], told["spark"]):
                most |= Counter[tuple[str, ...]](rows)
            if not case.multiline:  # Spark divides a file at its line ends, and then reads each line
                most.update(row for line in case.text.splitlines() for row in python_rows_of(line, case))
            assert not Counter(found.rows) - most, (case, found, told, own)
    assert agreed > 300


def test_every_byte_is_in_one_record() -> None:
    for case in cases():
        found = read(case, len(case.text))
        assert found is not None
        left = case.text
        for offset, text in sorted(found.taken + found.aside, reverse=True):
            assert left[offset:].startswith(text), case
            left = left[:offset] + left[offset + len(text) :]
        left = left.removeprefix(f"x{case.delimiter}y") if case.header else left
        assert not left.strip("\r\n"), case


def test_blocks_change_no_record() -> None:
    chosen = random.Random(3)
    for case in cases():
        if not case.multiline:
            whole, part = read(case, len(case.text)), read(case, chosen.randint(1, 9))
            if part is not None:
                assert whole is not None
                assert part.rows == whole.rows, case
                assert sorted(part.aside) == sorted(whole.aside), case
