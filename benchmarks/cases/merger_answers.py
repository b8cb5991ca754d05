"""The rows that each case of the merger benchmark must give, computed by DuckDB from its records.

Written from docs/merge-semantics.md, section 5, for records that carry every column and hold a key's
stored row, if there is one, in front.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from benchmarks.cases.merger_records import MARKER, SCHEMA, Case, Inputs

__all__ = ["Answers"]

_VALUES = SCHEMA.names[1:]
# Columns of the records: p, the position; newer, whether a record is not below any before it in ts; gone,
# the position of the key's last delete among those.
_RECORDS = """
CREATE TEMP TABLE records AS
SELECT *, coalesce(max(p) FILTER (newer AND op = 'd') OVER (PARTITION BY k), -1) AS gone
FROM (SELECT *, ts >= max(ts) OVER (PARTITION BY k ORDER BY p) AS newer FROM arrived)
"""
_ARRIVED = "CREATE TEMP TABLE arrived AS SELECT *, {version} * 1000000000::BIGINT + row_number() OVER () AS p FROM rows"


def _picked(column: str, *, by: str = "p", where: str = "true", least: bool = False) -> str:
    """The value of the record with the highest position, be it null."""
    function = "min_by" if least else "max_by"
    return f"{function}({{'v': {column}}}, {by}) FILTER ({where}).v"


def _whole(by: str, *, least: bool = False) -> Mapping[str, str]:
    return {name: _picked(name, by=by, least=least) for name in _VALUES}


def _not_null(column: str) -> str:
    return f"max_by({column}, p) FILTER ({column} IS NOT NULL)"


def _filled(column: str) -> str:
    """Newer values overwrite, older ones fill."""
    newer = f"max_by({column}, p) FILTER (newer AND {column} IS NOT NULL)"
    return f"coalesce({newer}, min_by({column}, p) FILTER ({column} IS NOT NULL))"


_BY_TIME = "{'o': ts, 'p': p}"
_BY_FILE = "{'f': split_part(file, '.', 2)::INTEGER, 'o': ts, 'p': p}"
_COUNT = "coalesce(max(i1) FILTER (p < 1000000000), 0) + count(i1) FILTER (p > 1000000000)"
_SUMS = {
    "i0": "sum(i0)",
    "i1": _COUNT,
    "i2": "max(i2)",
    "f0": "sum(f0)",
    "f1": "min(f1)",
    "d0": "sum(d0)",
}
_AGGREGATED = {**{name: _not_null(name) for name in _VALUES}, **_SUMS, "s0": _picked("s0", least=True)}
_EXPRESSIONS: Mapping[str, Mapping[str, str]] = {
    "event-time": _whole(_BY_TIME),
    "event-time, as an expression": _whole(_BY_TIME),
    "row contract": _whole(_BY_TIME),
    "commit-time": _whole("p"),
    "first-row": _whole("p", least=True),
    "first-row, ordered": _whole(_BY_TIME, least=True),
    "debezium-mysql": _whole(_BY_FILE),
    "aws-dms": _whole("p"),
    "debezium-postgres": {
        **_whole(_BY_TIME),
        "s0": _picked("s0", where=f"newer AND p > gone AND s0 IS DISTINCT FROM '{MARKER}'"),
    },
    "overwrite-non-defaults": {
        **{name: _not_null(name) for name in _VALUES},
        "i1": "coalesce(max_by(i1, p) FILTER (i1 <> 0), 0)",
    },
    "partial-update": {name: _not_null(name) for name in _VALUES},
    "partial-update, ordered": {**{name: _filled(name) for name in _VALUES}, "ts": "max(ts)"},
    "partial-update, groups": {
        **{name: _not_null(name) for name in _VALUES},
        **{name: _picked(name, where="newer") for name in ("i1", "f0", "d0", "s0")},
        "ts": "max(ts)",
        "i0": "sum(i0)",
    },
    "aggregate": _AGGREGATED,
    "aggregate, as an expression": _AGGREGATED,
    "aggregate, ordered": {
        **{name: _filled(name) for name in _VALUES},
        **_SUMS,
        "ts": "max(ts)",
        # The last that came late stands in front; else the one that made the row.
        "s0": "CASE WHEN bool_and(newer) THEN " + _picked("s0", least=True)
        + " ELSE " + _picked("s0", where="NOT newer") + " END",
        "d1": "product(d1::DOUBLE)",
    },
}  # fmt: skip
_REMOVED = {
    "debezium-mysql": _picked("op", by=_BY_FILE) + " = 'd'",
    "debezium-postgres": _picked("op", by=_BY_TIME) + " = 'd'",
    "aws-dms": _picked("op") + " = 'D'",
}


class Answers:
    """What the cases must give for some inputs."""

    def __init__(self, inputs: Inputs) -> None:
        self._database = duckdb.connect()
        for number, rows in enumerate((inputs.base, *inputs.frames)):
            self._database.register("rows", rows)
            create, _, insert = _ARRIVED.format(version=number).partition(" AS ")
            self._database.execute(f"INSERT INTO arrived {insert}" if number else f"{create} AS {insert}")
            self._database.unregister("rows")
        self._database.execute(_RECORDS)

    def rows(self, case: Case) -> pa.Table:
        """Sorted by key."""
        selected = ", ".join(f"{expression} AS {name}" for name, expression in _EXPRESSIONS[case.name].items())
        removed = f"HAVING NOT {_REMOVED[case.name]}" if case.name in _REMOVED else ""
        found = self._database.execute(f"SELECT k, {selected} FROM records GROUP BY k {removed} ORDER BY k")
        return found.to_arrow_table().select(SCHEMA.names).cast(SCHEMA)

    def problems(self, case: Case, rows: pa.Table) -> list[str]:
        """How rows sorted by key differ from what the case must give; nothing if they do not."""
        expected = self.rows(case)
        if not rows.column("k").equals(expected.column("k")):
            return [f"{rows.num_rows} rows, expected {expected.num_rows}, or other keys"]
        return [
            f"column {name} differs" for name in SCHEMA.names if not rows.column(name).equals(expected.column(name))
        ]
