"""``round``, ``floor``, ``ceil`` and ``sqrt``. Halves are rounded away from zero, in decimal digits."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.nodes import Constant, Node, call
from lakemerge.sql.types import BIGINT, DOUBLE, is_number, name
from lakemerge.sql.unscaled import beyond, from_unscaled, rescaled, to_unscaled
from lakemerge.sql.vectors import from_vector, refuse, to_vector, valid

__all__ = ["rounded", "square_root", "whole"]

_MAX_DIGITS = 38
_EXACT_POWER = 22
"""Powers of ten up to here are exact as doubles."""
_SURE = 2.0**50
_MARGIN = 2.0**-10
"""A scaled double up to ``_SURE`` that is further from a half than this is rounded right in floating point."""
_EXACT = Context(prec=1200)


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
        raise FilterError(f"{text}: {node.text} is {name(node.kind)}, not a number; use CAST", construct=text)


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
    refuse(beyond(found, known, kind.precision), "{} rounded is not a valid " + name(kind), values)
    return from_unscaled(found, known, kind)


def _round_integers(values: pa.Array, *, digits: int) -> pa.Array:
    known, exact = valid(values), to_unscaled(values).astype(object)
    found = rescaled(exact, 19, 0, -min(digits, 20)) * 10 ** min(digits, 20)
    limits = np.iinfo(values.type.to_pandas_dtype())
    bad = ((found < limits.min) | (found > limits.max)).astype(np.bool_) & known
    refuse(bad, "{} rounded is not a valid " + name(values.type), values)
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
