"""The keys that are erased: in their types, and as the texts that may stand for them elsewhere."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.cached import cached_property
from lakemerge.errors import InputError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Key, Partition, key_to_json, keys_at
from lakemerge.layout.placement import place_rows
from lakemerge.read.lookup import sorted_keys
from mergers.keys import key_columns

__all__ = ["MOST_KEYS", "Sought"]

MOST_KEYS: Final = 1000
"""So many keys are erased at a time: texts are searched for all of them at once."""


class Sought:
    """The keys, each once, in key order."""

    def __init__(self, keys: object, config: TableConfig) -> None:
        """Raises :class:`lakemerge.FrameError` for what are no keys, and :class:`InputError` for too many."""
        table = sorted_keys(keys, config)
        for name in config.partition_by:
            if pa.types.is_string(table.schema.field(name).type):
                table = table.filter(pc.not_equal(table.column(name), ""))  # no row has it
        if table.num_rows > MOST_KEYS:
            raise InputError(
                f"at most {MOST_KEYS:,} keys are erased at a time, and there are {table.num_rows:,}: call it for a "
                "part of them after the other",
                keys=table.num_rows,
            )
        self.table = table
        self.config = config
        self.columns = key_columns(table, config.key)
        self.keys: list[Key] = keys_at(self.columns, range(table.num_rows))
        self.key_set = frozenset(self.keys)
        self._spelled = [tuple(map(_spellings, row.values())) for row in table.to_pylist()]
        self._by_count: dict[int, dict[BucketId, list[int]]] = {}

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def has_texts(self) -> bool:
        """Whether a column of the key holds text. Numbers stand for too much to be looked for everywhere."""
        kinds = (field.type for field in self.table.schema)
        return any(pa.types.is_string(kind) or pa.types.is_binary(kind) for kind in kinds)

    @cached_property
    def as_json(self) -> frozenset[bytes]:
        """The keys as tags and log domains write them."""
        return frozenset(orjson.dumps(key_to_json(key)) for key in self.keys)

    @cached_property
    def partitions(self) -> frozenset[Partition]:
        """The partitions whose values are one of the keys: where the key has no other columns."""
        if set(self.config.key) != set(self.config.partition_by):
            return frozenset()
        return frozenset(place_rows(self.table, self.config, 1).partitions)

    def digest(self, salt: str) -> str:
        """A number that whoever has the salt and the keys finds again, and nobody else."""
        found = hashlib.sha256(salt.encode())
        for key in self.keys:
            found.update(b"\n" + orjson.dumps(key_to_json(key)))
        return found.hexdigest()

    def of_bucket(self, bucket_id: BucketId, buckets: int) -> list[int]:
        """The numbers of the keys in a bucket of a count, ascending.

        :param buckets: the count.
        """
        if buckets not in self._by_count:
            placed = place_rows(self.table, self.config, buckets)
            found: dict[BucketId, list[int]] = {}
            for number, slot in enumerate(placed.slots.tolist()):
                found.setdefault(placed.bucket(slot), []).append(number)
            self._by_count[buckets] = found
        return self._by_count[buckets].get(bucket_id, [])

    def in_text(self, text: str) -> bool:
        """Whether all values of a key stand in a text, each as a word."""
        if self._first is None:
            return bool(self.keys)
        found = {match[0] for match in self._first.finditer(text)}
        if not found:
            return False
        if len(self.config.key) == 1:
            return True
        within = [word for word in self._rows_of if any(word in match for match in found)]
        rows = {row for word in within for row in self._rows_of[word]}
        return any(all(_has_word(text, words) for words in self._spelled[row]) for row in rows)

    def in_values(self, value: object) -> bool:
        """The same for what JSON holds: the texts and numbers in it, or a list that is a key."""
        if isinstance(value, list) and orjson.dumps(value) in self.as_json:
            return True
        return self.in_text(" \n ".join(_texts(value)))

    def is_value(self, column: int, value: object) -> bool:
        """Whether a value, as JSON has it, is that of a key in one of its columns."""
        return str(value) in self._values[column]

    @cached_property
    def _values(self) -> list[set[str]]:
        return [{word for row in self._spelled for word in row[place]} for place in range(len(self.config.key))]

    @cached_property
    def _place(self) -> int | None:
        """The column by whose words a text is searched first: the one with the longest."""
        lengths = [
            min((len(word) for row in self._spelled for word in row[place]), default=0)
            for place in range(len(self.config.key))
        ]
        best = max(range(len(lengths)), key=lengths.__getitem__)
        return best if lengths[best] else None

    @cached_property
    def _rows_of(self) -> Mapping[str, set[int]]:
        found: dict[str, set[int]] = {}
        if self._place is not None:
            for number, row in enumerate(self._spelled):
                for word in row[self._place]:
                    found.setdefault(word, set()).add(number)
        return found

    @cached_property
    def _first(self) -> re.Pattern[str] | None:
        if not self._rows_of:
            return None
        longest = sorted(self._rows_of, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)")


def _spellings(value: Any) -> tuple[str, ...]:
    """How a text may write a value. None for a boolean, whose word says nothing."""
    match value:
        case bool():
            return ()
        case str():
            return (value,) if value else ()
        case int():
            return (str(value),)
        case dt.datetime():
            instant = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
            plain = instant.replace(tzinfo=None)
            texts = {plain.isoformat(), plain.isoformat(timespec="milliseconds"), plain.isoformat(timespec="seconds")}
            micros = (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
            return (*sorted(texts), *sorted(text.replace("T", " ") for text in texts), str(micros))
        case dt.date():
            return (value.isoformat(), str((value - dt.date(1970, 1, 1)).days))
        case decimal.Decimal():
            return tuple(dict.fromkeys((format(value, "f"), format(value.normalize(), "f"))))
        case bytes():
            spelled = [base64.b64encode(value).decode(), value.hex(), value.hex().upper()]
            with contextlib.suppress(UnicodeDecodeError):
                spelled.append(value.decode())
            return tuple(word for word in spelled if word)
    return (str(value),)


def _has_word(text: str, words: Sequence[str]) -> bool:
    return not words or any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, bytes):
        yield from _spellings(value)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
