"""The hash function against constants that Spark 4.2 printed, and against the reference implementation."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from lakemerge.errors import SchemaError
from lakemerge.layout.xxhash64 import buckets, hash_columns

EVENING = dt.datetime(1969, 7, 20, 20, 17, 40, 123456, tzinfo=dt.UTC)


def column(values: list[Any], kind: Any) -> Any:
    return pa.array(values, kind)


# SELECT xxhash64(<value>)
SPARK: list[tuple[Any, Any, int]] = [
    (True, pa.bool_(), -6698625589789238999),
    (-128, pa.int8(), 4160238337661960656),
    (-32768, pa.int16(), -904511417458573795),
    (-(2**31), pa.int32(), 2073849959933241805),
    (1, pa.int32(), -6698625589789238999),
    (-(2**63), pa.int64(), -8619748838626508300),
    (1, pa.int64(), -7001672635703045582),
    (Decimal("-1.23"), pa.decimal128(5, 2), -2573642654262063070),
    (1 - 10**38, pa.decimal128(38, 0), -2254039905620870768),
    (128, pa.decimal128(19, 0), 6715097930120473301),
    (-128, pa.decimal128(19, 0), -7898411661632158123),
    (0, pa.decimal128(19, 0), -8959994473701255385),
    ("", pa.string(), -7444071767201028348),
    ("a", pa.string(), -8582455328737087284),
    ("漢字かな", pa.string(), -5681645522336954085),
    ("abcdefg" * 9, pa.string(), 5800098253713970801),
    (b"", pa.binary(), -7444071767201028348),
    (b"\x00\xff\x80", pa.binary(), 7869338589911211550),
    (dt.date(1969, 7, 20), pa.date32(), 4358245511639172990),
    (EVENING, pa.timestamp("us", "UTC"), -1468737314347669162),
    (EVENING.replace(tzinfo=None), pa.timestamp("us"), -1468737314347669162),
    (None, pa.int32(), 42),
]


@pytest.mark.parametrize(("value", "kind", "expected"), SPARK)
def test_constants_from_spark(value: Any, kind: Any, expected: int) -> None:
    assert hash_columns([column([value, None, value], kind)]).tolist() == [expected, 42, expected]
    # A bucket starts inside its buffers.
    assert hash_columns([column([None, None, value], kind).slice(1)]).tolist() == [42, expected]


def test_columns_are_chained_and_nulls_leave_the_seed() -> None:
    # SELECT xxhash64(7, 'key', null, 9L)
    columns = [column([value], kind) for value, kind in zip([7, "key", None, 9], KINDS, strict=True)]
    assert hash_columns(columns).tolist() == [-2965047886886529914]


KINDS = [pa.int32(), pa.string(), pa.date32(), pa.int64()]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_byte_strings_of_every_length_against_the_reference(kind: Any) -> None:
    source = random.Random(3)
    texts = ["".join(source.choices("abcdefgh", k=n)) for n in [*range(130), 1000, 4097] * 2]
    source.shuffle(texts)
    first = [_reference(text.encode(), 42) for text in texts]
    chained = [_reference(text.encode(), seed % 2**64) for text, seed in zip(texts, first, strict=True)]
    keys = column(texts, kind)
    assert hash_columns([keys]).tolist() == first
    assert hash_columns([keys, keys]).tolist() == chained


def _reference(data: bytes, seed: int) -> int:
    unsigned = xxhash.xxh64_intdigest(data, seed)
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def test_wide_decimals_hash_as_javas_shortest_bytes() -> None:
    source = random.Random(5)
    edges = [sign * 2**bits + step for bits in range(126) for sign in (1, -1) for step in (-1, 0, 1)]
    values = [*edges, *(source.randint(-(10**38) + 1, 10**38 - 1) for _ in range(500))]
    # BigInteger.toByteArray: the sign bit, the value, and nothing before them.
    as_java = [
        value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True) for value in values
    ]
    found = hash_columns([column([Decimal(value) for value in values], pa.decimal128(38, 0))])
    assert found.tolist() == [_reference(data, 42) for data in as_java]


def test_rows_beyond_one_block_and_chunks() -> None:
    numbers = np.arange(-20_000, 20_000, dtype=np.int64)
    texts = [str(number) if number % 7 else None for number in numbers.tolist()]
    whole = hash_columns([pa.array(numbers), column(texts, pa.string())])
    chunked_numbers: Any = pa.chunked_array([pa.array(numbers[:5]), pa.array(numbers[5:])])
    chunked_texts: Any = pa.chunked_array([column(texts[:19_000], pa.string()), column(texts[19_000:], pa.string())])
    np.testing.assert_array_equal(hash_columns([chunked_numbers, chunked_texts]), whole)
    alone = hash_columns([pa.array(numbers)])
    first = [_reference(int(n).to_bytes(8, "little", signed=True), 42) for n in numbers[:100]]
    assert alone[:100].tolist() == first
    expected = [_step(text, seed) for text, seed in zip(texts, alone.tolist(), strict=True)]
    assert whole.tolist() == expected


def _step(text: str | None, seed: int) -> int:
    return seed if text is None else _reference(text.encode(), seed % 2**64)


def test_no_rows_and_all_null() -> None:
    for kind in (pa.int8(), pa.string(), pa.bool_(), pa.decimal128(38, 0), pa.decimal128(5, 0), pa.date32()):
        assert hash_columns([column([], kind)]).tolist() == []
        assert hash_columns([pa.chunked_array([], kind)]).tolist() == []
        assert hash_columns([column([None, None], kind)]).tolist() == [42, 42]
    assert buckets([column([], pa.int8())], 4).dtype == np.int32


@pytest.mark.parametrize("n", [1, 3, 16, 1 << 20])
def test_buckets_are_never_negative(n: int) -> None:
    hashes = hash_columns([pa.array(range(1000), pa.int32())])
    assert (hashes < 0).any()
    # Python's remainder has the sign of the divisor, as pmod's.
    assert buckets([pa.array(range(1000), pa.int32())], n).tolist() == [value % n for value in hashes.tolist()]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int8()), pa.uint32(), pa.timestamp("ms"), pa.string_view()])
def test_types_that_are_no_keys(kind: Any) -> None:
    with pytest.raises(SchemaError, match="cannot be of type"):
        hash_columns([pa.nulls(1, kind)])
    with pytest.raises(SchemaError):
        hash_columns([])
