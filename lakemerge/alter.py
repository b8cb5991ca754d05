"""Changes to a table's definition: metadata commits.

Source: docs/table-format.md, sections 4 and 5. A change is judged anew against the tip at every
attempt, and is void once another change of the definition was first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import orjson
import pyarrow as pa

from lakemerge.config import State, TableConfig
from lakemerge.create import choose_merger
from lakemerge.errors import CommitConflictError, CompactFirstError, InputError, SchemaError
from lakemerge.handle import Handle
from lakemerge.log import AlreadyDone, Attempt, Snapshot
from lakemerge.schema import check_names, needs_timestamp_ntz, to_arrow_schema, to_delta_json
from lakemerge.slices.view import TableView
from mergers import Merger

__all__ = ["alter_table"]


def alter_table(
    handle: Handle,
    begin: TableView,
    *,
    add_columns: str | pa.Schema | None,
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
) -> Snapshot:
    """Add columns, change the merger, or both in one commit; see :meth:`lakemerge.LakeTable.alter`.

    Returns the snapshot that has the change; that of ``begin`` where there is nothing to change.
    """
    if add_columns is None and merger is None and options is None:
        raise InputError("there is nothing to alter; give add_columns, merger or options")
    before = begin.config
    schema = before.schema if add_columns is None else _grown(before.schema, add_columns)
    chosen = _chosen(handle, replace(before, schema=schema), merger, options)
    remerged = (chosen.id, _json(chosen.options())) != (before.merger_id, _json(before.merger_options))
    after = replace(before, schema=schema)
    if remerged:
        after = replace(after, merger_id=chosen.id, merger_name=chosen.name, merger_options=chosen.options())
    if after == before:
        return begin.snapshot

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        view = handle.view(tip)
        _check_same_definition(begin.state, view.state)
        if remerged:
            _check_no_live_logs(view)
        configuration = replace(after, buckets=view.config.buckets).configuration()
        metadata = replace(
            tip.metadata,
            schema_string=tip.metadata.schema_string if schema == before.schema else to_delta_json(schema),
            configuration={**tip.metadata.configuration, **configuration},
        )
        state = replace(
            view.state,
            merger_epoch=view.state.merger_epoch + remerged,
            schema_epoch=view.state.schema_epoch + (schema != before.schema),
        )
        return Attempt([metadata, state.domain()])

    operation, parameters = _described(before, after)
    outcome = handle.log.commit(begin.snapshot, build, operation=operation, parameters=parameters)
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("a change of the definition has no application transaction")
    return outcome.snapshot


def _grown(schema: pa.Schema, columns: str | pa.Schema) -> pa.Schema:
    """The schema with nullable columns at its end. Raises :class:`SchemaError`."""
    added = to_arrow_schema(columns)
    required = [field.name for field in added if not field.nullable]
    if required:
        raise SchemaError(f"added columns must be nullable, since earlier rows have no value for {', '.join(required)}")
    if needs_timestamp_ntz(added) and not needs_timestamp_ntz(schema):
        raise SchemaError(
            "a TIMESTAMP_NTZ column needs a higher Delta reader version than this table has; create the table with it, "
            "or use TIMESTAMP"
        )
    grown = pa.schema([*schema, *added])
    check_names(grown)
    return grown


def _chosen(
    handle: Handle, config: TableConfig, merger: str | Merger | None, options: Mapping[str, object] | None
) -> Merger:
    """The merger after the change, its options validated against the schema after the change. Also
    where the merger stays: it has to take the added columns, or nobody could read the table."""
    if merger is None and options is None:
        return config.merger(handle.registry)
    if merger is None:
        merger = handle.registry.of_table(config.merger_id, config.merger_name).id
    return choose_merger(handle, merger, options, config.shape)


def _check_same_definition(begin: State, tip: State) -> None:
    for what, was, now in (
        ("schema", begin.schema_epoch, tip.schema_epoch),
        ("merger", begin.merger_epoch, tip.merger_epoch),
        ("bucket count", begin.layout_epoch, tip.layout_epoch),
    ):
        if was != now:
            raise CommitConflictError(f"the {what} changed meanwhile; open the table again and retry")


def _check_no_live_logs(view: TableView) -> None:
    """Every live log was written under the present merger: an earlier change passed this check, and
    a write begun before one is refused by its epoch."""
    dirty = [tile for tile in view.tiles if not tile.is_merged]
    if dirty:
        versions = sorted({block.version for tile in dirty for block in tile.blocks})
        raise CompactFirstError(
            f"logs of {len(versions)} commits are not compacted yet, and only {view.config.merger_name!r} with its "
            "present options can fold them: compact first (table.compact()), then alter again",
            versions=tuple(versions),
        )


def _described(before: TableConfig, after: TableConfig) -> tuple[str, Mapping[str, object]]:
    """Operation and parameters for the commit info."""
    parameters: dict[str, object] = {}
    operations = []
    added = after.schema.names[len(before.schema) :]
    if added:
        operations.append("ADD COLUMNS")
        parameters["columns"] = added
    if (after.merger_id, after.merger_options) != (before.merger_id, before.merger_options):
        operations.append("CHANGE MERGER")
        parameters |= {"merger": after.merger_name, "mergerOptions": dict(after.merger_options)}
    return ", ".join(operations), parameters


def _json(options: Mapping[str, object]) -> object:
    """Options as a table keeps them."""
    return orjson.loads(orjson.dumps(dict(options)))
