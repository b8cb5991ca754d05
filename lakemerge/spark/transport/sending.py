"""Pickles the part of a plan that tasks need. It must be fast and small: a read of 100,000 files sends their file
slices to tens of thousands of tasks."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from lakemerge.delta import AddFile
from lakemerge.format.base_file import BaseFile
from lakemerge.format.keys import BucketId
from lakemerge.format.log_block import LogBlock, LogFile
from lakemerge.layout.view import FileSlice
from lakemerge.read.splits import Part

__all__ = ["pickled", "pickled_once"]

_Reducer = Callable[[Any], tuple[Any, ...]]


def pickled(value: FileSlice | list[Part] | list[list[Part]]) -> bytes:
    """The value as bytes for ``pickle.loads``, without statistics and tags of files. Only planning needs these, and
    they would be most of the bytes."""
    sink = io.BytesIO()
    pickler = pickle.Pickler(sink, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(value)
    return sink.getvalue()


def pickled_once(file_slice: FileSlice) -> bytes:
    """The file slice as :func:`pickled` gives it. It keeps the bytes, because later versions of a table have most file
    slices of the version before."""
    known = file_slice.sent
    if known is None:
        known = pickled(file_slice)
        object.__setattr__(file_slice, "sent", known)
    return known


def _by_fields(kind: type) -> tuple[type, _Reducer]:
    """Pickles an object as its constructor's arguments. That takes half the time of a data class's state by name."""
    fields = attrgetter(*kind.__match_args__)  # type: ignore[attr-defined] # data classes and named tuples have them
    return kind, lambda value: (kind, fields(value))


def _without_statistics(add: AddFile) -> tuple[Any, ...]:
    return AddFile, (add.path, add.partition_values, add.size_bytes, add.modification_time_ms, add.data_change)


_REDUCERS: dict[type, _Reducer] = dict(map(_by_fields, (FileSlice, Part, BucketId, BaseFile, LogBlock, LogFile)))
_REDUCERS[AddFile] = _without_statistics
