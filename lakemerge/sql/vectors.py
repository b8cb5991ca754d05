"""Arrow arrays as NumPy vectors and back, and errors that name a row's values."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemerge.sql.nodes import RowError
from mergers.type_names import type_name

__all__ = ["Mask", "from_vector", "nulled", "refuse", "to_vector", "truths", "valid"]

Mask = npt.NDArray[np.bool_]


def valid(*arrays: pa.Array) -> Mask:
    """Where none of the arrays is null."""
    found = np.ones(len(arrays[0]), dtype=np.bool_)
    for array in arrays:
        if array.null_count:
            found &= array.is_valid().to_numpy(zero_copy_only=False)
    return found


def to_vector(array: pa.Array) -> npt.NDArray[Any]:
    """The values of numbers, booleans, dates (in days) and timestamps (in microseconds). Nulls become zero."""
    if pa.types.is_date(array.type):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(pa.scalar(0).cast(array.type))
    return array.to_numpy(zero_copy_only=False)


def from_vector(values: npt.NDArray[Any], known: Mask, kind: pa.DataType) -> pa.Array:
    """The opposite of :func:`to_vector`. The array is null where ``known`` is false."""
    plain = kind
    if pa.types.is_date(kind):
        plain = pa.int32()
    elif pa.types.is_timestamp(kind):
        plain = pa.int64()
    array = pa.array(values, plain, mask=None if known.all() else ~known)
    return array if plain == kind else array.view(kind)


def truths(array: pa.BooleanArray) -> Mask:
    """Where the array is true."""
    return array.fill_null(False).to_numpy(zero_copy_only=False)


def nulled(array: pa.Array, where: Mask) -> pa.Array:
    """The array, with nulls where ``where`` is true."""
    if not where.any():
        return array
    positions = np.arange(len(array))
    return array.take(pa.array(positions, mask=where))


def refuse(bad: Mask, why: str, *arrays: pa.Array) -> None:
    """Raise :class:`RowError` for the first bad row, if there is one.

    :param why: the message, with a ``{}`` for the row's value of each of the arrays.
    """
    if bad.any():
        _raise(int(np.argmax(bad)), why, arrays)


def _raise(row: int, why: str, arrays: tuple[pa.Array, ...]) -> NoReturn:
    raise RowError(why.format(*(_shown(array[row]) for array in arrays)))


def _shown(value: pa.Scalar) -> str:
    try:
        found = value.as_py()
    except (ValueError, OverflowError):  # a date or time beyond the years of Python
        return f"a {type_name(value.type)} of {value.value}"
    return repr(found) if isinstance(found, str | bytes) else str(found)
