"""The queries of the comparison: SQL that Spark and DuckDB both understand, and the columns it needs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "AGGREGATE",
    "FILTER",
    "FULL_SCAN",
    "Answer",
    "Query",
    "condition",
    "look_up",
    "normalised",
    "queries",
    "wide_queries",
]

Answer = tuple[tuple[str, ...], ...]
"""Rows of an answer as text, sorted, so that engines of any kind can be compared."""
Bound = tuple[str, str, int | dt.date]
"""A column, ``=``, ``>=`` or ``<``, and a value."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query over one table. Without ``select`` every row is produced with all columns, and the
    answer is their number."""

    name: str
    columns: tuple[str, ...]
    """All columns that the query names; none for all columns."""
    select: str = ""
    bounds: tuple[Bound, ...] = ()
    """What rows must meet, all of it."""
    group_by: str = ""

    @property
    def condition(self) -> str | None:
        """The bounds as SQL."""
        return condition(self.bounds)

    def over(self, relation: str) -> str:
        """The query as SQL over rows that already meet the bounds."""
        grouped = f" GROUP BY {self.group_by}" if self.group_by else ""
        return f"SELECT {self.select or 'count(*)'} FROM {relation}{grouped}"


def queries(order: int, line: int) -> tuple[Query, ...]:
    """All queries; ``order`` and ``line`` are the key of a row that was updated."""
    return (FULL_SCAN, AGGREGATE, _COUNT, FILTER, look_up(order, line))


def look_up(order: int, line: int) -> Query:
    columns = ("l_orderkey", "l_linenumber", "l_extendedprice", "l_shipmode", "l_comment", "updated_at")
    bounds: tuple[Bound, ...] = (("l_orderkey", "=", order), ("l_linenumber", "=", line))
    return Query("key look-up", columns, ", ".join(columns), bounds)


def wide_queries(key: int) -> tuple[Query, ...]:
    """The queries of a mix over the wide table; ``key`` is that of a row that was updated."""
    columns = ("id", "updated_at", "i0", "d0", "s0")
    return (
        FULL_SCAN,
        Query("two-column aggregate", ("s17", "i0"), "s17, sum(i0)", (), "s17"),
        Query("filter on one in a hundred", ("i1", "i0", "s0"), "count(*), sum(i0), min(s0)", (_ONE_IN_A_HUNDRED,)),
        Query("key look-up", columns, ", ".join(columns), (("id", "=", key),)),
    )


def condition(bounds: Iterable[Bound]) -> str | None:
    """Bounds as SQL; ``None`` where there are none."""
    return " AND ".join(f"{column} {sign} {_literal(value)}" for column, sign, value in bounds) or None


def normalised(rows: Iterable[Sequence[object]]) -> Answer:
    return tuple(sorted(tuple(map(str, row)) for row in rows))


def _literal(value: int | dt.date) -> str:
    return f"DATE '{value.isoformat()}'" if isinstance(value, dt.date) else str(value)


_ONE_IN_A_HUNDRED: Bound = ("i1", "<", 2**31 // 100)
FULL_SCAN = Query("full scan", ())
AGGREGATE = Query(
    "two-column aggregate", ("l_shipmode", "l_extendedprice"), "l_shipmode, sum(l_extendedprice)", (), "l_shipmode"
)
_COUNT = Query("count", ("l_orderkey",), "count(*)")
FILTER = Query(
    "filter on one week",
    ("l_shipdate", "l_extendedprice", "l_comment"),
    "count(*), sum(l_extendedprice), min(l_comment)",
    (("l_shipdate", ">=", dt.date(1995, 3, 1)), ("l_shipdate", "<", dt.date(1995, 3, 8))),
)
