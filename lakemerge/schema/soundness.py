"""Checks what Arrow does not: that text is UTF-8, that offsets and indices are in range, that decimals are not too
long.

Arrays from pandas, polars and Arrow's own functions are always sound. Arrays from buffers, other programs and Spark
(which casts binary to text) may not be. An array does not say where it comes from, so Arrow itself validates each one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["Flaw", "check_sound", "find_flaw", "first_bad_row", "needs_look"]

_LISTS: dict[type[pa.DataType], Callable[[pa.DataType], pa.DataType]] = {
    pa.ListType: pa.list_,
    pa.MapType: pa.list_,
    pa.LargeListType: pa.large_list,
    pa.ListViewType: pa.list_view,
    pa.LargeListViewType: pa.large_list_view,
}
_VIEWS = (pa.ListViewType, pa.LargeListViewType)
_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a column."""

    column: str
    row: int | None
    """The first row at fault; ``None`` if Arrow does not say which row it is, as in run-end encoded arrays."""
    problem: str
    is_text: bool
    """Whether the flaw is text that is not UTF-8."""


def find_flaw(rows: pa.RecordBatch | pa.Table, first_row: int = 0) -> Flaw | None:
    """The first flaw of the first column that has one.

    :param first_row: the number of the first row.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        at = first_row
        for array in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            try:
                check_sound(array)
            except pa.ArrowInvalid as error:
                return _flaw(name, array, error, at)
            at += len(array)
    return None


def check_sound(array: pa.Array) -> None:
    """Raise :class:`pyarrow.ArrowInvalid` for what Arrow's full validation refuses in the array's own rows.

    Arrow looks at all values of a nested array, even if the array is a slice of a few rows of a large one. A table
    written in small portions would then be checked as a whole for each portion.
    """
    array.validate()
    kind = array.type
    if isinstance(kind, pa.DictionaryType):
        # The same indices into an array of nulls, so that Arrow checks only the indices.
        pa.DictionaryArray.from_arrays(array.indices, pa.nulls(len(array.dictionary)), safe=False).validate(full=True)
        _check_dictionary(array)
    elif isinstance(kind, pa.StructType):
        for child in array.flatten():
            check_sound(child)
    elif isinstance(kind, pa.FixedSizeListType):
        check_sound(array.flatten())
    elif type(kind) in _LISTS:
        _check_lists(array)
    else:
        array.validate(full=True)


def first_bad_row(array: pa.Array, check: Callable[[pa.Array], object]) -> int | None:
    """The first row for which ``check`` raises :class:`pyarrow.ArrowInvalid`; ``None`` if it raises for no row, or also
    for an array without rows."""
    if _fails(check, array.slice(0, 0)) or not _fails(check, array):
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _fails(check, array.slice(low, middle - low)):
            high = middle
        else:
            low = middle
    return low


def needs_look(kind: pa.DataType) -> bool:
    """Whether values of a table's type can be unsound: text and decimals can, at any depth."""
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        return True
    return any(needs_look(kind.field(i).type) for i in range(kind.num_fields))


def _check_dictionary(array: pa.Array) -> None:
    try:
        check_sound(array.dictionary)
    except pa.ArrowInvalid as error:
        if not (_is_text(array.type.value_type) and _tells_of_text(error)):
            raise
        # Rows may not use all values of a dictionary.
        check_sound(_decoded(array))


def _check_lists(array: pa.Array) -> None:
    if not len(array):
        return
    is_map = pa.types.is_map(array.type)
    children = [array.keys, array.items] if is_map else [array.values]
    own = array.buffers()[: 3 if isinstance(array.type, _VIEWS) else 2]
    # The same offsets into an array of nulls, so that Arrow checks only the offsets.
    kind = _LISTS[type(array.type)](pa.null())
    lists = pa.Array.from_buffers(kind, len(array), own, offset=array.offset, children=[pa.nulls(len(children[0]))])
    lists.validate(full=True)
    if is_map:
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for child in children:
            check_sound(child.slice(first, last - first))
    else:
        check_sound(array.flatten())


def _fails(check: Callable[[pa.Array], object], array: pa.Array) -> bool:
    try:
        check(array)
    except pa.ArrowInvalid:
        return True
    return False


def _flaw(name: str, array: pa.Array, error: pa.ArrowInvalid, first_row: int) -> Flaw:
    row = first_bad_row(array, check_sound)
    where = "in its encoded values" if row is None else f"in row {first_row + row}"
    is_text = _tells_of_text(error)
    if is_text:
        shown = "" if row is None else _shown(array.slice(row, 1))
        problem = f"column {name!r} holds text that is not UTF-8{shown} {where}"
    else:
        problem = f"column {name!r} is damaged {where}: {error}"
    return Flaw(name, None if row is None else first_row + row, problem, is_text)


def _tells_of_text(error: pa.ArrowInvalid) -> bool:
    return "UTF8" in str(error)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _decoded(texts: pa.Array) -> pa.Array:
    return texts.dictionary.cast(pa.large_binary()).take(texts.indices).view(pa.large_string())


def _shown(one: pa.Array) -> str:
    if pa.types.is_dictionary(one.type) and _is_text(one.type.value_type):
        one = _decoded(one)
    if not _is_text(one.type):
        return ""
    value = one.cast(pa.large_binary())[0].as_py()
    return f", {value!r}," if len(value) <= _SHOWN_BYTES else f", {value[:_SHOWN_BYTES]!r}...,"
