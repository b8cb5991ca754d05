"""Slices, base files and log blocks: what stands where, as values.

Source: docs/table-format.md, sections 2 and 3. A *slice* is (partition values, bucket); base files
tile its key space; log blocks are row groups of packed log files.
"""

from __future__ import annotations

import base64
import decimal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import pyarrow as pa

from lakemerge.cached import cached_property
from lakemerge.config import bucket_count, whole_number
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.log import AddFile
from lakemerge.storage.base import check_path
from mergers.ordering import plain_integers

__all__ = [
    "FILE_COLUMN",
    "INT32_LIMIT",
    "SLICE_TAG",
    "BaseFile",
    "Key",
    "KeyKinds",
    "KeySpan",
    "LogBlock",
    "LogFile",
    "Partition",
    "SliceId",
    "SoughtKeys",
    "check_kinds",
    "key_from_json",
    "key_kinds",
    "key_to_json",
    "keys_at",
    "optional_path",
    "stored_path",
]

SLICE_TAG = "lakemerge.slice"
INT32_LIMIT = 2**31
"""Ordinals of files and positions in them are INT32."""

FILE_COLUMN = "_lm_file"
"""Physical column of base and winner files that is not in the Delta schema: the file's ordinal, INT32."""

Partition = tuple[str | None, ...]
"""Partition values in the order of the partition columns, as Delta serialises them."""

Key = tuple[int | str | bytes | decimal.Decimal, ...]
"""A key as comparable values in key order: integers for all integer-like types (dates in days,
timestamps in microseconds, decimals of up to 18 digits unscaled)."""

KeyKinds = tuple[type, ...]
"""The types of a table's keys, value by value: keys of other types cannot be compared with them."""


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


class SoughtKeys:
    """Keys that a look-up asks for, ascending: as columns, and, once somebody needs them, as tuples."""

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = tuple(columns)

    @cached_property
    def keys(self) -> list[Key]:
        return keys_at(self.columns, range(len(self.columns[0])))


class SliceId(NamedTuple):
    """A tuple, since plans look slices up by the hundred thousand."""

    partition: Partition
    bucket: int


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A Delta ``add`` that holds merged rows of a slice, sorted by key, for keys >= ``lower``."""

    add: AddFile
    slice: SliceId
    buckets: int
    lower: Key | None
    """Smallest key this file is responsible for; ``None`` where its range is open below. The range
    ends where that of the slice's next file begins."""
    merged_through: int
    """Logs of versions up to and including this one are in the file."""
    ordinal: int
    """The value of ``_lm_file`` in the file."""
    rows: int
    tombstones: str | None
    """Path of the file's tombstones."""
    tombstone_bytes: int
    """Of that file."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Of the file and, where it has any, its tombstones."""
        return (self.add.path,) if self.tombstones is None else (self.add.path, self.tombstones)

    @staticmethod
    def tag(
        *,
        bucket: int,
        buckets: int,
        lower: Key | None,
        through: int,
        ordinal: int,
        rows: int,
        tombstones: str | None,
        tombstone_bytes: int = 0,
    ) -> str:
        """The value of :data:`SLICE_TAG`."""
        body: dict[str, object] = {
            "bucket": bucket,
            "buckets": buckets,
            "through": through,
            "ordinal": ordinal,
            "rows": rows,
        }
        if lower is not None:
            body["from"] = key_to_json(lower)
        if tombstones is not None:
            body |= {"tombstones": tombstones, "tombstoneBytes": tombstone_bytes}
        return orjson.dumps(body).decode()

    @staticmethod
    def of(add: AddFile, partition_by: Sequence[str]) -> BaseFile:
        """Read an ``add`` and its tag."""
        try:
            body = orjson.loads(add.tags[SLICE_TAG])
            partition = tuple(add.partition_values[name] for name in partition_by)
            buckets = bucket_count(body["buckets"])
            return BaseFile(
                add=add,
                slice=SliceId(partition, whole_number(body["bucket"], below=buckets)),
                buckets=buckets,
                lower=key_from_json(body["from"]) if "from" in body else None,
                merged_through=whole_number(body["through"]),
                ordinal=whole_number(body["ordinal"], below=INT32_LIMIT),
                rows=whole_number(body["rows"], below=INT32_LIMIT),
                tombstones=optional_path(body.get("tombstones")),
                tombstone_bytes=whole_number(body.get("tombstoneBytes", 0)),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(
                f"file {add.path!r} is in the table without a readable {SLICE_TAG!r} tag ({error!r}); another writer "
                "than LakeMerge must have added it",
                path=add.path,
            ) from error


@dataclass(frozen=True, slots=True)
class LogFile:
    """A packed log file: blocks of many slices, written by one task of one commit."""

    path: str
    size_bytes: int
    columns: tuple[str, ...]
    """The table columns that the file's records carry."""


@dataclass(frozen=True, slots=True)
class LogBlock:
    """Records of one slice in one log file: consecutive row groups, sorted by key, equal keys in
    arrival order."""

    file: LogFile
    first_row_group: int
    row_groups: int
    slice: SliceId
    buckets: int
    """The bucket count the block was written under."""
    rows: int
    data_bytes: int
    """Of the records as Arrow data."""
    key_min: Key | None
    """``None`` where the bound is not known."""
    key_max: Key | None
    version: int = -1
    """The commit's version; -1 while it is not committed. Of a packed block, the newest of its records."""
    packed_from: int | None = None
    """The oldest version of a packed block's records, each of which names its own: a log compaction made it
    of blocks of several commits. ``None`` for a block as it was committed."""

    @property
    def groups(self) -> range:
        """Its row groups, by their numbers in the file; the file may have fewer."""
        return range(self.first_row_group, self.first_row_group + self.row_groups)

    def covers(self, slice_id: SliceId, buckets: int) -> bool:
        """Whether the block may hold keys of a slice of a table with ``buckets`` buckets."""
        common = min(self.buckets, buckets)
        same = self.slice.bucket % common == slice_id.bucket % common
        return same and self.slice.partition == slice_id.partition


def stored_path(value: object) -> str:
    """A path in JSON; raises :class:`TypeError` or :class:`ValueError` for what is no clean path inside the table."""
    if not isinstance(value, str):
        raise TypeError(f"a path must be a string, not {value!r}")
    try:
        return check_path(value)
    except InputError as error:
        raise ValueError(error.message) from None


def optional_path(value: object) -> str | None:
    """As :func:`stored_path`, or null."""
    return None if value is None else stored_path(value)


def key_to_json(key: Key) -> list[object]:
    return [
        {"b64": base64.b64encode(value).decode()}
        if isinstance(value, bytes)
        else {"dec": str(value)}
        if isinstance(value, decimal.Decimal)
        else value
        for value in key
    ]


def key_kinds(columns: Iterable[pa.Field]) -> KeyKinds:
    """Of keys of these columns, as :func:`keys_at` gives them."""
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
