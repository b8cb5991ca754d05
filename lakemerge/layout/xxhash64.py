"""Spark's ``xxhash64`` over Arrow columns, vectorised: the function that assigns keys to buckets.

XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) with seed 42, chained: the
hash of one column is the seed of the next, and a null leaves the seed as it is. Booleans, integers
up to 32 bits and dates hash as 4 bytes, 64-bit integers and timestamps as 8, decimals of up to 18
digits as the 8 bytes of their unscaled value. Wider decimals hash as the shortest big-endian two's complement of their
unscaled value, strings and binaries as their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.errors import SchemaError
from mergers.portions import is_large
from mergers.type_names import type_name

__all__ = ["buckets", "hash_columns", "is_hashable"]

_U64 = npt.NDArray[np.uint64]
_Column: TypeAlias = pa.Array | pa.ChunkedArray

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p)
    for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_BLOCK_ROWS = 1 << 14
"""How many rows are hashed at a time. The temporaries of so many rows stay in the processor's cache."""


def hash_columns(columns: Sequence[_Column]) -> npt.NDArray[np.int64]:
    """``xxhash64(columns...)`` of each row. The columns have equal lengths and canonical types.

    Raises :class:`SchemaError` for a type that cannot be a key: floats, nested types, and types
    that are not canonical (see :mod:`lakemerge.schema.schema`). Time is in proportion to rows and bytes,
    plus one step per 32 bytes of the longest value in a block.
    """
    if not columns:
        raise SchemaError("a key needs at least one column")
    if any(isinstance(column, pa.ChunkedArray) for column in columns):
        table = pa.table(list(columns), names=[str(place) for place in range(len(columns))])
        if is_large(table):
            hashed = [hash_columns(batch.columns) for batch in table.to_batches()]
            return np.concatenate([np.empty(0, dtype=np.int64), *hashed])
    arrays = [_contiguous(column) for column in columns]
    rows = len(arrays[0])
    hashes = np.full(rows, _SEED, dtype=np.uint64)
    for array in arrays:
        _check_type(array.type)
        for start in range(0, rows, _BLOCK_ROWS):
            block = array.slice(start, _BLOCK_ROWS)
            seeds = hashes[start : start + len(block)]
            result = _hash_array(block, seeds)
            if block.null_count:
                np.copyto(seeds, result, where=block.is_valid().to_numpy(zero_copy_only=False))
            else:
                seeds[:] = result
    return hashes.view(np.int64)


def buckets(columns: Sequence[_Column], n: int) -> npt.NDArray[np.int32]:
    """``pmod(xxhash64(columns...), n)`` of each row, for ``n >= 1``."""
    return np.mod(hash_columns(columns), np.int64(n)).astype(np.int32)


def _contiguous(column: _Column) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    # All chunks of a column may hold more bytes than 32-bit offsets can address.
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return column.cast(wide.get(column.type, column.type)).combine_chunks()


def is_hashable(kind: pa.DataType) -> bool:
    """Whether :func:`hash_columns` takes the type."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
        or pa.types.is_decimal128(kind)
        or _is_bytes(kind)
    )


def _check_type(kind: pa.DataType) -> None:
    if not is_hashable(kind):
        raise SchemaError(f"a key column cannot be of type {type_name(kind)}", type=str(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _hash_array(array: pa.Array, seeds: _U64) -> _U64:
    """Hashes of the values. The hash of a null row is undefined."""
    kind = array.type
    if _is_bytes(kind):
        offset_type = np.int64 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else np.int32
        offsets = _buffer(array, 1, offset_type, extra=1).astype(np.int64)
        return _hash_bytes(_data(array.buffers()[2]), offsets[:-1], np.diff(offsets), seeds)
    if pa.types.is_boolean(kind):
        return _hash_int(array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64), seeds)
    if pa.types.is_decimal128(kind):
        words = _buffer(array, 1, np.uint64, width=2)
        if kind.precision <= 18:
            return _hash_long(words[0::2], seeds)
        return _hash_bytes(*_two_complement(words), seeds)
    if kind.bit_width == 64:
        return _hash_long(_buffer(array, 1, np.uint64), seeds)
    narrow = _buffer(array, 1, np.dtype(f"<i{kind.bit_width // 8}"))
    return _hash_int(narrow.astype(np.int32).view(np.uint32).astype(np.uint64), seeds)


def _buffer(array: pa.Array, index: int, dtype: Any, *, width: int = 1, extra: int = 0) -> npt.NDArray[Any]:
    """The array's own part of a fixed-width buffer: ``width`` items per row, and ``extra`` ones."""
    items: npt.NDArray[Any] = np.frombuffer(array.buffers()[index], dtype=dtype)
    return items[array.offset * width : (array.offset + len(array)) * width + extra]


def _data(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return np.frombuffer(buffer, dtype=np.uint8) if buffer is not None else np.empty(0, np.uint8)


def _two_complement(
    words: _U64,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Bytes, starts and lengths of the shortest big-endian form of 128-bit integers (low word first)."""
    octets = np.ascontiguousarray(words.view(np.uint8).reshape(-1, 16)[:, ::-1])
    sign = np.where(octets[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte can go if it repeats the sign and the byte after it still carries the sign bit.
    spare = (octets[:, :-1] == sign) & ((octets[:, 1:] >= 0x80) == (sign == 0xFF))
    dropped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts = np.arange(len(octets), dtype=np.int64) * 16 + dropped
    return octets.reshape(-1), starts, 16 - dropped


def _rotl(values: _U64, bits: int) -> _U64:
    left = values << np.uint64(bits)
    left |= values >> np.uint64(64 - bits)
    return left


def _round(accumulator: _U64, lane: _U64) -> _U64:
    mixed = lane * _P2
    mixed += accumulator
    mixed = _rotl(mixed, 31)
    mixed *= _P1
    return mixed


def _step_long(hashes: _U64, lane: _U64) -> _U64:
    mixed = lane * _P2
    mixed = _rotl(mixed, 31)
    mixed *= _P1
    mixed ^= hashes
    mixed = _rotl(mixed, 27)
    mixed *= _P1
    mixed += _P4
    return mixed


def _step_int(hashes: _U64, lane: _U64) -> _U64:
    mixed = lane * _P1
    mixed ^= hashes
    mixed = _rotl(mixed, 23)
    mixed *= _P2
    mixed += _P3
    return mixed


def _step_byte(hashes: _U64, lane: _U64) -> _U64:
    mixed = lane * _P5
    mixed ^= hashes
    mixed = _rotl(mixed, 11)
    mixed *= _P1
    return mixed


def _avalanche(hashes: _U64) -> _U64:
    hashes ^= hashes >> np.uint64(33)
    hashes *= _P2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _P3
    hashes ^= hashes >> np.uint64(32)
    return hashes


def _hash_int(values: _U64, seeds: _U64) -> _U64:
    return _avalanche(_step_int(seeds + (_P5 + np.uint64(4)), values))


def _hash_long(values: _U64, seeds: _U64) -> _U64:
    return _avalanche(_step_long(seeds + (_P5 + np.uint64(8)), values))


def _hash_bytes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], seeds: _U64
) -> _U64:
    """XXH64 of ``data[start : start + length]`` for each row, each with its own seed.

    Rows are sorted by their number of 32-byte stripes, largest first. So the rows that still have a stripe are always
    at the front. The tail (words, then half a word, then bytes) selects rows by position.
    """
    if not len(starts):
        return np.empty(0, np.uint64)
    order = None
    if lengths.min() >> 5 != lengths.max() >> 5:
        order = np.argsort(-(lengths >> 5), kind="stable")
        starts, lengths, seeds = starts[order], lengths[order], seeds[order]
    hashes = _stripes(data, starts, lengths >> 5, seeds)
    hashes += lengths.astype(np.uint64)
    at = starts + (lengths & ~np.int64(31))
    for count, width, step in ((3, 8, _step_long), (1, 4, _step_int), (3, 1, _step_byte)):
        parts = (lengths & (width * (count + 1) - 1)) // width
        for done in range(count):
            rows = np.flatnonzero(parts > done)
            if len(rows) == len(parts):
                hashes = step(hashes, _load(data, at, width))
                at = at + width
            elif len(rows):
                hashes[rows] = step(hashes[rows], _load(data, at[rows], width))
                at[rows] += width
    hashes = _avalanche(hashes)
    if order is None:
        return hashes
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def _stripes(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stripes: npt.NDArray[np.int64], seeds: _U64
) -> _U64:
    """The state after all whole stripes, before the length is added; ``stripes`` never rises."""
    hashes = seeds + _P5
    active = int(np.searchsorted(-stripes, 0))
    if not active:
        return hashes
    seed = seeds[:active]
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    for done in range(int(stripes[0])):
        rows = int(np.searchsorted(-stripes, -done))
        for index, lane in enumerate(lanes):
            lane[:rows] = _round(lane[:rows], _load(data, starts[:rows] + (32 * done + 8 * index), 8))
    merged = _rotl(lanes[0], 1) + _rotl(lanes[1], 7) + _rotl(lanes[2], 12) + _rotl(lanes[3], 18)
    for lane in lanes:
        merged ^= _round(np.zeros_like(lane), lane)
        merged *= _P1
        merged += _P4
    hashes[:active] = merged
    return hashes


def _load(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], width: int) -> _U64:
    """Little-endian unsigned integers of ``width`` bytes at the byte positions ``at``, all inside ``data``."""
    if width == 1:
        return data[at].astype(np.uint64)
    # One item per byte position: overlapping, unaligned, never copied whole.
    every = np.ndarray((len(data) - width + 1,), dtype=f"<u{width}", buffer=data, strides=(1,))
    return every[at].astype(np.uint64, copy=False)
