"""Transactions whose rows Spark reads and writes; no row passes the driver.

Source: docs/merge-semantics.md, section 11; :mod:`lakemerge.transactions.merging` merges in the same way without Spark.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions
from pyspark.sql.types import StructType

from lakemerge.errors import FilterError, FrameError
from lakemerge.format.config import TableConfig
from lakemerge.format.names import KIND_COLUMN
from lakemerge.frames import is_spark_column
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.lookup import sorted_keys
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.schema import castable, type_ddl
from lakemerge.spark.names import quoted
from lakemerge.spark.reader import read_dataframe
from lakemerge.spark.sessions import jvm_session
from lakemerge.spark.writer import frame_schema, pack_dry_dataframe, upsert_dataframe
from lakemerge.spark_errors import unwrap_error
from lakemerge.sql.parsing import parsed, sql
from lakemerge.transactions.assignments import check_assignable, plain_value
from lakemerge.transactions.clauses import (
    Clause,
    Match,
    MergeCall,
    brought_columns,
    matched_on,
    qualified,
    resolved,
)
from lakemerge.transactions.errors import MultipleMatchesError
from lakemerge.write.pack import Packed
from lakemerge.write.start import WriteRequest, with_columns_of
from mergers.restart import CLEAR, SET
from mergers.type_names import type_name

__all__ = ["HeldSource", "MergeOnSpark", "alias_of", "delete_frame", "update_frame", "written"]

_MARK, _KEY_MARK = "LAKEMERGE_MULTIPLE_MATCHES: ", "LAKEMERGE_OTHER_KEY: "
_REMEDY = "(leave one source row for each key)"
_THERE, _KEY = "_lm_there", "_lm_key"
_HIT, _HITS, _NUMBER, _CLAUSE, _INSERTS = "_lm_hit", "_lm_hits", "_lm_number", "_lm_clause", "_lm_inserts"
_DATA_ERROR = "22"
"""The class of SQL states for values that cannot be computed with."""
_SENT_KEYS = 200_000
"""So many keys of a source are sent to all executors, which leave out the other rows of the table before the join."""
_PRUNING_KEYS = 20_000
"""So many keys of a source are read by the driver, which leaves out files that cannot hold any of them."""


def written(
    handle: Handle, view: TableView, records: DataFrame, request: WriteRequest, *, dry: bool
) -> tuple[UpsertResult | None, Sequence[Packed]]:
    """The result of the write; of a dry one, what would be written."""
    with _judged():
        if dry:
            return None, pack_dry_dataframe(handle, view, records, request)
        return upsert_dataframe(handle, view, records, request), ()


def update_frame(
    spark: SparkSession, handle: Handle, view: TableView, condition: Any, values: Mapping[str, object]
) -> DataFrame:
    """What an update writes."""
    config = view.config
    with _judged():
        rows = read_dataframe(spark, handle, view, columns=None, filter=condition)
        columns = [_new_value(name, value, config) for name, value in values.items()]
        given = dict(zip(values, _types_of(rows.select(*columns)), strict=True))
        chosen = []
        for field in config.schema:
            if field.name not in values:
                chosen.append(functions.col(quoted(field.name)))
                continue
            value = values[field.name]
            column = _fitted(_new_value(field.name, value, config), field.name, value, given[field.name], field.type)
            chosen.append(column.alias(field.name))
        return _states(rows.select(*chosen), SET)


def delete_frame(
    spark: SparkSession, handle: Handle, view: TableView, condition: Any, columns: Sequence[str]
) -> DataFrame:
    """What a delete writes."""
    with _judged():
        return _states(read_dataframe(spark, handle, view, columns=columns, filter=condition), CLEAR)


def alias_of(frame: DataFrame) -> str | None:
    """The name that the rows of a frame have in expressions, if it has one."""
    if jvm_session(frame.sparkSession) is None:
        return getattr(getattr(frame, "_plan", None), "_alias", None)
    plan: Any = frame._jdf.queryExecution().analyzed()
    return str(plan.alias()) if plan.nodeName() == "SubqueryAlias" else None


@dataclass(frozen=True, slots=True)
class HeldSource:
    """The source of a merge, computed once: its rows may differ from one computation to the next, and several jobs and
    attempts must see the same."""

    call: MergeCall
    match: Match
    rows: DataFrame
    """The source's columns, then its keys in the table's types, then a column that is true."""
    columns: tuple[str, ...]
    """Those of the source itself."""
    keys: int
    """How many different keys it has."""
    repeats: bool
    """Whether a key is there several times."""

    @staticmethod
    def of(source: DataFrame, config: TableConfig, call: MergeCall) -> HeldSource:
        names = tuple(source.columns)
        lower = Counter(name.lower() for name in names)
        if twice := [name for name in names if lower[name.lower()] > 1]:
            raise FrameError(f"the source has several columns {twice[0]!r}: drop or rename one of them")
        if source.isStreaming:
            raise FrameError("the source is a stream, and a merge takes frames that end: merge in foreachBatch")
        match = matched_on(call.on, config, names, call.aliases)
        with _judged():
            aliased = source.alias(call.aliases.source)
            exprs = [functions.expr(match.keys[name]) for name in config.key]
            added = []
            for number, (name, given) in enumerate(zip(config.key, _types_of(aliased.select(*exprs)), strict=True)):
                kind = config.schema.field(name).type
                if not castable(given, kind):
                    kinds = f"{type_name(kind)}, with {type_name(given)}"
                    raise FrameError(f"the merge compares key column {name!r}, {kinds}: cast it")
                added.append(exprs[number].cast(type_ddl(kind)).alias(f"{_KEY}{number}"))
            # Spark keeps these rows on its own disks. An executor that is lost makes the merge fail, where rows that
            # are cached would be computed again, perhaps to others.
            held = aliased.select("*", *added, functions.lit(True).alias(_THERE)).localCheckpoint(eager=True)
            own = [f"{_KEY}{number}" for number in range(len(config.key))]
            known = reduce(Column.__and__, [functions.col(name).isNotNull() for name in own])
            counts = held.where(known).groupBy(*own).count()
            keys, most = counts.agg(functions.count(functions.lit(1)), functions.max("count")).collect()[0]
        return HeldSource(call, match, held, names, int(keys), (most or 0) > 1)

    def release(self) -> None:
        """Let Spark delete the rows that it keeps. Under Connect it does so by itself, as soon as nothing here names
        the frame."""
        if jvm_session(self.rows.sparkSession) is not None:
            plan: Any = self.rows._jdf.queryExecution().analyzed()
            plan.rdd().unpersist(False)

    def found_keys(self, config: TableConfig) -> pa.Table:
        """The different keys, sorted. Only for few of them."""
        own = [f"{_KEY}{number}" for number in range(len(config.key))]
        found = self.rows.select(*own).dropna().distinct().toArrow().rename_columns(list(config.key))
        return sorted_keys(found, config)


class MergeOnSpark:
    """One attempt of a merge. Raises :class:`MultipleMatchesError` as :class:`lakemerge.transactions.merging.Merging`
    does."""

    def __init__(self, handle: Handle, view: TableView, held: HeldSource) -> None:
        self._call, self._held = held.call, held
        self._aliases = held.call.aliases
        if self._call.evolves:
            names = brought_columns(self._call, view.config, held.columns)
            schema = frame_schema(held.rows.select(*map(quoted, names)).schema)
            view = with_columns_of(handle, view, schema)
        self._handle, self._view, self._config = handle, view, view.config
        with _judged():
            self._target = self._read().alias(self._aliases.target)
            self._source = held.rows.alias(self._aliases.source)
            self._chosen = self._choose()

    def records(self) -> DataFrame:
        """Sets and clears with all columns of the table, and their kinds."""
        with _judged():
            return self._recorded()

    def counts(self) -> Counter[str]:
        """How many rows of the table match, and how many rows each action takes. It is a job."""
        with _judged():
            matched = functions.sum(functions.when(functions.col(_HIT) & (functions.col(_NUMBER) == 1), 1))
            found = self._all.groupBy(_CLAUSE).agg(functions.count(functions.lit(1)), matched).collect()
        counts: Counter[str] = Counter()
        for number, rows, hits in found:
            counts["matched"] += hits or 0
            if number is not None:
                counts[self._call.clauses[number].action] += rows
        return counts

    def _read(self) -> DataFrame:
        """The rows of the table that may have a part in the merge."""
        config, held, spark = self._config, self._held, self._held.rows.sparkSession
        if self._call.of("not matched by source"):
            return read_dataframe(spark, self._handle, self._view, columns=None, filter=None)
        keys = held.found_keys(config) if held.keys <= _PRUNING_KEYS else None
        between = None if keys is None else _between(keys, config)
        rows = read_dataframe(spark, self._handle, self._view, columns=None, filter=between, keys=keys)
        if held.keys > _SENT_KEYS:
            return rows
        own = [f"{_KEY}{number}" for number in range(len(config.key))]
        equal = [functions.col(quoted(name)) == functions.col(key) for name, key in zip(config.key, own, strict=True)]
        return rows.join(functions.broadcast(held.rows.select(*own)), reduce(Column.__and__, equal), "left_semi")

    def _choose(self) -> DataFrame:
        """Rows of the table beside source rows of their keys, or alone, and the number of the clause that acts on
        them."""
        call, config, held = self._call, self._config, self._held
        target, source = self._aliases.target, self._aliases.source
        lone, inserts = call.of("not matched by source"), call.of("not matched")
        how = {(False, False): "inner", (False, True): "right", (True, False): "left", (True, True): "full"}
        own = [functions.col(f"{target}.{quoted(name)}") for name in config.key]
        theirs = [functions.col(f"{source}.{_KEY}{number}") for number in range(len(config.key))]
        equal = reduce(Column.__and__, [one == other for one, other in zip(own, theirs, strict=True)])
        rows = self._target.join(self._source, equal, how[bool(lone), bool(inserts)])
        there = own[0].isNotNull()
        given = functions.col(f"{source}.{_THERE}").isNotNull()
        hit = there & given
        if held.match.rest is not None:
            hit = hit & functions.coalesce(functions.expr(held.match.rest), functions.lit(False))
        rows = rows.withColumn(_HIT, hit)
        if held.repeats:
            key = [functions.coalesce(one, other) for one, other in zip(own, theirs, strict=True)]
            of_key = Window.partitionBy(*key)
            rows = rows.withColumn(_HITS, functions.sum(functions.col(_HIT).cast("int")).over(of_key))
            ordered = of_key.orderBy(functions.col(_HIT).desc())
            rows = rows.withColumn(_NUMBER, functions.row_number().over(ordered))
        else:
            rows = rows.withColumn(_HITS, functions.col(_HIT).cast("int")).withColumn(_NUMBER, functions.lit(1))
        self._types = self._checked_types()
        chosen = functions.when(functions.lit(False), functions.lit(0))
        is_hit, first = functions.col(_HIT), functions.col(_NUMBER) == 1
        if call.of("matched"):
            taken = self._first(rows, call.of("matched"))
            if call.only_deletes_matched:
                taken = functions.when(first, taken)
            else:
                wrong = self._refusal(f"several source rows match one row of the table {_REMEDY}, such as key ", own[0])
                taken = functions.when(functions.col(_HITS) > 1, wrong).otherwise(taken)
            chosen = chosen.when(is_hit, taken)
        else:
            chosen = chosen.when(is_hit, functions.lit(None).cast("int"))
        if lone:
            alone = functions.when(there & first & (functions.col(_HITS) == 0), self._first(rows, lone))
        else:
            alone = functions.lit(None).cast("int")
        if inserts:
            taken = self._first(rows, inserts)
            wrong = self._refusal(
                "a source row would be inserted, and the table has a row of its key that does not meet the other "
                f"conditions of {call.on!r} (put these into the conditions of the clauses), such as ", theirs[0],
            )  # fmt: skip
            inserted = functions.when(there, functions.when(taken.isNotNull(), wrong).otherwise(alone)).otherwise(taken)
            chosen = chosen.when(given, inserted)
        self._all = rows.withColumn(_CLAUSE, chosen.otherwise(alone))
        if held.repeats and inserts:
            key = [functions.coalesce(one, other) for one, other in zip(own, theirs, strict=True)]
            count = functions.sum(functions.col(_CLAUSE).isin(inserts).cast("int")).over(Window.partitionBy(*key))
            wrong = self._refusal(f"the merge would insert several rows of one key {_REMEDY}, such as ", theirs[0])
            # Rows whose key is null are alike here, and the write refuses them.
            several = (functions.col(_INSERTS) > 1) & functions.col(_CLAUSE).isin(inserts) & theirs[0].isNotNull()
            self._all = self._all.withColumn(_INSERTS, count).withColumn(
                _CLAUSE, functions.when(several, wrong).otherwise(functions.col(_CLAUSE))
            )
        return self._all.where(functions.col(_CLAUSE).isNotNull())

    def _first(self, rows: DataFrame, own: Sequence[int]) -> Column:
        """The number of the first of these clauses whose condition is true; null if there is none."""
        found = functions.lit(None).cast("int")
        for number in reversed(own):
            clause = self._call.clauses[number]
            taken = (
                functions.lit(True) if clause.condition is None else self._expression(rows, clause, clause.condition)
            )
            found = functions.when(taken, functions.lit(number)).otherwise(found)
        return found

    @staticmethod
    def _refusal(why: str, key: Column) -> Column:
        shown = functions.concat(functions.lit(_MARK + why), key.cast("string"))
        return functions.raise_error(shown).cast("int")

    def _checked_types(self) -> dict[int, dict[str, pa.DataType]]:
        """For each clause the types of its values. Each is computed from the rows of its side alone, so that the names
        of other rows are unknown. Raises :class:`FilterError` and :class:`FrameError`."""
        config, held = self._config, self._held
        own = held.rows.select(*(quoted(name) for name in held.columns)).alias(self._aliases.source)
        target = self._target
        of_side = {"not matched": own, "not matched by source": target}
        types = {}
        self._values: dict[int, dict[str, object]] = {}
        for number, clause in enumerate(self._call.clauses):
            values = resolved(clause, config, held.columns, held.match, self._call) if clause.writes_set else {}
            self._values[number] = values
            rows = of_side.get(clause.side)
            if rows is None:
                rows = target.join(own, functions.lit(True), "inner")
            if clause.condition is not None:
                rows.where(clause.condition).schema  # noqa: B018 - under Connect, names are looked up here
            columns = [_new_value(name, value, config) for name, value in values.items()]
            types[number] = dict(zip(values, _types_of(rows.select(*columns)), strict=True)) if columns else {}
        return types

    def _expression(self, rows: DataFrame, clause: Clause, value: Any) -> Column:
        """A condition or value of a clause over the joined rows, whose names are known to be right in its own side."""
        if is_spark_column(value):
            return value
        column = functions.expr(value)
        if clause.side == "matched":
            return column
        try:
            rows.select(column).schema  # noqa: B018
        except AnalysisException:
            # A name that is unique in one side is in both here.
            is_source = clause.side == "not matched"
            sides = (() if is_source else self._config.schema.names, self._held.columns if is_source else ())
            return functions.expr(sql(qualified(parsed(value), *sides, self._aliases)))
        return column

    def _recorded(self) -> DataFrame:
        columns = []
        for field in self._config.schema:
            found = functions.lit(None).cast(type_ddl(field.type))
            for number, clause in enumerate(self._call.clauses):
                taken = functions.col(_CLAUSE) == number
                found = functions.when(taken, self._value(field, number, clause)).otherwise(found)
            columns.append(found.alias(field.name))
        sets = [number for number, clause in enumerate(self._call.clauses) if clause.writes_set]
        kind = functions.when(functions.col(_CLAUSE).isin(sets), SET).otherwise(CLEAR).cast("tinyint")
        return self._chosen.select(*columns, kind.alias(KIND_COLUMN))

    def _value(self, field: pa.Field, number: int, clause: Clause) -> Column:
        name, config, values = field.name, self._config, self._values[number]
        if clause.action == "insert" and name in config.key:
            key = functions.col(f"{self._aliases.source}.{_KEY}{config.key.index(name)}")
            given: Any = values[name]
            if not is_spark_column(given):
                return key
            why = f"an insert gives key column {name!r} another value than the one that the merge compares: "
            differs = functions.concat(functions.lit(_KEY_MARK + why), key.cast("string"))
            wrong = functions.raise_error(differs).cast(type_ddl(field.type))
            return functions.when(key.eqNullSafe(given), key).otherwise(wrong)
        if name in values:
            value = values[name]
            column = (
                self._expression(self._all, clause, value)
                if isinstance(value, str) or is_spark_column(value)
                else _new_value(name, value, config)
            )
            return _fitted(column, name, value, self._types[number][name], field.type)
        if clause.side != "not matched" and (clause.writes_set or name in {*config.key, *config.ordering}):
            return functions.col(f"{self._aliases.target}.{quoted(name)}")
        return functions.lit(None).cast(type_ddl(field.type))


def _between(keys: pa.Table, config: TableConfig) -> str | None:
    """A condition that all rows of the keys meet, for the first column of the key: it lets Spark's reader leave out
    row groups. ``None`` if there is none that is surely right in every session."""
    name = config.key[0]
    kind = config.schema.field(name).type
    if not keys.num_rows:
        return "false"
    bounds = [end.as_py() for end in pc.min_max(keys.column(name)).values()]
    if pa.types.is_integer(kind):
        low, high = map(str, bounds)
    elif pa.types.is_date(kind) and all(bound.year >= 1583 for bound in bounds):
        low, high = (f"DATE '{bound.isoformat()}'" for bound in bounds)
    else:
        return None
    return f"{quoted(name)} >= {low} AND {quoted(name)} <= {high}"


def _states(rows: DataFrame, kind: int) -> DataFrame:
    """The rows as records of one kind."""
    return rows.withColumn(KIND_COLUMN, functions.lit(kind).cast("tinyint"))


def _new_value(name: str, value: object, config: TableConfig) -> Column:
    if isinstance(value, str):
        return functions.expr(value)
    if is_spark_column(value):
        return value  # type: ignore[return-value]
    kind = config.schema.field(name).type
    return _literal(plain_value(name, value, kind), kind)


def _literal(value: Any, kind: pa.DataType) -> Column:
    """A plain value of a type. Temporal values are sent as text, which means the same in every time zone."""
    ddl = type_ddl(kind)
    if value is None:
        return functions.lit(None).cast(ddl)
    if pa.types.is_struct(kind):
        return functions.struct(*(_literal(value[f.name], f.type).alias(f.name) for f in kind))
    if pa.types.is_map(kind):
        parts = [
            _literal(part, of) for pair in value for part, of in zip(pair, (kind.key_type, kind.item_type), strict=True)
        ]
        return functions.create_map(*parts).cast(ddl)
    if pa.types.is_list(kind):
        return functions.array(*(_literal(part, kind.value_type) for part in value)).cast(ddl)
    if isinstance(value, bytes):
        return functions.unhex(functions.lit(value.hex()))
    if isinstance(value, dt.datetime | dt.date | decimal.Decimal):
        return functions.lit(str(value)).cast(ddl)
    return functions.lit(value).cast(ddl)


def _types_of(frame: DataFrame) -> list[pa.DataType]:
    """The types of the columns of a frame. Columns may have one name."""
    fields = frame.schema.fields
    named = StructType()
    for number, field in enumerate(fields):
        if field.dataType.typeName() != "void":
            named = named.add(f"c{number}", field.dataType)
    known = {field.name: field.type for field in frame_schema(named)}
    return [known.get(f"c{number}", pa.null()) for number in range(len(fields))]


def _fitted(column: Column, name: str, value: object, given: pa.DataType, kind: pa.DataType) -> Column:
    """A new value in the type of its column. Raises :class:`FilterError` if the column does not take it."""
    check_assignable(name, value, given, kind)
    return _as_type(column, given, kind)


def _as_type(column: Column, given: pa.DataType, kind: pa.DataType) -> Column:
    """The value in another type, structs by the names of their fields: Spark's cast goes by their places."""
    if pa.types.is_null(given) or not pa.types.is_nested(kind):
        return column if given == kind else column.cast(type_ddl(kind))
    if pa.types.is_struct(kind):
        there = {field.name.lower(): field for field in given}
        parts = []
        for field in kind:
            own = there.get(field.name.lower())
            part = (
                functions.lit(None).cast(type_ddl(field.type))
                if own is None
                else _as_type(column.getField(own.name), own.type, field.type)
            )
            parts.append(part.alias(field.name))
        return functions.when(column.isNotNull(), functions.struct(*parts))
    if pa.types.is_list(kind):
        return functions.transform(column, lambda part: _as_type(part, given.value_type, kind.value_type))
    items = functions.transform_values(column, lambda _, part: _as_type(part, given.item_type, kind.item_type))
    return items if given.key_type == kind.key_type else items.cast(type_ddl(kind))


@contextmanager
def _judged() -> Iterator[None]:
    """Errors of Spark for conditions and values, as errors of this library."""
    try:
        yield
    except PySparkException as error:
        if (ours := unwrap_error(error)) is not None:
            raise ours from error
        found = str(error)
        if (error.getSqlState() or "").startswith(_DATA_ERROR):
            first, *_ = found.splitlines()
            raise FilterError(f"the filter cannot be judged: {first}") from error
        if isinstance(error, AnalysisException):
            # It may show a plan, with the texts of errors that were not raised.
            first, *_ = found.splitlines()
            raise FilterError(f"the transaction is not understood: {first}") from error
        for mark, kind in ((_MARK, MultipleMatchesError), (_KEY_MARK, FrameError)):
            if mark in found:
                shown = found.partition(mark)[2].partition("\n")[0].partition(" SQLSTATE")[0]
                raise kind(shown.rstrip(" \"'")) from error
        raise
