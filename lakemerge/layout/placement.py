"""Finds the bucket of a row, for writes and look-ups alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from lakemerge.format.config import TableConfig
from lakemerge.format.keys import BucketId, Partition
from lakemerge.layout.partition import partition_value
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from mergers.contract import Ints

__all__ = ["PlacedRows", "place_rows"]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows, and the bucket of each."""

    slots: Ints
    """For each row one number for its partition and bucket: ``partition * buckets + bucket``."""
    partitions: Sequence[Partition]
    """By number."""
    buckets: int
    """The bucket count."""

    def bucket(self, slot: int) -> BucketId:
        return BucketId(self.partitions[slot // self.buckets], slot % self.buckets)

    def by_bucket(self, order: Ints | None = None) -> Ints:
        """The numbers of the rows, by bucket.

        :param order: the order in which the rows of a bucket stay. By default they stay as they are.
        """
        # A stable sort of small integers is a radix sort in numpy.
        small = self.slots.astype(np.uint16) if len(self.partitions) * self.buckets <= 2**16 else self.slots
        if order is None:
            return np.argsort(small, kind="stable")
        return order[np.argsort(small[order], kind="stable")]


def place_rows(table: pa.Table, config: TableConfig, buckets: int) -> PlacedRows:
    """The bucket of each row.

    :param table: a table with the key columns, without nulls. It may have other columns.
    :raises lakemerge.FrameError: a value cannot be a partition value.
    """
    bucket = bucket_numbers([table.column(name) for name in config.key], buckets).astype(np.int64)
    names = config.partition_by
    if not names:
        return PlacedRows(bucket, [()], buckets)
    number = np.zeros(table.num_rows, dtype=np.int64)
    for name in names:
        encoded = table.column(name).combine_chunks().dictionary_encode()
        number = number * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    partitions = _partitions(table.select(list(names)).take(pa.array(first)))
    return PlacedRows(number.astype(np.int64) * buckets + bucket, partitions, buckets)


def _partitions(values: pa.Table) -> list[Partition]:
    """Raises :class:`FrameError` for values that no partition can have."""
    try:
        rows = values.to_pylist()
    except (OverflowError, ValueError) as error:
        raise FrameError(
            f"partition column(s) {', '.join(map(repr, values.column_names))} hold a date or time outside of the years "
            f"1 to 9999: {error}",
            columns=tuple(values.column_names),
        ) from error
    for name, column in zip(values.column_names, values.columns, strict=True):
        if pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
            raise FrameError(
                f"partition column {name!r} holds '', and an empty string cannot be a partition value: Delta readers "
                "would take it for null. Give such rows another value",
                column=name,
            )
    return [tuple(partition_value(value) for value in row.values()) for row in rows]
