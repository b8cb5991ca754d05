"""Values as text, column by column, for ids, comparisons and conversions to strings.

There are two kinds of text. *Plain* text is what a person writes: ``7``, ``true``, ``2026-07-01T12:00:00Z``; structs,
lists and maps are JSON. A *match* text begins with a letter for the kind of the value. Two match texts are equal if and
only if the values are: numbers by value whatever their type (1, 1.0 and 1.00), but never a number and a string.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.merge_source.nested_arrays import Ints, contiguous, list_array, offsets_of, spread

__all__ = ["case_changed", "is_number", "json_strings", "kind_letter", "match_texts", "number_texts", "plain_texts"]

_LONG = 2**63
_DECIMAL = 1e38
_EXACT_DIGITS = 15
"""A double keeps any decimal number of so many digits."""
_CONTROL = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}


def match_texts(values: pa.Array) -> pa.Array:
    """The match texts of values; null for null and NaN."""
    letter = kind_letter(values.type)
    if letter == "n":
        return _with(letter, number_texts(values))
    return _with(letter, _nested(values, plain=False) if letter == "j" else plain_texts(values))


def kind_letter(kind: pa.DataType) -> str:
    """The letter with which the match texts of a type begin."""
    if is_number(kind):
        return "n"
    if pa.types.is_nested(kind):
        return "j"
    letters = (
        (pa.types.is_string, "s"),
        (pa.types.is_boolean, "b"),
        (pa.types.is_binary, "x"),
        (pa.types.is_date, "d"),
    )
    letter = next((letter for is_kind, letter in letters if is_kind(kind)), None)
    return letter or ("l" if kind.tz is None else "t")


def plain_texts(values: pa.Array) -> pa.Array:
    """Values as people write them; null for null. NaN is ``NaN``."""
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_boolean(kind) or pa.types.is_date(kind):
        return values.cast(pa.string())
    if is_number(kind):
        return number_texts(values, nan="NaN")
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
    if pa.types.is_timestamp(kind):
        return _times(values)
    return _nested(values, plain=True)


def number_texts(values: pa.Array, *, nan: str | None = None) -> pa.Array:
    """Numbers as text, equal for equal numbers of any type. A whole number has no point."""
    if pa.types.is_integer(values.type):
        return values.cast(pa.string())
    if pa.types.is_decimal(values.type):
        return _decimals(values)
    return _doubles(values.cast(pa.float64()), nan)


def json_strings(values: pa.Array) -> pa.Array:
    """Strings in double quotes, as JSON has them."""
    escaped = pc.replace_substring(pc.replace_substring(values, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(escaped, "[\x00-\x1f]")).as_py():
        for number in range(0x20):
            character = chr(number)
            escaped = pc.replace_substring(escaped, character, _CONTROL.get(character, f"\\u{number:04x}"))
    return pc.binary_join_element_wise('"', escaped, '"', "")


def case_changed(values: pa.Array, *, upper: bool) -> pa.Array:
    """Strings in lower or upper case, as in Unicode. In Arrow no character becomes two, so Python converts distinct
    values with characters other than ASCII one by one."""
    change = pc.ascii_upper if upper else pc.ascii_lower
    ascii_only = pc.string_is_ascii(values)
    if pc.all(ascii_only).as_py() in (True, None):
        return change(values)
    encoded = values.dictionary_encode()
    changed = [text.upper() if upper else text.lower() for text in encoded.dictionary.to_pylist()]
    return pa.array(changed, pa.string()).take(encoded.indices)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type are equal to numbers of other types."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _with(letter: str, texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(letter), texts, "")


def _doubles(values: pa.Array, nan: str | None) -> pa.Array:
    given = values.to_numpy(zero_copy_only=False)
    there = values.is_valid().to_numpy(zero_copy_only=False) & ~np.isnan(given)
    whole = there & (np.floor(given) == given)
    texts = values.cast(pa.string())
    for limit, kind in ((_DECIMAL, pa.decimal128(38, 0)), (_LONG, pa.int64())):
        fits = whole & (np.abs(given) < limit)
        if fits.any():
            # Not the double's own text, which uses powers of ten for large numbers.
            exact = pa.array(np.where(fits, given, 0.0)).cast(kind).cast(pa.string())
            texts = pc.if_else(pa.array(fits), exact, texts)
    missing = pa.scalar(nan, pa.string())
    return pc.if_else(pa.array(np.isnan(given) & values.is_valid().to_numpy(zero_copy_only=False)), missing, texts)


def _decimals(values: pa.Array) -> pa.Array:
    """A decimal that a double can hold gets the double's text, so that both are equal. Others get all their digits."""
    written = _positional(values)
    if values.type.scale <= 0:
        return written
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(written, "0"), ".")
    digits = pc.replace_substring_regex(trimmed, "[-.]", "")
    few = pc.less_equal(pc.utf8_length(pc.utf8_trim(digits, "0")), _EXACT_DIGITS)
    whole = pc.invert(pc.match_substring(trimmed, "."))
    by_double = _doubles(trimmed.cast(pa.float64()), None)
    return pc.if_else(pc.and_(few, pc.invert(whole)), by_double, trimmed)


def _positional(values: pa.Array) -> pa.Array:
    """Decimals with all digits of their scale. Arrow's own text of a small one has an exponent, as in ``1.50E-10``."""
    kind = values.type
    whole = pa.decimal128(kind.precision, 0) if kind.bit_width == 128 else pa.decimal256(kind.precision, 0)
    if kind.scale <= 0:
        return values.cast(whole if kind.scale == 0 else pa.decimal256(76, 0)).cast(pa.string())
    values = contiguous(values)
    # The same bytes without a scale are whole numbers, whose text has no exponent.
    bare = pa.Array.from_buffers(whole, len(values), values.buffers(), values.null_count).cast(pa.string())
    sign = pc.if_else(pc.starts_with(bare, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(bare, "-"), width=kind.scale + 1, padding="0")
    before, after = pc.utf8_slice_codeunits(padded, 0, -kind.scale), pc.utf8_slice_codeunits(padded, -kind.scale)
    return pc.binary_join_element_wise(sign, before, pa.scalar("."), after, "")


def _times(values: pa.Array) -> pa.Array:
    """ISO 8601, in UTC, with a fraction only if there is one."""
    zone = "" if values.type.tz is None else "Z"
    written = pc.replace_substring(pc.utf8_rtrim(values.cast(pa.string()), "Z"), " ", "T")
    short = pc.replace_substring_regex(written, r"\.0+$", "")
    return pc.binary_join_element_wise(short, pa.scalar(zone), "")


def _nested(values: pa.Array, *, plain: bool) -> pa.Array:
    """JSON of structs, lists and maps. A null field is left out; a null element is ``null``. Fields are in the order of
    their names, and entries of maps in that of their texts: neither the order of a type's fields nor that of a map's
    entries makes values differ."""
    kind = values.type
    if pa.types.is_struct(kind):
        return _struct(values, plain=plain)
    is_map = pa.types.is_map(kind)
    if is_map:
        values = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    elements = _inside(pc.list_flatten(values), plain=plain).fill_null("null")
    offsets = offsets_of(values)
    if is_map and len(elements):
        elements = elements.take(pa.array(_by_text(offsets, elements)))
    joined = pc.binary_join(list_array(offsets, elements), ",")
    text = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))


def _by_text(offsets: Ints, elements: pa.Array) -> Ints:
    """The order of the elements by list and text."""
    ranks = pc.rank(elements, sort_keys="ascending", tiebreaker="first").to_numpy(zero_copy_only=False)
    return np.lexsort((ranks, spread(np.diff(offsets))[0])).astype(np.int64)


def _struct(values: pa.Array, *, plain: bool) -> pa.Array:
    """Names of fields are compared without regard to case, as columns are; in match texts they are in lower case."""
    text = pa.array([""]).take(pa.array(np.zeros(len(values), dtype=np.int64)))
    pairs = sorted(zip(values.type, values.flatten(), strict=True), key=lambda pair: pair[0].name.lower())
    for field, child in pairs:
        name = json_strings(pa.array([field.name if plain else field.name.lower()]))[0].as_py()
        part = pc.binary_join_element_wise(pa.scalar(f"{name}:"), _inside(child, plain=plain), "")
        comma = pc.if_else(pc.equal(text, ""), "", ",")
        longer = pc.binary_join_element_wise(text, comma, part, "")
        text = pc.if_else(part.is_valid(), longer, text)
    whole = pc.binary_join_element_wise("{", text, "}", "")
    return pc.if_else(values.is_valid(), whole, pa.scalar(None, pa.string()))


def _inside(values: pa.Array, *, plain: bool) -> pa.Array:
    """Texts of nested values. In plain JSON, numbers and booleans have no quotes."""
    if not plain:
        return json_strings(match_texts(values))
    texts = plain_texts(values)
    bare = is_number(values.type) or pa.types.is_boolean(values.type) or pa.types.is_nested(values.type)
    return texts if bare else json_strings(texts)
