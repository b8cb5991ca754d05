"""The table that a flow fills. It is made for the flow, or checked that the flow can fill it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError, NotATableError
from lakemerge.flows.settings import DELETED, HISTORY_PROPERTY, START, FlowSettings, HistoryView
from lakemerge.schema.schema import roomy_schema
from lakemerge.table.table import LakeTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["history_fields", "opened_target"]


def opened_target(target: object, settings: FlowSettings, source: pa.Schema, spark: SparkSession | None) -> LakeTable:
    """
    :param target: a table or its path. If there is no table at the path, it is made, with types that hold the source's
        values.
    :param source: the source's columns, in its own types.
    :raises InputError: the table has another key, ordering or merger than the flow needs; everything is listed.
    """
    wanted = _definition(settings, source)
    if isinstance(target, LakeTable):
        return _checked(target, wanted)
    if not isinstance(target, str | os.PathLike):
        raise InputError(f"the target must be a LakeTable or the path of one, not {shown(target)}")
    try:
        table = LakeTable.open(target, spark=spark)
    except NotATableError as error:
        if "there is no Delta log" not in error.message:
            raise
        return LakeTable.create(target, spark=spark, schema=_columns(settings, source), **wanted)
    return _checked(table, wanted)


def _definition(settings: FlowSettings, source: pa.Schema) -> dict[str, Any]:
    """The arguments of :meth:`LakeTable.create` without the columns."""
    settings.columns(source.names)  # raises if the flow cannot be run on them
    spelled = {name.lower(): name for name in source.names}
    key = [spelled[name.lower()] for name in settings.keys]
    sequence = [spelled[name.lower()] for name in settings.sequence_by]
    if settings.scd_type == 2:
        return {
            "key": [*key, START],
            # The sequence identifies an event. If an event comes twice, the later one is kept.
            "ordering": [],
            "merger": "commit-time",
            "properties": {HISTORY_PROPERTY: settings.view.to_json()},
        }
    wanted: dict[str, Any] = {"key": key, "ordering": sequence, "merger": "event-time"}
    if settings.ignore_null_updates:
        wanted |= {"merger": "partial-update", "options": {"remove_record_on_delete": True}}
    return wanted


def _columns(settings: FlowSettings, source: pa.Schema) -> pa.Schema:
    """The columns of a new target."""
    fields = [source.field(name).with_nullable(True) for name in settings.columns(source.names)]
    if settings.scd_type == 2:
        lower = settings.sequence_by[0].lower()
        start = next(field.type for field in source if field.name.lower() == lower)
        fields += history_fields(start)
    return roomy_schema(pa.schema(fields))


def history_fields(sequence: pa.DataType) -> list[pa.Field]:
    """The columns of events in addition to the source's."""
    return [pa.field(START, sequence, nullable=False), pa.field(DELETED, pa.bool_())]


def _checked(table: LakeTable, wanted: dict[str, Any]) -> LakeTable:
    view = table.opened.view
    config, problems = view.config, []
    for what, given in (("key", config.key), ("ordering", config.ordering)):
        if [name.lower() for name in given] != [name.lower() for name in wanted[what]]:
            problems.append(f"its {what} is {list(given)}, and must be {wanted[what]}")
    if config.merger_name != wanted["merger"]:
        problems.append(f"its merger is {config.merger_name!r}, and must be {wanted['merger']!r}")
    elif wanted.get("options", {}).items() - dict(config.merger_options).items():
        problems.append(f"its merger needs the options {wanted['options']}")
    for name, value in wanted.get("properties", {}).items():
        there = view.snapshot.metadata.configuration.get(name)
        if there is None or not HistoryView.of(there).same_as(HistoryView.of(value)):
            problems.append(f"its table property {name!r} must be {value!r}")
    if problems:
        raise InputError(
            f"the table at {table.url} cannot be the target of this flow: {'; '.join(problems)}. Give a path without a "
            "table, and the flow creates one",
            problems=tuple(problems),
        )
    return table
