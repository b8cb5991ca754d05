"""Numbers: ``+ - * / % div``, ``pmod``, unary minus, ``abs``, ``round``, ``floor``, ``ceil`` and ``sqrt``, with Spark's
result types.

Overflow and division by zero are errors, as under Spark's ANSI mode. Halves are rounded away from zero, in decimal
digits. One difference: Spark's unary minus and ``abs`` round decimals of more than 34 digits, and here they are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.decimals import Integers, beyond, from_unscaled, halves_up, rescaled, roomy, to_unscaled
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.types import BIGINT, DOUBLE, as_decimal, bounded, is_number, wider
from lakemerge.sql.vectors import from_vector, refuse, to_vector, valid
from mergers.type_names import type_name

__all__ = ["absolute", "arithmetic", "negative", "rounded", "square_root", "whole"]

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
_MAX_DIGITS = 38
_EXACT_POWER = 22
"""Powers of ten up to here are exact as doubles."""
_SURE = 2.0**50
_MARGIN = 2.0**-10
"""A scaled double up to ``_SURE`` that is further from a half than this is rounded right in floating point."""
_EXACT = Context(prec=1200)


def arithmetic(operator: str, left: Node, right: Node, text: str) -> Node:
    """``left operator right`` for ``+ - * / % div pmod``. Raises :class:`FilterError` if an operand is not a number."""
    for node in (left, right):
        _check(node, text)
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


def rounded(node: Node, digits: int, text: str) -> Node:
    """``round(node, digits)``."""
    _check(node, text)
    if pa.types.is_null(node.kind):
        return Constant(None, DOUBLE, text)
    if pa.types.is_decimal(node.kind):
        return _rounded_decimal(node, digits, text)
    if pa.types.is_floating(node.kind):
        return call(partial(_round_floats, digits=digits), [node], node.kind, text)
    if digits >= 0:
        return node
    return call(partial(_round_integers, digits=-digits), [node], node.kind, text, fails=True)


def whole(node: Node, text: str, *, up: bool) -> Node:
    """``ceil`` if ``up``, else ``floor``. The result is a BIGINT, or a decimal without digits behind the point."""
    _check(node, text)
    if not pa.types.is_decimal(node.kind):
        node = cast(node, DOUBLE if pa.types.is_floating(node.kind) else BIGINT)
        return call(partial(_whole_floats, up=up), [node], BIGINT, text) if node.kind == DOUBLE else node
    if node.kind.scale == 0:
        return node
    kind = pa.decimal128(node.kind.precision - node.kind.scale + 1, 0)
    return call(partial(_whole_decimals, up=up, kind=kind), [node], kind, text)


def square_root(node: Node, text: str) -> Node:
    """``sqrt``. It is NaN for negative numbers."""
    _check(node, text)
    return call(_square_root, [cast(node, DOUBLE)], DOUBLE, text)


def _check(node: Node, text: str) -> None:
    if not is_number(node.kind) and not pa.types.is_null(node.kind):
        raise FilterError(f"{text}: {node.text} is {type_name(node.kind)}, not a number; use CAST", construct=text)


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
        refuse(bad, _OVERFLOW.replace("{kind}", type_name(left.type)), left, right)
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
            refuse(bad, _OVERFLOW.replace("{kind}", type_name(left.type)), left, right)
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
    overflow = _OVERFLOW.replace("{kind}", type_name(kind))
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
    _check(node, text)
    if pa.types.is_null(node.kind):
        return Constant(None, DOUBLE, text)
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
    refuse(to_vector(array) == lowest, "the opposite of {} is not a valid " + type_name(array.type), array)


def _square_root(values: pa.Array) -> pa.Array:
    with np.errstate(invalid="ignore"):
        return from_vector(np.sqrt(to_vector(values)), valid(values), DOUBLE)


def _rounded_decimal(node: Node, digits: int, text: str) -> Node:
    precision, scale = node.kind.precision, node.kind.scale
    if digits < 0:
        kind = pa.decimal128(min(max(precision - scale + 1, -digits + 1), _MAX_DIGITS), 0)
    else:
        kept = min(scale, digits)
        kind = pa.decimal128(min(precision - scale + 1 + kept, _MAX_DIGITS), kept)
    return call(partial(_round_decimals, digits=digits, kind=kind), [node], kind, text, fails=True)


def _round_decimals(values: pa.Array, *, digits: int, kind: pa.DataType) -> pa.Array:
    known, precision, scale = valid(values), values.type.precision, values.type.scale
    digits = max(min(digits, scale), -_MAX_DIGITS - 1)
    found = rescaled(to_unscaled(values).astype(object), precision, scale, digits)
    found = found * 10 ** (kind.scale - digits)
    refuse(beyond(found, known, kind.precision), "{} rounded is not a valid " + type_name(kind), values)
    return from_unscaled(found, known, kind)


def _round_integers(values: pa.Array, *, digits: int) -> pa.Array:
    known, exact = valid(values), to_unscaled(values).astype(object)
    found = rescaled(exact, 19, 0, -min(digits, 20)) * 10 ** min(digits, 20)
    limits = np.iinfo(values.type.to_pandas_dtype())
    bad = ((found < limits.min) | (found > limits.max)).astype(np.bool_) & known
    refuse(bad, "{} rounded is not a valid " + type_name(values.type), values)
    return from_vector(found.astype(limits.dtype), known, values.type)


def _round_floats(values: pa.Array, *, digits: int) -> pa.Array:
    """Round by the shortest decimal digits of a double: 2.675 becomes 2.68, although the double is a little less.
    Numbers too close to a half for floating point are rounded one by one as decimals."""
    exact = to_vector(values).astype(np.float64)
    found = exact.copy()
    unsure = np.isfinite(exact) & (exact != 0)
    if 0 <= digits <= _EXACT_POWER:
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.abs(exact) * 10.0**digits
            below = np.floor(scaled)
            sure = (scaled < _SURE) & (np.abs(scaled - below - 0.5) > _MARGIN * np.maximum(1, scaled * 2.0**-40))
            near = np.copysign((below + (scaled - below >= 0.5)) / 10.0**digits, exact)
        found = np.where(sure & unsure, near, found)
        unsure &= ~sure
    found[unsure] = [_round_one(value, digits) for value in exact[unsure].tolist()]
    return from_vector(_narrow(found + 0.0, values.type), valid(values), values.type)  # 0.0, not -0.0


def _narrow(values: npt.NDArray[np.float64], kind: pa.DataType) -> npt.NDArray[Any]:
    with np.errstate(over="ignore"):
        return values.astype(np.float32) if pa.types.is_float32(kind) else values


def _round_one(value: float, digits: int) -> float:
    number = Decimal(repr(value))
    _, _, exponent = number.as_tuple()
    if -int(exponent) <= digits:
        return value
    if number.adjusted() < -digits - 1:
        return 0.0
    return float(number.quantize(Decimal((0, (1,), -digits)), ROUND_HALF_UP, _EXACT))


def _whole_floats(values: pa.Array, *, up: bool) -> pa.Array:
    """As in Java, numbers beyond the range of BIGINT become its lowest or highest value, and NaN becomes 0."""
    limits = np.iinfo(np.int64)
    exact = to_vector((pc.ceil if up else pc.floor)(values))
    high, low = exact >= 2.0**63, exact < -(2.0**63)
    inside = np.where(high | low | np.isnan(exact), 0.0, exact).astype(np.int64)
    found = np.where(high, limits.max, np.where(low, limits.min, inside))
    return from_vector(found, valid(values), BIGINT)


def _whole_decimals(values: pa.Array, *, up: bool, kind: pa.DataType) -> pa.Array:
    divisor = 10**values.type.scale
    exact = to_unscaled(values)
    return from_unscaled(-(-exact // divisor) if up else exact // divisor, valid(values), kind)
