"""What a dry run finds out about the keys of a Delta table: nulls, and rows that share a key.

Keys are compared by 64-bit hashes first, a range of hashes at a time, so that any table fits into memory. The keys
whose hashes are equal are then read and compared themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.convert.source import DeltaSource
from lakemerge.delta import AddFile
from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.options import Settings
from mergers.keys import group_starts, key_columns, sort_order
from mergers.portions import gather

__all__ = ["Inspection", "inspected"]

_SHOWN = 5
_HASH_BYTES = 8
_COPIES = 3
"""So many arrays of hashes are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Inspection:
    rows: int
    null_keys: int
    repeated_rows: int
    repeated_keys: tuple[Mapping[str, object], ...]


def inspected(source: DeltaSource, adds: Sequence[AddFile], key: Sequence[str], settings: Settings) -> Inspection:
    """Reads the key columns, once for each range of hashes, and those of repeated hashes once more."""
    rows = nulls = 0
    for _, valid in _keys(source, adds, key, settings):
        rows += len(valid)
        nulls += int(len(valid) - valid.sum())
    per_pass = max(1, settings.merge_budget_bytes // (_HASH_BYTES * _COPIES))
    passes = max(1, -(-rows // per_pass))
    repeated, shown = 0, list[Mapping[str, object]]()
    for number in range(passes):
        found = _repeated_hashes(source, adds, key, settings, number, passes)
        if len(found):
            more, some = _confirmed(source, adds, key, settings, found, _SHOWN - len(shown))
            repeated += more
            shown += some
    return Inspection(rows, nulls, repeated, tuple(shown))


def _keys(
    source: DeltaSource, adds: Sequence[AddFile], key: Sequence[str], settings: Settings
) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    """The keys, and which of them have no null."""
    for batch in source.batches(adds, columns=key, budget_bytes=settings.merge_budget_bytes // _COPIES):
        valid = np.ones(batch.num_rows, dtype=np.bool_)
        for column in batch.columns:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
        yield pa.Table.from_batches([batch]), valid


def _hashed(keys: pa.Table, valid: npt.NDArray[np.bool_]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    whole = keys if valid.all() else keys.filter(pa.array(valid))
    return whole, hash_columns(whole.columns)


def _repeated_hashes(
    source: DeltaSource, adds: Sequence[AddFile], key: Sequence[str], settings: Settings, number: int, passes: int
) -> npt.NDArray[np.int64]:
    parts = [np.empty(0, dtype=np.int64)]
    for keys, valid in _keys(source, adds, key, settings):
        own = _hashed(keys, valid)[1]
        parts.append(own if passes == 1 else own[(own.view(np.uint64) % np.uint64(passes)) == number])
    every = np.sort(np.concatenate(parts))
    return np.unique(every[1:][every[1:] == every[:-1]])


def _confirmed(
    source: DeltaSource,
    adds: Sequence[AddFile],
    key: Sequence[str],
    settings: Settings,
    found: npt.NDArray[np.int64],
    wanted: int,
) -> tuple[int, list[Mapping[str, object]]]:
    """How many rows are too many among those with a repeated hash, and some of their keys."""
    parts: list[pa.Table] = []
    for keys, valid in _keys(source, adds, key, settings):
        whole, own = _hashed(keys, valid)
        parts.append(whole.filter(pa.array(np.isin(own, found))))
    every = pa.concat_tables(parts)
    ordered = gather(every, sort_order(key_columns(every, key)))
    starts = group_starts(key_columns(ordered, key))
    sizes = np.diff(np.append(starts, ordered.num_rows))
    places = starts[sizes > 1]
    shown = gather(ordered, places[: max(0, wanted)]).to_pylist()
    return int(ordered.num_rows - len(starts)), shown
