"""Lossless conversion of a frame's columns to a table's types.

:func:`castable` decides from types alone, so a write is refused before any data is read. :func:`safe_cast` converts,
and checks the values if types alone do not decide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FrameError
from lakemerge.schema.soundness import first_bad_row
from mergers.type_names import type_name

__all__ = ["castable", "extension_type", "safe_cast"]

_ANY_INTEGER = pa.decimal128(20, 0)
"""Holds every integer, signed or not."""
_EXACT_DIGITS = {pa.float32(): 24, pa.float64(): 53}
"""Binary digits of a float's mantissa."""
_SHOWN = 60
_EXTENSIONS: dict[str, pa.DataType] = {
    "arrow.uuid": pa.string(),
    "arrow.json": pa.string(),
    "arrow.bool8": pa.bool_(),
}
"""Extension types whose values a table can hold, and as what."""
_ENTRY = ["key", "value"]
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8).reshape(256, 2)
_UUID_BYTES = ((0, 4), (4, 6), (6, 8), (8, 10), (10, 16))
"""The bytes of a UUID between the dashes of its text."""
_SAME_VALUES: dict[pa.DataType, pa.DataType] = {
    pa.bool_(): pa.bool_(),
    pa.string(): pa.string(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date32(): pa.date32(),
    pa.date64(): pa.date32(),
}


def castable(from_type: pa.DataType, to_type: pa.DataType) -> bool:
    """Whether values of ``from_type`` have equal ones in the table's type ``to_type``.

    Integers, floats, decimals and timestamps of every width count as castable to their kind in every other width, and
    integers to floats and decimals; :func:`safe_cast` then checks each value. Struct fields match by name, whatever
    their case and order. A nullable field that ``from_type`` lacks is null. A list of structs of ``key`` and ``value``
    is a map, as in frames of polars, which has no maps. A UUID is text, or its 16 bytes.
    """
    if pa.types.is_null(from_type):
        return True
    if isinstance(from_type, pa.BaseExtensionType):
        return to_type in _as_stored(from_type)
    if isinstance(from_type, pa.DictionaryType | pa.RunEndEncodedType):
        return castable(from_type.value_type, to_type)
    if pa.types.is_integer(from_type):
        return bool(pa.types.is_integer(to_type) or pa.types.is_floating(to_type) or pa.types.is_decimal(to_type))
    if pa.types.is_floating(from_type):
        return bool(pa.types.is_floating(to_type))
    if pa.types.is_decimal(from_type):
        return bool(pa.types.is_decimal(to_type))
    if pa.types.is_timestamp(to_type):
        return pa.types.is_timestamp(from_type) and (from_type.tz is None) == (to_type.tz is None)
    if pa.types.is_fixed_size_binary(from_type):
        return bool(to_type == pa.binary())
    if pa.types.is_nested(to_type):
        return _nested_castable(from_type, to_type)
    return _SAME_VALUES.get(from_type) == to_type


def extension_type(kind: pa.BaseExtensionType) -> pa.DataType | None:
    """The table's type for an extension type of Arrow; ``None`` if a table cannot hold its values."""
    return _EXTENSIONS.get(getattr(kind, "extension_name", ""))


def safe_cast(batch: pa.RecordBatch, target: pa.Schema, first_row: int = 0) -> pa.RecordBatch:
    """The columns of ``target`` from ``batch``, in its order and types, without loss.

    Columns match by name, whatever their case. Columns of ``batch`` that ``target`` lacks are left out. Nulls inside
    non-nullable struct fields, elements and map values are refused. Nulls at the top level are not checked here,
    because only some writes refuse them.

    Raises a :class:`FrameError` that lists every column at fault in ``problems``: it is missing, given twice, of
    another type, or has a value that does not fit. The first such value is named with its row.

    :param first_row: the number of the batch's first row, for error texts.
    """
    places: dict[str, list[int]] = {}
    for index, name in enumerate(batch.schema.names):
        places.setdefault(name.lower(), []).append(index)
    problems: list[str] = []
    facts: dict[str, object] = {}
    arrays: list[pa.Array] = []
    for field in target:
        found = places.get(field.name.lower(), [])
        if len(found) != 1:
            problems.append(f"{field.name!r} is {'given more than once' if found else 'missing'}")
            continue
        array = batch.column(found[0])
        if not castable(array.type, field.type):
            problems.append(_mismatch(field, array.type))
            continue
        try:
            arrays.append(_convert(array, field.type))
        except pa.ArrowInvalid as error:
            row = first_bad_row(array, lambda part, to=field.type: _convert(part, to))  # type: ignore[misc]
            problems.append(_misfit(field, array, row, first_row, error))
            facts = facts or {"column": field.name, "row": None if row is None else first_row + row}
    if problems:
        raise FrameError("columns do not fit the table: " + "; ".join(problems), problems=tuple(problems), **facts)
    if not arrays:
        return batch.select([])
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _mismatch(field: pa.Field, found: pa.DataType) -> str:
    text = f"{field.name!r} is {type_name(found)}, the table has {type_name(field.type)}"
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(field.type):
        if found.tz is None:
            return f"{text}: say which zone the times are in (Arrow: assume_timezone), then write again"
        return f"{text}: drop the zone after conversion to local time (Arrow: local_timestamp), then write again"
    return text


def _misfit(field: pa.Field, array: pa.Array, row: int | None, first_row: int, error: pa.ArrowInvalid) -> str:
    text = f"{field.name!r} is {type_name(array.type)}, the table has {type_name(field.type)}"
    if row is None:
        return f"{text}: {error}"
    try:
        value = repr(array[row].as_py())
    except (ValueError, OverflowError):  # instants that Python cannot hold
        value = " ".join(str(array.slice(row, 1)).split())
    shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
    remedy = "correct it, or give the column a wider type" if is_number else "correct it"
    return f"{text}: {shown} in row {first_row + row} does not fit ({error}): {remedy}"


def _nested_castable(from_type: pa.DataType, to_type: pa.DataType) -> bool:
    if pa.types.is_map(to_type):
        entry = _entry_fields(from_type)
        return (
            entry is not None
            and castable(entry[0].type, to_type.key_type)
            and castable(entry[1].type, to_type.item_type)
        )
    if pa.types.is_list(to_type):
        return _is_list(from_type) and castable(from_type.value_type, to_type.value_type)
    if not pa.types.is_struct(from_type):
        return False
    matches = _match_fields(from_type, to_type)
    return matches is not None and all(
        field.nullable if i is None else castable(from_type.field(i).type, field.type)
        for i, field in zip(matches, to_type, strict=True)
    )


def _as_stored(kind: pa.BaseExtensionType) -> list[pa.DataType]:
    """The types of a table that hold the values of an extension type."""
    same = extension_type(kind)
    return [] if same is None else [same, pa.binary()] if _is_uuid(kind) else [same]


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and getattr(kind, "extension_name", "") == "arrow.uuid"


def _entry_fields(kind: pa.DataType) -> tuple[pa.Field, pa.Field] | None:
    """The fields for key and value of a map, or of a list of its entries; ``None`` for other types."""
    if pa.types.is_map(kind):
        return kind.key_field, kind.item_field
    if not _is_list(kind) or not pa.types.is_struct(kind.value_type):
        return None
    fields = list(kind.value_type)
    if [field.name.lower() for field in fields] != _ENTRY:
        return None
    return fields[0], fields[1]


def _match_fields(from_type: pa.StructType, to_type: pa.StructType) -> list[int | None] | None:
    """For each field of ``to_type`` its index in ``from_type``, or ``None`` if that lacks it. Instead of the list
    ``None`` if ``from_type`` has other fields, or one twice."""
    places = {from_type.field(i).name.lower(): i for i in range(from_type.num_fields)}
    matches = [places.get(field.name.lower()) for field in to_type]
    found = {index for index in matches if index is not None}
    return matches if len(found) == from_type.num_fields else None


def _convert(array: pa.Array, to: pa.DataType) -> pa.Array:
    """``array`` as ``to``. The types must be castable."""
    kind = array.type
    if kind == to:
        return array
    if pa.types.is_null(kind):
        return pa.nulls(len(array), to)
    if pa.types.is_dictionary(kind):
        if kind.value_type in (pa.string_view(), pa.binary_view()):  # pyarrow can neither decode nor take these
            return _convert(array.dictionary, to).take(array.indices)
        return _convert(array.dictionary_decode(), to)
    if isinstance(kind, pa.RunEndEncodedType):
        return _convert(pc.run_end_decode(array), to)
    if isinstance(kind, pa.BaseExtensionType):
        return _uuid_texts(array.storage) if _is_uuid(kind) and to == pa.string() else array.storage.cast(to)
    if pa.types.is_nested(to):
        return _convert_nested(array, to)
    if pa.types.is_decimal(to):
        return _convert_to_decimal(array, to)
    if pa.types.is_floating(to):
        return _convert_to_float(array, to)
    return array.cast(to, safe=True)


def _convert_nested(array: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_struct(to):
        return _convert_struct(array, to)
    if pa.types.is_map(to):
        if not pa.types.is_map(array.type):
            return _convert_entries(array, to)
        entries = pa.StructArray.from_arrays([array.keys, array.items], names=_ENTRY)
        return _nest(array, array.offsets.to_numpy(), entries, to, pa.struct([to.key_field, to.item_field]))
    elements = array.flatten()
    if not to.value_field.nullable and elements.null_count:
        raise pa.ArrowInvalid("a null among the elements, which are not nullable")
    return _nest(array, _offsets(array), elements, to, to.value_type)


def _convert_entries(array: pa.Array, to: pa.MapType) -> pa.Array:
    """A list of structs of key and value as a map."""
    entries = array.flatten()
    if entries.null_count:
        raise pa.ArrowInvalid("a null among the entries, which have a key and a value")
    keys, items = entries.flatten()
    if keys.null_count:
        raise pa.ArrowInvalid("a null among the keys")
    if not to.item_field.nullable and items.null_count:
        raise pa.ArrowInvalid("a null among the values, which are not nullable")
    pairs = pa.StructArray.from_arrays([keys, items], names=_ENTRY)
    return _nest(array, _offsets(array), pairs, to, pa.struct([to.key_field, to.item_field]))


def _offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """The offsets of a list's rows into its flattened elements. Elements of null lists are not among these."""
    lengths = array.value_lengths().fill_null(0).to_numpy()
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _uuid_texts(storage: pa.Array) -> pa.Array:
    """The texts of UUIDs, in lower case and with dashes, from their 16 bytes."""
    count = len(storage)
    whole = pa.concat_arrays([storage.fill_null(bytes(16))])
    data = np.frombuffer(whole.buffers()[1], np.uint8, count=16 * count) if count else np.zeros(0, np.uint8)
    digits = _HEX[data].reshape(count, 32)
    dash = np.full((count, 1), ord("-"), np.uint8)
    parts = [part for first, last in _UUID_BYTES for part in (digits[:, 2 * first : 2 * last], dash)]
    text = np.concatenate(parts[:-1], axis=1)
    ends = np.arange(count + 1, dtype=np.int32) * text.shape[1]
    buffers = [_validity(storage), pa.py_buffer(ends.tobytes()), pa.py_buffer(np.ascontiguousarray(text).tobytes())]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _convert_to_decimal(array: pa.Array, to: pa.DataType) -> pa.Array:
    if pa.types.is_integer(array.type):
        # For integers Arrow refuses by the type alone; for decimals it checks the values.
        array = array.cast(_ANY_INTEGER)
    scale = array.type.scale
    digits = to.precision - to.scale + scale
    if to.scale > scale and array.type.precision > digits:
        # Arrow multiplies without checking for overflow of 128 bits, so the digits before the point are checked first.
        array = array.cast(pa.decimal128(max(1, digits), scale))
        if not digits and pc.any(pc.not_equal(array, pa.scalar(0, array.type))).as_py():
            raise pa.ArrowInvalid("a number before the point, where only zero fits")
    return array.cast(to)


def _convert_to_float(array: pa.Array, to: pa.DataType) -> pa.Array:
    made = array.cast(to, safe=False)
    if pa.types.is_integer(array.type):
        exact = _holds_exactly(array, _EXACT_DIGITS[to])
    elif array.type.bit_width > to.bit_width:
        same = pc.or_(pc.equal(made.cast(array.type), array), pc.is_nan(array))
        exact = pc.all(same).as_py() is not False  # null where there are no values
    else:
        exact = True
    if not exact:
        raise pa.ArrowInvalid(f"no {to} is equal to it")
    return made


def _holds_exactly(integers: pa.Array, digits: int) -> bool:
    """Whether each integer has at most so many binary digits, zeros at its end not counted."""
    if integers.type.bit_width <= digits:
        return True
    wide = pa.int64() if pa.types.is_signed_integer(integers.type) else pa.uint64()
    size = np.abs(integers.fill_null(0).cast(wide).to_numpy(zero_copy_only=False)).astype(np.uint64)
    if size.max(initial=0) <= 2**digits:
        return True
    lowest = size & (~size + np.uint64(1))
    return bool((size // np.maximum(lowest, 1) < 2**digits).all())


def _convert_struct(array: pa.Array, to: pa.DataType) -> pa.Array:
    matches = _match_fields(array.type, to) or []
    valid = array.is_valid()
    children: list[pa.Array] = []
    for index, field in zip(matches, to, strict=True):
        if index is None:
            children.append(pa.nulls(len(array), field.type))
            continue
        child = _convert(array.field(index), field.type)
        if not field.nullable and child.null_count and pc.any(pc.and_(child.is_null(), valid)).as_py():
            raise pa.ArrowInvalid(f"a null in the field {field.name!r}, which is not nullable")
        children.append(child)
    return pa.Array.from_buffers(to, len(array), [_validity(array)], children=children)


def _nest(
    array: pa.Array, offsets: npt.NDArray[np.integer], values: pa.Array, to: pa.DataType, child: pa.DataType
) -> pa.Array:
    """The list or map ``array``, rebuilt as ``to`` over the part of ``values`` that its rows use."""
    if not len(array):
        return pa.nulls(0, to)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first > np.iinfo(np.int32).max:
        raise pa.ArrowInvalid(f"{last - first} elements in one batch are more than a list column can hold")
    converted = _convert(values.slice(first, last - first), child)
    shifted = pa.py_buffer((offsets - first).astype(np.int32).tobytes())
    return pa.Array.from_buffers(to, len(array), [_validity(array), shifted], children=[converted])


def _validity(array: pa.Array) -> pa.Buffer | None:
    """The validity bitmap from bit 0, wherever ``array`` starts in its own; ``None`` without nulls."""
    if not array.null_count:
        return None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
