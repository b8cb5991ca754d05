"""Frames whose records carry different columns: for each record, which of them.

A column of the frame says it, in bits: bit ``i`` of a record's bytes, from the lowest one of the first byte on, says
whether the record carries column ``i`` of the frame. A write task packs the records of each set of columns into files
of their own. Source: docs/table-format.md, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mergers.contract import Ints
from mergers.keys import KeyColumns, group_starts, sort_order

__all__ = [
    "CARRIED",
    "MOST_SETS",
    "MOST_TURNS",
    "Sets",
    "bits_of",
    "sets_in",
    "turns_of",
]

CARRIED: Final = pa.field("_lm_carried", pa.binary(), metadata={"lakemerge.carried": "bits"})
"""The column of bits. No file has it."""

MOST_SETS: Final = 100
"""So many sets of columns are taken of one source file, and are in the files of one portion of a write task."""

MOST_TURNS: Final = 500
"""A portion of a write task becomes so many files at most."""


class Sets(NamedTuple):
    """The sets of columns that records carry."""

    codes: Ints
    """The number of each record's set."""
    columns: Sequence[frozenset[str]]
    """By number, in the order in which records have them first."""


def bits_of(names: Sequence[str], carried: Collection[str]) -> bytes:
    """The bytes of a record that carries some of a frame's columns."""
    return np.packbits([name in carried for name in names], bitorder="little").tobytes()


def sets_in(bits: pa.Array | pa.ChunkedArray, names: Sequence[str]) -> Sets:
    """What a column of bits says.

    :param names: the columns of the frame, to which the bits belong.
    """
    found = pc.dictionary_encode(bits)
    if isinstance(found, pa.ChunkedArray):
        found = found.unify_dictionaries().combine_chunks()
        found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
    sets = [
        frozenset(name for name, bit in zip(names, _unpacked(one), strict=False) if bit)
        for one in found.dictionary.to_pylist()
    ]
    return Sets(found.indices.to_numpy().astype(np.int64), sets)


def turns_of(keys: KeyColumns, codes: Ints, within: Ints | None = None) -> Ints:
    """The turn of each record, from 0 on: if files are in the order of (turn, set), the records of every key are in
    their order. A key needs a new turn where it goes back to a set with a smaller number.

    :param within: a number for each record. Only the order of the records of a key that have the same number counts;
        these are not apart.
    """
    order = sort_order(keys)
    sorted_keys = tuple(column.take(pa.array(order)) for column in keys)
    begins = np.zeros(len(order), np.bool_)
    begins[group_starts(sorted_keys)] = True
    if within is not None:
        begins[1:] |= np.diff(within[order]) != 0
    back = np.zeros(len(order), np.int64)
    back[1:] = (np.diff(codes[order]) < 0) & ~begins[1:]
    passed = np.cumsum(back)
    starts = np.flatnonzero(begins)
    first = np.repeat(passed[starts], np.diff(np.append(starts, len(order))))
    turns = np.empty(len(order), np.int64)
    turns[order] = passed - first
    return turns


def _unpacked(bits: bytes) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
