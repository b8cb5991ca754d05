"""Transactions whose rows Spark reads and writes; no row passes the driver.

Source: docs/merge-semantics.md, section 11; :mod:`lakemerge.transactions.merging` merges in the same way without Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions

from lakemerge.format.config import TableConfig
from lakemerge.format.names import KIND_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.results.results import UpsertResult
from lakemerge.schema.schema import type_ddl
from lakemerge.spark.filter_errors import judging
from lakemerge.spark.names import quoted
from lakemerge.spark.reader import read_dataframe
from lakemerge.spark.writer import upsert_dataframe
from lakemerge.transactions.clauses import SOURCE, TARGET, Clause, Match, Side, matched_on, resolved
from lakemerge.transactions.errors import MultipleMatchesError
from lakemerge.write.request import WriteRequest
from mergers.restart import CLEAR, SET

__all__ = ["delete_dataframe", "merge_dataframe", "update_dataframe"]

_MARK = "LAKEMERGE_MULTIPLE_MATCHES: "
_THERE, _PAIRS, _CLAUSE = "_lm_there", "_lm_pairs", "_lm_clause"


def update_dataframe(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    condition: str,
    values: Mapping[str, object],
    request: WriteRequest,
) -> UpsertResult:
    with judging():
        rows = read_dataframe(spark, handle, view, columns=None, filter=condition)
        columns = []
        for field in view.config.schema:
            quoted = f"`{field.name.replace('`', '``')}`"
            value = values.get(field.name, quoted) if field.name in values else quoted
            found = functions.expr(value) if isinstance(value, str) else functions.lit(value)
            columns.append(found.cast(type_ddl(field.type)).alias(field.name) if field.name in values else found)
        return upsert_dataframe(handle, view, _states(rows.select(*columns), SET), request)


def delete_dataframe(
    spark: SparkSession, handle: Handle, view: TableView, condition: str, columns: Sequence[str], request: WriteRequest
) -> UpsertResult:
    with judging():
        rows = read_dataframe(spark, handle, view, columns=columns, filter=condition)
        return upsert_dataframe(handle, view, _states(rows, CLEAR), request)


def _states(rows: DataFrame, kind: int) -> DataFrame:
    """The rows as records of one kind."""
    return rows.withColumn(KIND_COLUMN, functions.lit(kind).cast("tinyint"))


def merge_dataframe(
    handle: Handle, view: TableView, source: DataFrame, on: str, clauses: Sequence[Clause], request: WriteRequest
) -> UpsertResult:
    """One attempt of a merge. Raises :class:`MultipleMatchesError` as :class:`lakemerge.transactions.merging.Merging`
    does."""
    config = view.config
    match = matched_on(on, config, source.columns)
    values = [resolved(clause, config, source.columns, match) if clause.writes_set else {} for clause in clauses]
    try:
        with judging():
            target = read_dataframe(source.sparkSession, handle, view, columns=None, filter=None)
            joined = _Joined(target.alias(TARGET), source.alias(SOURCE), config, match, clauses)
            parts = [
                _written(joined.rows(side), side, clauses, values, config)
                for side in dict.fromkeys(clause.side for clause in clauses)
            ]
            return upsert_dataframe(handle, view, _checked(reduce(DataFrame.union, parts), joined, config), request)
    except PySparkException as error:
        found = str(error)
        if _MARK not in found:
            raise
        raise MultipleMatchesError(found.partition(_MARK)[2].partition("\n")[0].rstrip(" \"'")) from error


class _Joined:
    """The rows of each side."""

    def __init__(
        self, target: DataFrame, source: DataFrame, config: TableConfig, match: Match, clauses: Sequence[Clause]
    ) -> None:
        self.target, self.source, self.config, self.match = target, source, config, match
        own = [clause for clause in clauses if clause.side == "matched"]
        self.deletes_only = len(own) == 1 and own[0].action == "delete" and own[0].condition is None
        self.keys = " AND ".join(f"{TARGET}.{quoted(name)} = ({match.keys[name]})" for name in config.key)
        self.on = self.keys if match.rest is None else f"{self.keys} AND {match.rest}"
        self.repeats = self._repeats()

    def rows(self, side: Side) -> DataFrame:
        on = functions.expr(self.on)
        if side == "not matched by source":
            return self.target.join(self.source, on, "left_anti").alias(TARGET)
        if side == "not matched":
            rows = self.source.join(self.target, on, "left_anti").alias(SOURCE)
            if self.match.rest is None:
                return rows.withColumn(_THERE, functions.lit(False))
            marked = self.target.select(*map(quoted, self.config.key)).withColumn(_THERE, functions.lit(True))
            return rows.join(marked.alias(TARGET), functions.expr(self.keys), "left")
        pairs = self.target.join(self.source, on, "inner")
        if not self.repeats:
            return pairs.withColumn(_PAIRS, functions.lit(1))
        of_key = Window.partitionBy(*(functions.expr(f"{TARGET}.{quoted(name)}") for name in self.config.key))
        if self.deletes_only:
            first = of_key.orderBy(functions.lit(1))
            return pairs.withColumn(_PAIRS, functions.row_number().over(first)).where(f"{_PAIRS} = 1")
        return pairs.withColumn(_PAIRS, functions.count(functions.lit(1)).over(of_key))

    def _repeats(self) -> bool:
        """Whether source rows have the same key. Else nothing has to be counted in the joined rows."""
        keys = [functions.expr(text) for text in self.match.keys.values()]
        counts = self.source.groupBy(*keys).count().where("count > 1")
        return bool(counts.limit(1).collect())


def _written(
    rows: DataFrame,
    side: Side,
    clauses: Sequence[Clause],
    values: Sequence[dict[str, object]],
    config: TableConfig,
) -> DataFrame:
    """What the clauses of a side write: the columns of the table, and the kind."""
    own = [number for number, clause in enumerate(clauses) if clause.side == side]
    chosen = functions.lit(None).cast("int")
    for number in reversed(own):
        condition = clauses[number].condition
        taken = functions.lit(True) if condition is None else functions.expr(condition)
        chosen = functions.when(taken, functions.lit(number)).otherwise(chosen)
    rows = rows.withColumn(_CLAUSE, chosen).where(functions.col(_CLAUSE).isNotNull())
    if side == "matched":
        wrong, why = functions.col(_PAIRS) > 1, "several source rows match one row of the table: "
    else:
        wrong = functions.col(_THERE) if side == "not matched" else functions.lit(False)
        why = "an inserted row has the key of a row of the table, which does not meet the other conditions: "
    has_target = side != "not matched"
    columns = []
    for field in config.schema:
        found: Column = functions.lit(None)
        for number in own:
            found = functions.when(
                functions.col(_CLAUSE) == number,
                _value(field.name, clauses[number], values[number], config, has_target),
            ).otherwise(found)
        typed = found.cast(type_ddl(field.type))
        if field.name == config.key[0]:
            shown = functions.concat(functions.lit(_MARK + why), typed.cast("string"))
            typed = functions.when(wrong, functions.raise_error(shown).cast(type_ddl(field.type))).otherwise(typed)
        columns.append(typed.alias(field.name))
    sets = [number for number in own if clauses[number].writes_set]
    kind = functions.when(functions.col(_CLAUSE).isin(sets), SET).otherwise(CLEAR).cast("tinyint")
    return rows.select(*columns, kind.alias(KIND_COLUMN))


def _value(name: str, clause: Clause, values: dict[str, object], config: TableConfig, has_target: bool) -> Column:
    if name in values:
        value = values[name]
        return functions.expr(value) if isinstance(value, str) else functions.lit(value)
    if has_target and (clause.writes_set or name in {*config.key, *config.ordering}):
        return functions.col(f"{TARGET}.{quoted(name)}")
    return functions.lit(None)


def _checked(rows: DataFrame, joined: _Joined, config: TableConfig) -> DataFrame:
    """The rows; it fails for two of one key, which are inserts."""
    if not joined.repeats:
        return rows
    of_key = Window.partitionBy(*map(quoted, config.key))
    counted = rows.withColumn(_PAIRS, functions.count(functions.lit(1)).over(of_key))
    name = config.key[0]
    kind = type_ddl(config.schema.field(name).type)
    shown = functions.concat(
        functions.lit(_MARK + "the merge would insert several rows of one key: "),
        functions.col(quoted(name)).cast("string"),
    )
    failing = functions.when(functions.col(_PAIRS) > 1, functions.raise_error(shown).cast(kind))
    return counted.withColumn(name, failing.otherwise(functions.col(quoted(name)))).drop(_PAIRS)
