"""``INTERVAL`` literals, and their addition to dates and times."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa
from sqlglot import exp

from lakemerge.errors import FilterError
from lakemerge.sql.casts import cast
from lakemerge.sql.dates import CLOCK_UNITS, Interval, later
from lakemerge.sql.functions import add_days
from lakemerge.sql.nodes import Node, call
from lakemerge.sql.parsing import sql, unsupported
from lakemerge.sql.types import TIMESTAMP, is_time
from mergers.type_names import type_name

__all__ = ["interval_of", "with_days", "with_interval"]

_DAY = 24 * CLOCK_UNITS["hour"]
_MONTHS = {"month": 1, "year": 12}
_DAYS = {"day": _DAY, "week": 7 * _DAY}
_PART = re.compile(r"([+-]?\d+)(?:\.(\d{1,9}))?\s+([a-z]+)\s*", re.ASCII)


def interval_of(node: Any) -> Interval | None:
    """The interval that a node stands for: a literal, a sum of intervals, or the opposite of one. For any other node,
    ``None``."""
    if isinstance(node, exp.Paren):
        return interval_of(node.this)
    if isinstance(node, exp.Neg):
        found = interval_of(node.this)
        return None if found is None else found.negated()
    if isinstance(node, exp.Add | exp.Sub):
        left, right = interval_of(node.this), interval_of(node.expression)
        if left is None or right is None:
            return None
        return _sum(node, left, right.negated() if isinstance(node, exp.Sub) else right)
    return _literal(node) if isinstance(node, exp.Interval) else None


def with_interval(value: Node, interval: Interval, text: str) -> Node:
    """A date or time with an interval added. A date with hours becomes a time."""
    if not is_time(value.kind):
        raise FilterError(
            f"{text}: {value.text} is {type_name(value.kind)}, not a date or a time; use CAST", construct=text
        )
    if pa.types.is_date(value.kind) and not interval.of_days and not interval.months:
        value = cast(value, TIMESTAMP)
    return call(partial(later, interval=interval), [value], value.kind, text, fails=True)


def with_days(left: Node, right: Node, text: str, *, back: bool) -> Node | None:
    """``date + days``, ``days + date``, ``date - days``. ``None`` if neither side is a date."""
    if pa.types.is_date(left.kind) and not is_time(right.kind):
        return add_days(left, right, text, back=back)
    if pa.types.is_date(right.kind) and not is_time(left.kind) and not back:
        return add_days(right, left, text, back=False)
    return None


def _sum(node: Any, left: Interval, right: Interval) -> Interval:
    if bool(left.months) != bool(right.months):
        raise FilterError(f"{sql(node)}: months and days do not add up; add them one after the other")
    of_days = left.of_days and right.of_days
    return Interval(left.months + right.months, left.micros + right.micros, of_days)


def _literal(node: Any) -> Interval:
    """``INTERVAL 1 DAY``, ``INTERVAL '-2.5' SECONDS``, ``INTERVAL '1 day 2 hours'``."""
    given, unit = node.this, node.args.get("unit")
    if isinstance(given, exp.Neg):
        given, sign = given.this, "-"
    else:
        sign = ""
    if not isinstance(given, exp.Literal) or not (unit is None or isinstance(unit, exp.Var)):
        unsupported(node)
    text = f"{sign}{given.this} {'' if unit is None else unit.name}".lower().strip()
    at, found = 0, None
    while at < len(text):
        match = _PART.match(text, at)
        part = None if match is None else _part(*match.groups())
        if match is None or part is None:
            unsupported(node)
        found = part if found is None else _sum(node, found, part)
        at = match.end()
    if found is None:
        unsupported(node)
    return found


def _part(number: str, fraction: str | None, unit: str) -> Interval | None:
    unit = unit.removesuffix("s")
    if fraction is not None and unit != "second":
        return None
    if unit in _MONTHS:
        return Interval(int(number) * _MONTHS[unit], 0, of_days=False)
    if unit in _DAYS:
        return Interval(0, int(number) * _DAYS[unit], of_days=True)
    if unit not in CLOCK_UNITS:
        return None
    more = int((fraction or "").ljust(6, "0")[:6])
    return Interval(0, int(number) * CLOCK_UNITS[unit] + (-more if number.startswith("-") else more), of_days=False)
