"""Hashes of values of any type. They show whether the content of the output has changed.

Equal values have equal hashes: numbers of any type, structs whatever the order and the case of their fields and with or
without null fields, and maps whatever the order of their entries. So a column that becomes wider, or a new column of
nulls, changes no hash.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.merge_source.nested_arrays import contiguous, offsets_of, spread
from lakemerge.merge_source.value_texts import number_texts

__all__ = ["Hashes", "hash_rows", "hash_values"]

Hashes = npt.NDArray[np.uint64]

_PLACE = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0x2545F4914F6CDD1D)
_LONG = 2.0**63


def hash_rows(rows: pa.Table) -> Hashes:
    """One hash for each row, from the columns that are not null and their names."""
    total = np.zeros(rows.num_rows, dtype=np.uint64)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        total += _named(name, contiguous(column))
    return _mixed(total)


def hash_values(values: pa.Array) -> Hashes:
    """One hash for each value."""
    hashes = _hashes(values)
    if values.null_count:
        hashes = np.where(values.is_valid().to_numpy(zero_copy_only=False), hashes, _NULL)
    return hashes


def _hashes(values: pa.Array) -> Hashes:
    kind = values.type
    if pa.types.is_struct(kind):
        total = np.zeros(len(values), dtype=np.uint64)
        for field, child in zip(kind, values.flatten(), strict=True):
            total += _named(field.name, child)
        return _mixed(total)
    if pa.types.is_map(kind):
        return _of_lists(values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))), ordered=False)
    if pa.types.is_list(kind):
        return _of_lists(values)
    if pa.types.is_floating(kind):
        return _of_doubles(values.cast(pa.float64()))
    if pa.types.is_decimal(kind):
        return _of_decimals(values)
    if pa.types.is_integer(kind):
        return _scalars(values.cast(pa.int64()))
    return _scalars(values)


def _named(name: str, values: pa.Array) -> Hashes:
    """What a column or field adds to the hash of its row; a null adds nothing."""
    own = _scalars(pa.array([name.lower()]))[0]
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(there, _mixed(hash_values(values) ^ own), np.uint64(0))


def _of_lists(values: pa.Array, *, ordered: bool = True) -> Hashes:
    offsets = offsets_of(values)
    counts = np.diff(offsets)
    _, place = spread(counts if ordered else np.ones(int(offsets[-1]), dtype=np.int64))
    elements = _mixed(hash_values(pc.list_flatten(values)) + (place.astype(np.uint64) + np.uint64(1)) * _PLACE)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(elements, dtype=np.uint64)])
    return _mixed(sums[offsets[1:]] - sums[offsets[:-1]] + counts.astype(np.uint64) * _PLACE)


def _of_doubles(values: pa.Array) -> Hashes:
    """Hashes of doubles. A whole number is hashed as an integer."""
    given = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    whole = (np.floor(given) == given) & (np.abs(given) < _LONG)
    as_integer = np.where(whole, given, 0.0).astype(np.int64)
    bits = np.where(np.isnan(given), np.nan, given).view(np.int64)
    return _scalars(pa.array(np.where(whole, as_integer, bits)))


def _of_decimals(values: pa.Array) -> Hashes:
    """Hashes of decimals. A whole number is hashed as an integer: a column may become a decimal."""
    texts = number_texts(values)
    whole = pc.fill_null(pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$"), False)
    as_integer = _scalars(pc.if_else(whole, texts, "0").cast(pa.int64()))
    return np.where(whole.to_numpy(zero_copy_only=False), as_integer, _scalars(texts))


def _scalars(values: pa.Array) -> Hashes:
    hashes: Hashes = hash_columns([values]).view(np.uint64)
    return hashes


def _mixed(values: Hashes) -> Hashes:
    """The finish of SplitMix64, so that sums of hashes are hashes again."""
    mixed = values + _PLACE
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
