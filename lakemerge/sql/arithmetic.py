"""``+ - * / %``, ``div``, ``pmod``, unary minus and ``abs`` of numbers, with Spark's result types.

Overflow and division by zero are errors, as under Spark's ANSI mode. One difference: Spark's unary minus and ``abs``
round decimals of more than 34 digits, and here they are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.types import BIGINT, DOUBLE, as_decimal, bounded, is_number, name, wider
from lakemerge.sql.unscaled import Integers, beyond, from_unscaled, halves_up, rescaled, roomy, to_unscaled
from lakemerge.sql.vectors import from_vector, refuse, to_vector, valid

__all__ = ["absolute", "arithmetic", "negative"]

_DIGITS = 39
"""Spark computes products and remainders to this many digits, and quotients to this many digits behind the point. Then
it rounds again."""
_DIV_DIGITS = 38
_INT_BYTES = 4
"""Shorter integers are computed as INT. So pmod does not wrap around."""
_CHECKED: dict[str, Callable[..., pa.Array]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}
_BY_ZERO = "{} {operator} {} divides by zero; NULLIF(divisor, 0) gives NULL there"
_OVERFLOW = "the result for {} and {} is not a valid {kind}; CAST to a wider type first"


def arithmetic(operator: str, left: Node, right: Node, text: str) -> Node:
    """``left operator right`` for ``+ - * / % div pmod``. Raises :class:`FilterError` if an operand is not a number."""
    for node in (left, right):
        if not is_number(node.kind) and not pa.types.is_null(node.kind):
            raise FilterError(f"{text}: {node.text} is {name(node.kind)}, not a number; use CAST", construct=text)
    left, right = _typed(left, right), _typed(right, left)
    decimals = any(pa.types.is_decimal(node.kind) for node in (left, right))
    floats = any(pa.types.is_floating(node.kind) for node in (left, right))
    if decimals and not floats:
        return _of_decimals(operator, left, right, text)
    if operator == "div" and floats:
        raise FilterError(f"{text}: div is of integers and decimals; use CAST", construct=text)
    kind = DOUBLE if operator == "/" else BIGINT if operator == "div" else wider(left.kind, right.kind)
    left, right = cast(left, kind), cast(right, kind)
    if operator in _CHECKED:
        function = partial(_plain if pa.types.is_floating(kind) else _checked, operator=operator)
        return call(function, [left, right], kind, text, fails=pa.types.is_integer(kind))
    # Spark evaluates the divisor first.
    return call(partial(_divided, operator=operator), [right, left], kind, text, fails=True)


def negative(node: Node, text: str) -> Node:
    return _of_one(node, text, _negated)


def absolute(node: Node, text: str) -> Node:
    return _of_one(node, text, _absolute)


def _typed(node: Node, other: Node) -> Node:
    """The node. A NULL without a type gets the other side's type."""
    if not pa.types.is_null(node.kind):
        return node
    return Constant(None, DOUBLE if pa.types.is_null(other.kind) else other.kind, node.text)


def _plain(left: pa.Array, right: pa.Array, *, operator: str) -> pa.Array:
    by_operator = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
    return by_operator[operator](left, right)


def _checked(left: pa.Array, right: pa.Array, *, operator: str) -> pa.Array:
    try:
        return _CHECKED[operator](left, right)
    except pa.ArrowInvalid:
        exact = _PLAIN[operator](to_vector(left).astype(object), to_vector(right).astype(object))
        highest = 2 ** (left.type.bit_width - 1) - 1
        bad = ((exact > highest) | (exact < -highest - 1)).astype(np.bool_) & valid(left, right)
        refuse(bad, _OVERFLOW.replace("{kind}", name(left.type)), left, right)
        raise


def _divided(right: pa.Array, left: pa.Array, *, operator: str) -> pa.Array:
    """Two arrays of one type, divided: ``/`` of floats, ``div`` of integers, ``%`` and ``pmod`` of both."""
    known = valid(left, right)
    dividends, divisors = to_vector(left), to_vector(right)
    refuse((divisors == 0) & known, _BY_ZERO.replace("{operator}", operator), left, right)
    divisors = np.where(known, divisors, 1)
    with np.errstate(all="ignore"):
        if operator == "/":
            return from_vector(dividends / divisors, known, left.type)
        if operator == "div":
            lowest = np.iinfo(np.int64).min
            bad = (dividends == lowest) & (divisors == -1) & known
            refuse(bad, _OVERFLOW.replace("{kind}", name(left.type)), left, right)
            return from_vector((dividends - _remainder(dividends, divisors)) // divisors, known, left.type)
        if dividends.dtype.itemsize < _INT_BYTES:
            dividends, divisors = dividends.astype(np.int32), divisors.astype(np.int32)
        rest = _remainder(dividends, divisors)
        if operator == "pmod":
            rest = np.where(rest < 0, _remainder(rest + divisors, divisors), rest)
    return from_vector(rest, known, left.type)


def _remainder(dividends: Any, divisors: Any) -> Any:
    """The remainder, with the dividend's sign. (The processor traps if the lowest integer is divided by -1.)"""
    if dividends.dtype.kind == "i":
        return np.fmod(dividends, np.where(divisors == -1, 1, divisors).astype(dividends.dtype))
    return np.fmod(dividends, divisors)


def _of_decimals(operator: str, left: Node, right: Node, text: str) -> Node:
    kinds = as_decimal(left), as_decimal(right)
    (p1, s1), (p2, s2) = ((kind.precision, kind.scale) for kind in kinds)
    whole, scale = max(p1 - s1, p2 - s2), max(s1, s2)
    if operator in ("+", "-"):
        kind = bounded(whole + scale + 1, scale)
    elif operator == "*":
        kind = bounded(p1 + p2 + 1, s1 + s2)
    elif operator == "/":
        kind = bounded(p1 - s1 + s2 + max(6, s1 + p2 + 1), max(6, s1 + p2 + 1))
    else:
        kind = bounded(min(p1 - s1, p2 - s2) + scale, scale)
    divides = operator not in _PLAIN
    result = BIGINT if operator == "div" else kind
    function = partial(_decimals, operator=operator, left_kind=kinds[0], right_kind=kinds[1], kind=result)
    return call(function, [right, left] if divides else [left, right], result, text, fails=True)


def _decimals(
    first: pa.Array,
    second: pa.Array,
    *,
    operator: str,
    left_kind: pa.DataType,
    right_kind: pa.DataType,
    kind: pa.DataType,
) -> pa.Array:
    left, right = (first, second) if operator in _PLAIN else (second, first)
    known = valid(left, right)
    a, b = to_unscaled(left), to_unscaled(right)
    overflow = _OVERFLOW.replace("{kind}", name(kind))
    if operator in _PLAIN:
        values = _sum_or_product(operator, a, b, left_kind, right_kind, kind)
    else:
        refuse((b == 0).astype(np.bool_) & known, _BY_ZERO.replace("{operator}", operator), left, right)
        b = np.where(known, b, 1)
        if operator == "/":
            values = _quotient(a, b, right_kind.scale - left_kind.scale, kind.scale)
        else:
            scale = max(left_kind.scale, right_kind.scale)
            a = rescaled(a, left_kind.precision, left_kind.scale, scale)
            b = rescaled(b, right_kind.precision, right_kind.scale, scale)
            values, whole = _rest(a, b)
            refuse(beyond(whole, known, _DIV_DIGITS if operator == "div" else _DIGITS), overflow, left, right)
            if operator == "div":
                low = (whole.astype(object) + 2**63) % 2**64 - 2**63  # Spark keeps the lower 64 bits
                return from_vector(low.astype(np.int64), known, kind)
            if operator == "pmod":
                values = np.where((values < 0).astype(np.bool_), _rest(values + b, b)[0], values)
    refuse(beyond(values, known, kind.precision), overflow, left, right)
    return from_unscaled(values, known, kind)


def _quotient(a: Integers, b: Integers, shift: int, scale: int) -> Integers:
    """``a / b`` with ``scale`` digits behind the point. ``b`` has ``shift`` more such digits than ``a``."""
    shift += _DIGITS
    a, b = a.astype(object), b.astype(object)
    return halves_up(halves_up(a * 10 ** max(shift, 0), b * 10 ** max(-shift, 0)), 10 ** (_DIGITS - scale))


def _rest(a: Integers, b: Integers) -> tuple[Integers, Integers]:
    """The remainder, with the sign of ``a``, and the whole quotient."""
    rest = np.where((a < 0).astype(np.bool_), -1, 1) * (np.abs(a) % np.abs(b))
    return rest, (a - rest) // b


def _sum_or_product(
    operator: str, a: Integers, b: Integers, left: pa.DataType, right: pa.DataType, kind: pa.DataType
) -> Integers:
    if operator == "*":
        digits, scale = left.precision + right.precision, left.scale + right.scale
        values = roomy(a, digits) * roomy(b, digits)
        if digits > _DIGITS:
            values = _to_digits(values)
    else:
        scale = max(left.scale, right.scale)
        digits = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
        a = rescaled(roomy(a, digits), left.precision, left.scale, scale)
        b = rescaled(roomy(b, digits), right.precision, right.scale, scale)
        values = a + b if operator == "+" else a - b
    return rescaled(values, digits, scale, kind.scale)


def _to_digits(values: Integers) -> Integers:
    """Products rounded to 39 digits."""
    cut = [10 ** max(0, len(str(abs(value))) - _DIGITS) for value in values.tolist()]
    powers = np.array(cut, dtype=object)
    return halves_up(values, powers) * powers


def _of_one(node: Node, text: str, function: Callable[[pa.Array], pa.Array]) -> Node:
    if pa.types.is_null(node.kind):
        return Constant(None, DOUBLE, text)
    if not is_number(node.kind):
        raise FilterError(f"{text}: {node.text} is {name(node.kind)}, not a number; use CAST", construct=text)
    return call(function, [node], node.kind, text, fails=pa.types.is_integer(node.kind))


def _negated(array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        _refuse_lowest(array)
    return pc.negate(array)


def _absolute(array: pa.Array) -> pa.Array:
    if pa.types.is_integer(array.type):
        _refuse_lowest(array)
    return pc.abs(array)


def _refuse_lowest(array: pa.Array) -> None:
    lowest = -(2 ** (array.type.bit_width - 1))
    refuse(to_vector(array) == lowest, "the opposite of {} is not a valid " + name(array.type), array)
