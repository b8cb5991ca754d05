"""Partitions, buckets and keys as values, and as they stand in JSON.

Source: docs/table-format.md, sections 2 and 3.
"""

from __future__ import annotations

import base64
import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from lakemerge._internal.cached import cached_property
from mergers.ordering import plain_integers

__all__ = [
    "BucketId",
    "Key",
    "KeyKinds",
    "KeySpan",
    "Partition",
    "SoughtKeys",
    "check_kinds",
    "key_from_json",
    "key_kinds",
    "key_to_json",
    "keys_at",
]

Partition = tuple[str | None, ...]
"""Partition values in the order of the partition columns, as Delta serialises them."""

Key = tuple[int | str | bytes | decimal.Decimal, ...]
"""A key as comparable values in key order: integers for all integer-like types (dates in days,
timestamps in microseconds, decimals of up to 18 digits unscaled)."""

KeyKinds = tuple[type, ...]
"""The types of a table's keys, value by value: keys of other types cannot be compared with them."""


class BucketId(NamedTuple):
    """A tuple, since plans look buckets up by the hundred thousand."""

    partition: Partition
    bucket: int


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys with ``low <= key < high``, as tuples compare: a bound that names the first columns only stands before
    all keys that begin with it, one that is longer than a key just after the key that it begins with."""

    low: Key | None
    """``None``: open."""
    high: Key | None
    """``None``: open."""

    @staticmethod
    def closed(first: Key, last: Key) -> KeySpan:
        """From one key to another, both included."""
        return KeySpan(first, (*last, 0))

    def may_hold(self, least: Key, greatest: Key) -> bool:
        """Whether a key of some rows may be in the span.

        :param least: what the rows' smallest key begins with, as far as that is known; maybe nothing.
        :param greatest: the same of the largest.
        """
        if self.high is not None and least >= self.high:
            return False
        return self.low is None or greatest >= self.low[: len(greatest)]


def key_to_json(key: Key) -> list[object]:
    return [
        {"b64": base64.b64encode(value).decode()}
        if isinstance(value, bytes)
        else {"dec": str(value)}
        if isinstance(value, decimal.Decimal)
        else value
        for value in key
    ]


def key_from_json(body: object) -> Key:
    if not isinstance(body, list):
        raise TypeError(f"a key must be a list, not {body!r}")
    return tuple(_value_from_json(value) for value in body)


def _value_from_json(value: object) -> int | str | bytes | decimal.Decimal:
    if isinstance(value, Mapping) and set(value) == {"b64"}:
        return base64.b64decode(value["b64"])
    if isinstance(value, Mapping) and set(value) == {"dec"}:
        return decimal.Decimal(value["dec"])
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise TypeError(f"not a key value: {value!r}")


def key_kinds(columns: Iterable[pa.Field]) -> KeyKinds:
    """The kinds of keys in these columns, as :func:`keys_at` gives them."""
    return tuple(_kind(column.type) for column in columns)


def _kind(kind: pa.DataType) -> type:
    if plain_integers(pa.array([], kind)) is not None:
        return int
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    return str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else bytes


def check_kinds(key: Key | None, kinds: KeyKinds) -> None:
    """Raises :class:`TypeError` where a key is none of these kinds, and so cannot be compared with the table's."""
    if key is not None and tuple(map(type, key)) != kinds:
        raise TypeError(f"the table has no such keys: {key!r}")


def keys_at(columns: Sequence[pa.Array], positions: Sequence[int]) -> list[Key]:
    """The keys at a few positions of key columns (contiguous arrays without nulls)."""
    picked = [column.take(pa.array(positions, type=pa.int64())) for column in columns]
    values: list[Sequence[object]] = []
    for column in picked:
        plain = plain_integers(column)
        values.append(column.to_pylist() if plain is None else plain.tolist())
    return [tuple(_checked(value) for value in row) for row in zip(*values, strict=True)]


def _checked(value: object) -> int | str | bytes | decimal.Decimal:
    if isinstance(value, int | str | bytes | decimal.Decimal):
        return value
    raise TypeError(f"not a key value: {value!r}")


class SoughtKeys:
    """Keys that a look-up asks for, ascending: as columns, and, once somebody needs them, as tuples."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = tuple(columns)

    @cached_property
    def keys(self) -> list[Key]:
        return keys_at(self.columns, range(len(self.columns[0])))
