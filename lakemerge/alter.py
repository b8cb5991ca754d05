"""Changes to a table's definition: metadata commits."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakemerge.errors import CommitConflictError, SchemaError
from lakemerge.handle import Handle
from lakemerge.log import AlreadyDone, Attempt, Snapshot
from lakemerge.schema import check_names, needs_timestamp_ntz, to_arrow_schema, to_delta_json
from lakemerge.slices.view import TableView

__all__ = ["add_columns"]


def add_columns(handle: Handle, begin: TableView, columns: str | pa.Schema) -> Snapshot:
    """Append nullable columns to the schema; returns the snapshot that has them."""
    added = to_arrow_schema(columns)
    required = [field.name for field in added if not field.nullable]
    if required:
        raise SchemaError(f"added columns must be nullable, since earlier rows have no value for {', '.join(required)}")
    if needs_timestamp_ntz(added) and not needs_timestamp_ntz(begin.config.schema):
        raise SchemaError(
            "a TIMESTAMP_NTZ column needs a higher Delta reader version than this table has; create the table with it, "
            "or use TIMESTAMP"
        )

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        view = handle.view(tip)
        if view.state.schema_epoch != begin.state.schema_epoch:
            raise CommitConflictError("the schema changed meanwhile; open the table again and retry")
        schema = pa.schema([*view.config.schema, *added])
        check_names(schema)
        metadata = replace(tip.metadata, schema_string=to_delta_json(schema))
        state = replace(view.state, schema_epoch=view.state.schema_epoch + 1)
        return Attempt([metadata, state.domain()])

    parameters = {"columns": [field.name for field in added]}
    outcome = handle.log.commit(begin.snapshot, build, operation="ADD COLUMNS", parameters=parameters)
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("a schema change has no application transaction")
    return outcome.snapshot
