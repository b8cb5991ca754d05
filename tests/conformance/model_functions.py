"""The aggregate functions of the plain-Python model, from the table in section 5 of the semantics.

Sketches and bitmaps have no plain-Python model and no case; ``tests/property/test_unions.py`` is about them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any, ClassVar

import pyarrow as pa

from tests.model import Misconfigured, Refused, Unreadable, rank

__all__ = ["Function", "check_range", "function_of"]


class Function:
    """One column's function. ``acc`` is the stored value, ``x`` the incoming one; both may be null."""

    options: ClassVar[frozenset[str]] = frozenset()
    retracts: ClassVar[bool] = False

    def __init__(self, kind: pa.DataType, options: Mapping[str, Any]) -> None:
        self.kind = kind
        self.config = options
        if set(options) - self.options:
            raise Misconfigured(f"unknown options {sorted(set(options) - self.options)}")
        if not self.takes(kind):
            raise Misconfigured(f"{type(self).__name__} does not take {kind}")

    def takes(self, kind: pa.DataType) -> bool:
        return True

    def agg(self, acc: Any, x: Any) -> Any:
        """The aggregate of two values, in fold order."""
        if acc is None or x is None:
            return x if acc is None else acc
        return self.both(acc, x)

    def both(self, acc: Any, x: Any) -> Any:
        """The aggregate of two values that are not null, in fold order."""
        raise AssertionError

    def fold(self, acc: Any, x: Any, *, newer: bool, first: bool) -> Any:
        """``first``: nothing was folded before, ``acc`` is no value at all."""
        return self.agg(acc, x) if newer else self.agg(x, acc)

    def retract(self, acc: Any, x: Any) -> Any:
        raise AssertionError

    def check_retraction(self, x: Any) -> None:
        """Raise :class:`Refused` where ``x`` cannot be taken back."""


def _numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


class Sum(Function):
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return _numeric(kind)

    def both(self, acc: Any, x: Any) -> Any:
        with localcontext(prec=200):
            return acc + x

    def retract(self, acc: Any, x: Any) -> Any:
        with localcontext(prec=200):
            return acc if x is None else (-x if acc is None else acc - x)


class Product(Function):
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return _numeric(kind)

    def both(self, acc: Any, x: Any) -> Any:
        with localcontext(prec=200):
            return self._round(acc * x)

    def check_retraction(self, x: Any) -> None:
        if x is not None and x == 0:
            raise Refused("a product cannot take back a zero")

    def retract(self, acc: Any, x: Any) -> Any:
        if acc is None or x is None:
            return acc
        if isinstance(acc, int):
            quotient = abs(acc) // abs(x)
            return quotient if (acc < 0) == (x < 0) else -quotient
        with localcontext(prec=200):
            return self._round(acc / x)

    def _round(self, value: Any) -> Any:
        if not isinstance(self.kind, pa.Decimal128Type):
            return value
        return value.quantize(Decimal(1).scaleb(-self.kind.scale), rounding=ROUND_HALF_UP)


class Count(Function):
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_integer(kind)

    def fold(self, acc: Any, x: Any, *, newer: bool, first: bool) -> Any:
        return acc if x is None else (acc or 0) + 1

    def retract(self, acc: Any, x: Any) -> Any:
        return acc if x is None else (acc or 0) - 1


class _Extreme(Function):
    def takes(self, kind: pa.DataType) -> bool:
        return not pa.types.is_nested(kind)


class Min(_Extreme):
    def both(self, acc: Any, x: Any) -> Any:
        return min(acc, x, key=rank)


class Max(_Extreme):
    def both(self, acc: Any, x: Any) -> Any:
        return max(acc, x, key=rank)


class LastValue(Function):
    retracts = True

    def agg(self, acc: Any, x: Any) -> Any:
        return x

    def retract(self, acc: Any, x: Any) -> Any:
        return None


class LastNonNullValue(Function):
    retracts = True

    def both(self, acc: Any, x: Any) -> Any:
        return x

    def retract(self, acc: Any, x: Any) -> Any:
        return acc if x is None else None


class FirstValue(Function):
    def fold(self, acc: Any, x: Any, *, newer: bool, first: bool) -> Any:
        return acc if newer and not first else x


class FirstNonNullValue(Function):
    def both(self, acc: Any, x: Any) -> Any:
        return acc


class _Boolean(Function):
    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_boolean(kind)


class BoolAnd(_Boolean):
    def both(self, acc: Any, x: Any) -> Any:
        return acc and x


class BoolOr(_Boolean):
    def both(self, acc: Any, x: Any) -> Any:
        return acc or x


def _distinct(items: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if not any(same(item, other) for other in found):
            found.append(item)
    return found


def same(left: Any, right: Any) -> bool:
    """Equal as orderings are (section 4), at any depth: NaN equals NaN, -0.0 equals 0.0, and null equals null."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    return bool(left == right)


class Listagg(Function):
    options = frozenset({"delimiter", "distinct"})

    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_string(kind)

    def agg(self, acc: Any, x: Any) -> Any:
        delimiter = self.config.get("delimiter", ",")
        texts = [text for text in (acc, x) if text is not None and text.strip() != ""]
        if not texts:
            return None
        if self.config.get("distinct"):
            return delimiter.join(_distinct(part for text in texts for part in text.split(delimiter)))
        return delimiter.join(texts)


class Collect(Function):
    options = frozenset({"distinct"})
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_list(kind)

    def agg(self, acc: Any, x: Any) -> Any:
        if acc is None and x is None:
            return None
        items = [*(acc or []), *(x or [])]
        return _distinct(items) if self.config.get("distinct") else items

    def retract(self, acc: Any, x: Any) -> Any:
        if acc is None:
            return None
        left = list(acc)
        for item in x or []:
            found = next((place for place, other in enumerate(left) if same(item, other)), None)
            if found is not None:
                del left[found]
        return left


class MergeMap(Function):
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_map(kind)

    def both(self, acc: Any, x: Any) -> Any:
        result: list[Any] = []
        for key, value in (*acc, *x):
            result = [pair for pair in result if not same(pair[0], key)] + [(key, value)]
        return result

    def retract(self, acc: Any, x: Any) -> Any:
        if acc is None:
            return None
        return [(key, value) for key, value in acc if not any(same(key, gone) for gone, _ in x or [])]


class MergeMapWithKeytime(Function):
    options = frozenset({"ts_field"})

    def takes(self, kind: pa.DataType) -> bool:
        return pa.types.is_map(kind) and pa.types.is_struct(kind.item_type)

    def agg(self, acc: Any, x: Any) -> Any:
        if acc is None and x is None:
            return None
        time, result = self.config["ts_field"], list[Any]()
        for key, value in (*(acc or []), *(x or [])):
            stands = [old for place, old in result if same(place, key)]
            if value is not None and (
                value[time] is None or any(rank(old[time]) > rank(value[time]) for old in stands)
            ):
                continue
            result = [pair for pair in result if not same(pair[0], key)]
            result += [] if value is None else [(key, value)]
        return result


class NestedUpdate(Function):
    options = frozenset({"nested_key"})
    retracts = True

    def takes(self, kind: pa.DataType) -> bool:
        return isinstance(kind, pa.ListType) and pa.types.is_struct(kind.value_type)

    def agg(self, acc: Any, x: Any) -> Any:
        if acc is None and x is None:
            return None
        result: list[Any] = []
        for item in (*(acc or []), *(x or [])):
            places = [i for i, old in enumerate(result) if self.config.get("nested_key") and self._same(old, item)]
            if places:
                result[places[0]] = item
            else:
                result.append(item)
        return result

    def retract(self, acc: Any, x: Any) -> Any:
        if acc is None:
            return None
        return [old for old in acc if not any(self._same(old, item) for item in x or [])]

    def _same(self, left: Any, right: Any) -> bool:
        names = self.config.get("nested_key") or left.keys()
        return all(same(left[name], right[name]) for name in names)


FUNCTIONS: dict[str, type[Function]] = {
    "sum": Sum,
    "product": Product,
    "count": Count,
    "min": Min,
    "max": Max,
    "last_value": LastValue,
    "last_non_null_value": LastNonNullValue,
    "first_value": FirstValue,
    "first_non_null_value": FirstNonNullValue,
    "bool_and": BoolAnd,
    "bool_or": BoolOr,
    "listagg": Listagg,
    "collect": Collect,
    "merge_map": MergeMap,
    "merge_map_with_keytime": MergeMapWithKeytime,
    "nested_update": NestedUpdate,
}


def function_of(given: str | Mapping[str, Any], kind: pa.DataType) -> Function:
    """The function a table's options name for a column of type ``kind``. Raises :class:`Misconfigured`."""
    options = {} if isinstance(given, str) else {k: v for k, v in given.items() if k != "function"}
    name = given if isinstance(given, str) else given["function"]
    if name not in FUNCTIONS:
        raise Misconfigured(f"unknown function {name!r}")
    return FUNCTIONS[name](kind, options)


def check_range(value: Any, kind: pa.DataType) -> None:
    """Raise :class:`Unreadable` where an exact total does not fit its column."""
    if value is None:
        return
    if pa.types.is_integer(kind):
        limit = 1 << (kind.bit_width - 1)
        if not -limit <= value < limit:
            raise Unreadable(f"{value} does not fit {kind}")
    if isinstance(kind, pa.Decimal128Type) and value.copy_abs() >= Decimal(10) ** (kind.precision - kind.scale):
        raise Unreadable(f"{value} does not fit {kind}")
