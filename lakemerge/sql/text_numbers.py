"""Casts of text to numbers and booleans, by Spark's rules, and of decimals to text.

Each function returns the values, and where a text cannot be cast.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.sql.unscaled import Integers, beyond, from_unscaled, halves_up, to_unscaled
from lakemerge.sql.vectors import Mask, from_vector, truths, valid

__all__ = ["BLANKS", "from_decimal", "to_boolean", "to_decimal", "to_float", "to_integer"]

_BELOW_SPACE = "".join(map(chr, range(0x21)))
BLANKS = _BELOW_SPACE + "\x7f"
"""Casts ignore the blank and control characters at both ends of a text. (Casts to floats and decimals keep DEL.)"""

_SHORT = 18
"""This many digits always fit into int64."""
_MAX_DIGITS = 38
_INTEGER = r"\A(?P<sign>[+-]?)0*(?P<digits>[0-9]+)\z"
_DECIMAL = r"\A(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?\z"
_FLOAT = r"\A[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?\z"
_HEXADECIMAL = r"\A[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?\z"
_WORDS = {
    "nan": "nan", "inf": "inf", "+inf": "inf", "-inf": "-inf",
    "infinity": "inf", "+infinity": "inf", "-infinity": "-inf",
}  # fmt: skip
_SIGNED_NAN = ("+NaN", "-NaN")
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def to_integer(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text has only digits, with or without a sign."""
    parts = pc.extract_regex(pc.ascii_trim(texts, characters=BLANKS), _INTEGER)
    known = valid(parts)
    values = _integers(parts.field("sign"), parts.field("digits"), known)
    limits = np.iinfo(kind.to_pandas_dtype())
    bad = valid(texts) & ~(known & ((values >= limits.min) & (values <= limits.max)).astype(np.bool_))
    return from_vector(np.where(bad, 0, values).astype(limits.dtype), known, kind), bad


def to_float(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text is a double or a float by Java's rules: also ``1.``, ``.5``, ``1e5``, ``1.5d``, ``0x1p3``,
    ``Infinity``."""
    trimmed = pc.ascii_trim(texts, characters=_BELOW_SPACE)
    plain = pc.match_substring_regex(trimmed, _FLOAT)
    digits = pc.replace_substring_regex(trimmed, r"\A\+|[dDfF]\z", "")
    values = pc.if_else(plain, digits, pa.scalar(None, pa.string())).cast(kind)
    bad = valid(texts) & ~truths(plain)
    if bad.any():
        spelled = [_word(text) for text in trimmed.filter(pa.array(bad)).to_pylist()]
        others = pa.array(spelled, pa.float64()).cast(kind, safe=False)
        values = pc.replace_with_mask(values, pa.array(bad), others)
        bad[bad] = ~valid(others)
    return values, bad


def to_decimal(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """The text may have an exponent. Halves are rounded away from zero."""
    trimmed = pc.ascii_trim(texts, characters=_BELOW_SPACE)
    parts = pc.extract_regex(trimmed, _DECIMAL)
    some = pc.match_substring_regex(trimmed, "[0-9]")
    odd = valid(texts) & ~(valid(parts) & truths(some))
    if odd.any():
        plain = [_plainly(text) for text in trimmed.filter(pa.array(odd)).to_pylist()]
        trimmed = pc.replace_with_mask(trimmed, pa.array(odd), pa.array(plain, pa.string()))
        parts = pc.extract_regex(trimmed, _DECIMAL)
    whole, known = parts.field("whole"), valid(parts)
    long = known & (pc.binary_length(whole).to_numpy(zero_copy_only=False) > _MAX_DIGITS)
    known &= ~long
    # Rounding depends on nothing but the first digit that is left out.
    fraction = pc.utf8_rpad(pc.utf8_slice_codeunits(parts.field("part"), 0, kind.scale + 1), kind.scale + 1, "0")
    values = halves_up(_integers(parts.field("sign"), pc.binary_join_element_wise(whole, fraction, ""), known), 10)
    bad = valid(texts) & (~known | beyond(values, known, kind.precision))
    return from_unscaled(np.where(bad, 0, values), known, kind), bad


def to_boolean(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    words = pc.ascii_lower(pc.ascii_trim(texts, characters=BLANKS))
    true, false = (truths(pc.is_in(words, pa.array(found))) for found in (_TRUE, _FALSE))
    return from_vector(true, true | false, kind), valid(texts) & ~(true | false)


def from_decimal(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Decimals as text with all digits and no exponent."""
    digits, scale, known = to_unscaled(values), values.type.scale, valid(values)
    size = np.abs(digits)
    sign = pa.array(np.where((digits < 0).astype(np.bool_), "-", ""), kind)
    text = pc.binary_join_element_wise(sign, _digits(size // 10**scale, known), "")
    if scale:
        fraction = pc.utf8_lpad(_digits(size % 10**scale, known), scale, "0")
        text = pc.binary_join_element_wise(text, fraction, ".")
    return text, np.zeros(len(values), dtype=np.bool_)


def _digits(values: Integers, known: Mask) -> pa.Array:
    return from_unscaled(values, known, pa.decimal128(_MAX_DIGITS, 0)).cast(pa.string())


def _integers(signs: pa.Array, digits: pa.Array, known: Mask) -> Integers:
    """The integers for texts of digits, with their signs. Zero where ``known`` is false."""
    short = known & (pc.binary_length(digits).to_numpy(zero_copy_only=False) <= _SHORT)
    values: npt.NDArray[np.object_] | npt.NDArray[np.int64]
    values = pc.if_else(pa.array(short), digits, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    long = known & ~short
    if long.any():
        values = values.astype(object)
        values[long] = [int(text) for text in digits.filter(pa.array(long)).to_pylist()]
    return np.where(truths(pc.equal(signs, "-")), -values, values)


def _word(text: str) -> float | None:
    """The value of a float that is not written in decimal digits."""
    word = _WORDS.get(text.lower(), "nan" if text in _SIGNED_NAN else None)
    if word is not None:
        return float(word)
    if not pc.match_substring_regex(pa.array([text]), _HEXADECIMAL)[0].as_py():
        return None
    try:
        return float.fromhex(text.rstrip("dDfF"))
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


def _plainly(text: str) -> str | None:
    """A decimal with an exponent, or in another alphabet's digits, as plain digits. ``None`` if it is not a decimal or
    too large."""
    if "_" in text or text != text.strip():
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    _, digits, exponent = value.as_tuple()
    if not value.is_finite() or abs(int(exponent)) >= 2**31:
        return None
    if len(digits) + int(exponent) > _MAX_DIGITS:
        return None
    if len(digits) + int(exponent) < -_MAX_DIGITS - 1:
        return "0"
    return f"{value:f}"
