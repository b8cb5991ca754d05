"""Partitions, buckets and keys: as values, and in JSON.

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
from lakemerge.errors import TableDamagedError
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
"""A key as a tuple that sorts in key order. All integer-like types are integers: dates are days, timestamps are
microseconds, decimals of up to 18 digits are unscaled."""

KeyKinds = tuple[type, ...]
"""The Python types of the values of a table's keys. Keys of other types cannot be compared with them."""


class BucketId(NamedTuple):
    """A bucket. It is a tuple for speed: plans look up buckets by the hundred thousand."""

    partition: Partition
    bucket: int


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys with ``low <= key < high``, compared as tuples. So a bound with fewer values than a key is before all keys
    that begin with it. A bound with more values than a key is just after the key with which it begins."""

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

        :param least: the known first values of the rows' smallest key; empty if none is known.
        :param greatest: the same for the largest key.
        """
        if self.high is not None and least >= self.high:
            return False
        return self.low is None or greatest >= self.low[: len(greatest)]


def key_to_json(key: Key) -> list[object]:
    return [
        {"b64": base64.b64encode(value).decode()}
        if isinstance(value, bytes)
        else {"dec": format(value, "f")}
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
    raise TypeError(f"{value!r} is not a key")


def key_kinds(columns: Iterable[pa.Field]) -> KeyKinds:
    """The kinds of the keys that :func:`keys_at` gives for these columns."""
    return tuple(_kind(column.type) for column in columns)


def _kind(kind: pa.DataType) -> type:
    if plain_integers(pa.array([], kind)) is not None:
        return int
    if pa.types.is_decimal(kind):
        return decimal.Decimal
    return str if pa.types.is_string(kind) or pa.types.is_large_string(kind) else bytes


def check_kinds(key: Key | None, kinds: KeyKinds) -> None:
    """Raises :class:`TypeError` if a key is not of these kinds, and so cannot be compared with the table's keys."""
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
    raise TableDamagedError(
        f"a key column of a stored file holds {value!r}, which is not a key. Run `lakemerge check`, which names the "
        "file"
    )


class SoughtKeys:
    """The keys of a look-up, ascending: as columns, and as tuples once these are needed."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = tuple(columns)

    @cached_property
    def keys(self) -> list[Key]:
        return keys_at(self.columns, range(len(self.columns[0])))
