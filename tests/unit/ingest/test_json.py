"""JSON lines: what Arrow reads at once is what is read line by line, and both are what the lines say."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemerge.ingest.formats import json_lines as module
from lakemerge.ingest.formats.json_lines import JsonLines
from lakemerge.ingest.formats.lines import Lines
from tests.unit.ingest.landing import frame_of, read_blocks

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("t", UTC),
        ("w", pa.timestamp("us")),
        ("a", pa.date32()),
    ]
)
TEXTS = ["1", "-0", "1.0", "1.50", "1e3", "0.1", '"1"', '"x"', "true", "null", '"2020-01-02"', '"2020-01-02T03:04:05Z"']
TEXTS += ['"2020-01-02 03:04:05.5"', "99999999999999999999", "1e400", '{"a":1.50}', "[1]", '"}x"', '"\\u00e9"', "NaN"]
TEXTS += ['"Infinity"', "9007199254740993", "12345678901.25", '"\\ud800"', '"a\\nb"', '"{"']
FIELDS = st.dictionaries(st.sampled_from([*SCHEMA.names, "I", "zz"]), st.sampled_from(TEXTS), max_size=4)
LINES = st.one_of(
    FIELDS.map(lambda fields: "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"),
    st.sampled_from(["", "  ", "null", "[1]", "5", '{"i":1} {"i":2}', '{"i":1}null', '{"i":1', '{"i":1,"i":2}', "{}"]),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_arrow_reads_nothing_otherwise(lines: list[str], ignores: bool, ends: bool) -> None:
    data = ("\n".join(lines) + ("\n" if ends else "")).encode()
    frame = frame_of(SCHEMA, ignores=ignores)
    fast_schema = module._fast_schema(frame)
    assert fast_schema is not None
    fast = module._by_arrow(Lines(data, 7), frame, fast_schema)
    slow = JsonLines()._by_line(Lines(data, 7), frame)
    if fast is not None:
        assert repr(fast.rows.to_pylist()) == repr(slow.rows.to_pylist())
        assert (fast.problems.keys(), slow.unread) == (slow.problems.keys(), ())
        assert [fast.origin(row) for row in range(len(fast.rows))] == [slow.origin(r) for r in range(len(slow.rows))]


def test_plain_lines_are_read_by_arrow() -> None:
    """Else the speed of the fast path is a promise nobody holds."""
    lines = [{"i": k, "f": k / 3, "d": 1.25, "s": 'a "text", ü {', "t": "2026-01-01T00:00:00Z"} for k in range(9)]
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    frame = frame_of(SCHEMA)
    schema = module._fast_schema(frame)
    assert schema is not None
    fast = module._by_arrow(Lines(data, 0), frame, schema)
    assert fast is not None
    assert fast.rows["i"].to_pylist() == list(range(9))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int64(), "7", 7),
        (pa.int64(), "7.0", 7),
        (pa.int64(), '" 7"', 7),
        (pa.int64(), "9007199254740993.0", 9007199254740993),
        (pa.int32(), "1e3", 1000),
        (pa.float64(), '"NaN"', "nan"),
        (pa.float64(), "3", 3.0),
        (pa.decimal128(38, 2), "123456789012345678901234567890.25", Decimal("123456789012345678901234567890.25")),
        (pa.decimal128(12, 2), '"1.5"', Decimal("1.50")),
        (pa.string(), "1.50", "1.50"),
        (pa.string(), '{"a":[1,2.50,null]}', '{"a":[1,2.50,null]}'),
        (pa.string(), "true", "true"),
        (pa.bool_(), '"TRUE"', True),
        (pa.date32(), '"2026-02-03"', dt.date(2026, 2, 3)),
        (UTC, '"2026-02-03T04:05:06+02:00"', dt.datetime(2026, 2, 3, 2, 5, 6, tzinfo=dt.UTC)),
        (UTC, '"2026-02-03"', dt.datetime(2026, 2, 3, tzinfo=dt.UTC)),
        (UTC, '"2026-02-03 04:05:06.1234560Z"', dt.datetime(2026, 2, 3, 4, 5, 6, 123456, tzinfo=dt.UTC)),
        (pa.timestamp("us"), '"2026-02-03T04:05:06"', dt.datetime(2026, 2, 3, 4, 5, 6)),  # noqa: DTZ001 - no zone
        (pa.binary(), '"YWI="', b"ab"),
        (pa.list_(pa.int64()), '[1,"2",null]', [1, 2, None]),
        (pa.map_(pa.string(), pa.int64()), '{"a":1}', [("a", 1)]),
        (pa.struct([("x", pa.int64()), ("y", pa.date32())]), '{"X":1}', {"x": 1, "y": None}),
        (pa.list_(pa.struct([("x", pa.decimal128(30, 2))])), '[{"x":1234567890123456.25}]', None),
    ],
)
def test_values_become_the_tables_types(kind: pa.DataType, text: str, value: object) -> None:
    good, bad = read_blocks(f'{{"c":{text}}}\n'.encode(), JsonLines(), frame_of(pa.schema([("c", kind)])))
    assert bad == []
    expected = value if value is not None else [{"x": Decimal("1234567890123456.25")}]
    found = good[0][0]
    assert (repr(found) if value == "nan" else found) == expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "7.5"),
        (pa.int64(), "true"),
        (pa.int32(), "3000000000"),
        (pa.float64(), "1e400"),
        (pa.decimal128(4, 2), "100"),
        (pa.decimal128(4, 2), "0.001"),
        (pa.bool_(), "1"),
        (pa.date32(), "18000"),
        (pa.date32(), '"2026-02-30"'),
        (UTC, "1700000000"),
        (UTC, '"2026-02-03T04:05:06.1234567Z"'),
        (pa.timestamp("us"), '"2026-02-03T04:05:06Z"'),
        (pa.binary(), '"no base64"'),
        (pa.list_(pa.int64()), "1"),
        (pa.list_(pa.int64()), '["x"]'),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), '{"x":null}'),
        (pa.struct([("x", pa.int64())]), '{"y":1}'),
        (pa.string(), '"\\ud800"'),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(kind: pa.DataType, text: str) -> None:
    data = f'{{"k":1}}\n{{"k":2,"c":{text}}}\n{{"k":3}}\n'.encode()
    good, bad = read_blocks(data, JsonLines(), frame_of(pa.schema([("k", pa.int64()), ("c", kind)])))
    assert [row[0] for row in good] == [1, 3]
    assert bad == [(8, f'{{"k":2,"c":{text}}}')]


def test_lines_that_are_no_objects_are_told() -> None:
    lines = ['{"i":1}', "null", "[]", '{"i":2', '{"i":3} {"i":4}', '{"i":5}\r', "", "\xff"]
    good, bad = read_blocks("\n".join(lines).encode("latin-1"), JsonLines(), frame_of(SCHEMA))
    assert [row[0] for row in good] == [1, 5]
    assert [text for _, text in bad] == ["null", "[]", '{"i":2', '{"i":3} {"i":4}', "\\xff"]


def test_the_line_that_ends_arrows_process_is_never_given_to_it() -> None:
    """pyarrow 26 crashes on a first line ``null``; where a later one does not any more, the guard costs nothing."""
    code = "from tests.unit.ingest.test_json import *; print(read_blocks(b'null\\n', JsonLines(), frame_of(SCHEMA)))"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=root)
    assert (done.returncode, done.stdout.strip()) == (0, "([], [(0, 'null')])")


def test_what_the_table_lacks_is_rescued_refused_or_left_out_knowingly() -> None:
    data = b'{"i":1,"x":1.50,"y":{"z":[2.10]}}\n{"i":2,"x":null}\n'
    rescuing = frame_of(pa.schema([("i", pa.int64()), ("rest", pa.string())]), rescued="rest")
    good, bad = read_blocks(data, JsonLines(), rescuing)
    assert [row[0] for row in good] == [1, 2]
    assert (json.loads(good[0][1]), good[1][1], bad) == ({"x": 1.5, "y": {"z": [2.1]}}, None, [])
    plain = pa.schema([("i", pa.int64())])
    assert read_blocks(data, JsonLines(), frame_of(plain)) == ([(2,)], [(0, '{"i":1,"x":1.50,"y":{"z":[2.10]}}')])
    assert read_blocks(data, JsonLines(), frame_of(plain, ignores=True)) == ([(1,), (2,)], [])


def test_a_field_of_the_rescued_columns_name_is_rescued() -> None:
    frame = frame_of(pa.schema([("i", pa.int64()), ("rest", pa.string())]), rescued="rest")
    good, _ = read_blocks(b'{"i":1,"rest":"own"}\n', JsonLines(), frame)
    assert good == [(1, '{"rest":"own"}')]


@pytest.mark.parametrize("block", [1, 5, 17, 64, 1000])
def test_any_block_size_gives_the_same_rows(block: int) -> None:
    data = b"\xef\xbb\xbf" + b"".join(b'{"i":%d,"s":"%s"}\n' % (k, b"x" * (k % 7)) for k in range(40))
    data += b'{"i":"bad"}\n{"i":99}'
    good, bad = read_blocks(data, JsonLines(), frame_of(SCHEMA), block_bytes=block)
    assert [row[0] for row in good] == [*range(40), 99]
    assert bad == [(data.index(b'{"i":"bad"}'), '{"i":"bad"}')]
