"""Reading a version as a Spark DataFrame.

LakeMerge's own scan reads all file slices, where it can (:mod:`lakemerge.spark.native`). Otherwise Spark's own Parquet
reader, if it reaches the store, reads file slices without live logs. It also reads file slices with small logs, which
are premerged. Other dirty file slices go through the merge kernel in Python tasks of even size. All see the same
version, however long the query runs.

The settings of the session say what the text of a filter means (``PARSED``, ``COMPUTED``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession

from lakemerge.errors import FilterError
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.filter.prune import file_slices_of_keys, prune_file_slices
from lakemerge.read.merge import MergeSpec, may_pick_records
from lakemerge.read.premerge import may_pick_places, may_premerge, premerge_pays
from lakemerge.read.reads_per_write import note_read
from lakemerge.read.scan import asked_columns
from lakemerge.spark.access import why_through_arrow
from lakemerge.spark.kernel import scan_merging
from lakemerge.spark.names import are_patterns, filtered, selected
from lakemerge.spark.native import (
    KernelRead,
    are_kept,
    kept_rows,
    named_frame,
    native_frame,
    why_not_kernel,
    why_not_native,
)
from lakemerge.spark.premerge import is_kept, scan_premerging
from lakemerge.spark.scans import scan_clean, scan_minor
from lakemerge.spark.sessions import jvm_session, prepare_workers
from lakemerge.sql.times import parse_zone
from mergers import default_registry

__all__ = ["COMPUTED", "PARSED", "Ways", "native_ways", "read_dataframe", "understood", "ways_of"]


_MOST_JOINTS = 399
"""Spark 4.2's optimizer makes chains nest as deep as they are long. With a driver's stack of 1 MiB, as Java has it by
default, 500 parts pass, and 1,000 parts overflow it."""


def read_dataframe(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    *,
    columns: Sequence[str] | None,
    filter: str | Column | None,
    keys: pa.Table | None = None,
    hypothetical: bool = False,
    may_name: bool = False,
) -> DataFrame:
    """See :meth:`lakemerge.LakeTable.to_df`.

    :param hypothetical: whether the table has no such version, so that other processes cannot read it.
    :param may_name: whether a catalog would show the same rows of the version.
    :param keys: if given, rows of other keys may be left out, or be as they were at any time. The key columns in key
        order and the table's types.
    """
    if not (filter is None or isinstance(filter, str) or type(filter).__module__.startswith("pyspark.sql")):
        raise FilterError(
            f"a filter of to_df is SQL text or a Spark Column, not {type(filter).__name__}; to_arrow and scan take "
            "pyarrow expressions"
        )
    _check_length(filter)
    names = asked_columns(view, columns)
    spec = MergeSpec.of(handle, view)
    condition = understood(spark, filter, view.config.schema) if isinstance(filter, str) else None
    # Spark evaluates the filter itself, so it needs the columns. Only a text tells which.
    read = list(view.config.schema.names)
    if filter is None:
        read = names or [view.config.key[0]]  # rows without columns still have to be counted
    elif condition is not None:
        read = [name for name in view.config.schema.names if name in condition.columns or name in names]
    file_slices = prune_file_slices(view, condition) if keys is None else file_slices_of_keys(view, keys)
    note_read(view, file_slices)
    frame = None
    by_catalog = jvm_session(spark) is None
    if keys is None and not hypothetical and (may_name or not by_catalog):
        known = None if condition is None else (str(filter), condition)
        frame = _native(spark, handle, view, spec, file_slices, read, known)
    if frame is None:
        early = None if condition is None or not isinstance(filter, str) else (filter, condition)
        frame = _united(spark, handle, view, spec, file_slices, read, early)
    if filter is not None:
        frame = filtered(frame, filter) if isinstance(filter, str) else frame.where(filter)
    return frame if read == names else selected(frame, names)


def native_ways(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
) -> Ways | str:
    """How LakeMerge's own scan reads the file slices, as far as the table's metadata say. A text says why it does
    not."""
    why = why_through_arrow(spark, handle.store, file_slices) or why_not_native(spark, view)
    if why is not None:
        return why
    places = may_pick_places(file_slices, spec)
    computed = _without([each for each in file_slices if not each.is_merged], places)
    first = _merged_first(handle, view, spec, computed, columns)
    to_merge = _without(computed, first)
    why = why_not_kernel(spark, handle, spec) if to_merge else None
    return why or Ways(
        clean=[file_slice for file_slice in file_slices if file_slice.is_clean],
        minor=[file_slice for file_slice in file_slices if file_slice.is_merged and not file_slice.is_clean],
        premerge=[*places, *first],
        to_merge=to_merge,
    )


def _merged_first(
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    computed: Sequence[FileSlice],
    columns: Sequence[str],
) -> list[FileSlice]:
    """Those of the file slices with computed rows whose logs are merged before the read."""
    due = may_premerge(computed, spec) if spec.leave_out is None else []
    asked = len(columns) / len(view.config.schema)
    if not due:
        return []
    pays = premerge_pays(due, spec, asked=asked)
    return due if pays or are_kept(handle, view, spec, columns, due) else []


def _without(file_slices: Sequence[FileSlice], others: Sequence[FileSlice]) -> list[FileSlice]:
    chosen = {id(file_slice) for file_slice in others}
    return [file_slice for file_slice in file_slices if id(file_slice) not in chosen]


def _native(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    known: tuple[str, Filter] | None,
) -> DataFrame | None:
    """The rows by LakeMerge's own scan; ``None`` if it cannot read them.

    :param known: the filter, as a text and as this library understands it.
    """
    ways = native_ways(spark, handle, view, spec, file_slices, columns)
    if isinstance(ways, str):
        return None
    if jvm_session(spark) is None:
        is_known = any(known is type(spec.merger) for known in default_registry())
        return named_frame(spark, handle, view, columns) if is_known else None
    places = {id(file_slice) for file_slice in may_pick_places(file_slices, spec)}
    first = [file_slice for file_slice in ways.premerge if id(file_slice) not in places]
    rows = kept_rows(handle, view, spec, file_slices, spark, columns=columns, first=first)
    read = None
    if rows.kernel:
        # More than the metadata said, if a log lacks columns.
        if why_not_kernel(spark, handle, spec) is not None:
            return None
        prepare_workers(spark)
        read = KernelRead(handle.settings)
        if known is not None:
            zone = str(spark.conf.get("spark.sql.session.timeZone"))
            read = replace(read, filter=known[0], zone=zone, computed=bool(known[1].computed))
    return native_frame(spark, handle, view, rows, columns, read)


def _united(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    read: Sequence[str],
    known: tuple[str, Filter] | None,
) -> DataFrame:
    """The rows as a union of scans of Spark and of Python tasks."""
    ways = ways_of(spark, handle, view, spec, file_slices, read)
    early, condition = known or (None, None)
    if condition is not None and (condition.may_fail or are_patterns(spark, sorted(condition.columns))):
        early = None
    parts = scan_minor(spark, handle, view, ways.minor, read, early)
    if ways.premerge:
        parts += scan_premerging(spark, handle, view, spec, ways.premerge, read, early)
    if ways.clean or not (parts or ways.to_merge):
        parts.append(scan_clean(spark, handle, view, ways.clean, read))
    if ways.to_merge:
        parts.append(scan_merging(spark, spec, ways.to_merge, read, condition))
    frame = reduce(DataFrame.union, parts)
    if ways.minor or ways.premerge or len(parts) > 1:
        # New columns, because the parts are kept, and a query may join two reads. Also, Spark moves a SELECT list below
        # a union, and fails if a correlated subquery is in it (SPARK-59042). With this list in between it rewrites the
        # subquery as a join first.
        frame = selected(frame, read, anew=True)
    return frame


@dataclass(frozen=True, slots=True)
class Ways:
    """File slices, grouped by how they are read."""

    clean: list[FileSlice]
    """They have only base files, which are read as they are."""
    minor: list[FileSlice]
    """They are read as base files without superseded positions, and winner files."""
    premerge: list[FileSlice]
    """They are premerged, and then read like ``minor``."""
    to_merge: list[FileSlice]
    """The kernel merges them while they are read, in Python tasks."""
    through_arrow: str | None = None
    """Why Spark's own reader is not used, so that all are in ``to_merge``; ``None`` if it is used."""


def ways_of(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    spec: MergeSpec,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
) -> Ways:
    """Decide for each file slice how it is read."""
    why = why_through_arrow(spark, handle.store, file_slices)
    if why is not None:
        return Ways([], [], [], list(file_slices), why)
    # What a premerge keeps for later reads are all rows, so keys are not left out there.
    due = may_premerge(file_slices, spec) if spec.leave_out is None else []
    if jvm_session(spark) is None:  # Connect would send merged rows with each query, but positions are small
        due = list(filter(may_pick_records(spec), due))
    asked = len(columns) / len(view.config.schema)
    pays = bool(due) and (premerge_pays(due, spec, asked=asked) or is_kept(spark, handle, view, due, columns))
    chosen = due if pays else []
    premerged = {id(file_slice) for file_slice in chosen}
    return Ways(
        clean=[file_slice for file_slice in file_slices if file_slice.is_clean],
        minor=[file_slice for file_slice in file_slices if file_slice.is_merged and not file_slice.is_clean],
        premerge=chosen,
        to_merge=[each for each in file_slices if not each.is_merged and id(each) not in premerged],
    )


def _check_length(filter: str | Column | None) -> None:
    """Raise :class:`FilterError` for a text that would end in a stack overflow of Spark's planner."""
    if not isinstance(filter, str) or len(filter) < _MOST_JOINTS:
        return
    from lakemerge.sql.parsing import joints_of  # with the SQL parser, which takes time to load

    joints = joints_of(filter)
    if joints > _MOST_JOINTS:
        raise FilterError(
            f"the filter joins {joints + 1} parts by AND and OR, and Spark's planner takes {_MOST_JOINTS + 1}: write "
            "one list (column IN (...)), look keys up (table.get), join with a frame of keys, or use table.to_arrow",
            parts=joints + 1,
        )


PARSED: Final[Mapping[str, str]] = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings that say what a text is: a column or a literal, of which type and value."""
COMPUTED: Final[Mapping[str, str]] = {
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.functionResolution.sessionOrder": "second",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.legacy.codingErrorAction": "false",
    "spark.sql.legacy.decimal.retainFractionDigitsOnTruncate": "false",
    "spark.sql.legacy.interval.enabled": "false",
    "spark.sql.legacy.javaCharsets": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.lpadRpadAlwaysReturnString": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.legacy.truncateForEmptyRegexSplit": "false",
}
"""Settings that change computed values. The other conditions can still prune files."""


def understood(spark: SparkSession, text: str, schema: pa.Schema) -> Filter | None:
    """The filter, if this library can evaluate it, too, with the same meaning as the session; ``None`` if only Spark
    can. The filter may leave out conditions that only Spark can evaluate."""
    changed = _changed(spark)
    if not changed.isdisjoint(PARSED):
        return None
    zone = parse_zone(str(spark.conf.get("spark.sql.session.timeZone")))
    try:
        condition = parse_filter(text, schema, zone=zone)
    except FilterError:
        return None
    if condition is None:
        return None
    ansi = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
    if condition.needs_ansi and not ansi:
        return None
    # Computed values follow ANSI's rules here. The other conditions can still prune files.
    return condition if ansi and changed.isdisjoint(COMPUTED) else replace(condition, computed=())


def _changed(spark: SparkSession) -> set[str]:
    """The settings of :data:`PARSED` and :data:`COMPUTED` that do not have the defaults of Spark 4.2 in the session."""
    defaults = {**PARSED, **COMPUTED}
    session = jvm_session(spark)
    if session is None:
        given = spark.conf.getAll
        return {name for name, value in defaults.items() if given.get(name, value).lower() != value.lower()}
    # Three calls into the JVM instead of one for each setting.
    names = str(session.sessionState().conf().getAllConfs().keySet().mkString("\n")).split("\n")
    given = {name: str(spark.conf.get(name)) for name in defaults.keys() & set(names)}
    return {name for name, value in given.items() if value.lower() != defaults[name].lower()}
