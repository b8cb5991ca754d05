"""Changes to a table's definition: metadata commits.

Source: docs/table-format.md, sections 4 and 5. Every attempt to commit checks the change against the tip again. The
change fails if another change of the definition was first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson
import pyarrow as pa

from lakemerge.commits.base import check_fence, commit_to, landed, rows_changed
from lakemerge.delta import Attempt, Metadata, Protocol, Snapshot
from lakemerge.errors import CommitConflictError, CompactFirstError, InputError, SchemaError
from lakemerge.format.config import CONSTRAINT_PREFIX, REMEMBERED, TableConfig
from lakemerge.format.operations import Operation
from lakemerge.format.publish import Publish, with_vectors, with_vectors_enabled
from lakemerge.handle import Handle
from lakemerge.layout.travel import unless_replaced
from lakemerge.layout.view import TableView
from lakemerge.read.scan import scan
from lakemerge.schema.evolution import (
    new_columns,
    with_columns,
    with_comments,
    with_names,
    with_nullable,
    with_order,
    with_types,
    without_columns,
)
from lakemerge.schema.names import with_mapping
from lakemerge.schema.widening import PROPERTY, with_feature
from lakemerge.table.create import (
    choose_merger,
    judged,
    property_problems,
    tell_locked_out,
    with_checks,
    with_constraints,
)
from lakemerge.table.open_table import OpenTable
from lakemerge.write.checks import Check, checks_of
from mergers import Merger
from mergers.errors import MergerConfigurationError
from mergers.wording import argument

__all__ = ["SchemaChange", "alter", "alter_table"]

_CHANGES = (
    "rename_columns",
    "drop_columns",
    "add_columns",
    "nullable",
    "comments",
    "widen",
    "order",
    "merger",
    "options",
    "add_constraints",
    "drop_constraints",
    "properties",
    "description",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """What a caller wants changed in the columns; see :meth:`lakemerge.LakeTable.alter`."""

    rename_columns: Mapping[str, str] | None = None
    drop_columns: Sequence[str] | None = None
    add_columns: str | pa.Schema | None = None
    nullable: Sequence[str] | None = None
    comments: Mapping[str, str | None] | None = None
    order: Sequence[str] | None = None
    widen: Mapping[str, str | pa.DataType] | None = None

    @property
    def is_empty(self) -> bool:
        parts = (self.rename_columns, self.drop_columns, self.add_columns, self.nullable, self.comments)
        return all(part is None for part in (*parts, self.order, self.widen))

    def applied(self, schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
        """The schema after the change, but for names and dropped columns, additions first. Raises
        :class:`SchemaError`."""
        if self.add_columns is not None:
            schema = with_columns(schema, self.add_columns)
        if self.nullable is not None:
            schema = with_nullable(schema, self.nullable, key)
        if self.comments is not None:
            schema = with_comments(schema, self.comments)
        if self.widen is not None:
            schema = with_types(schema, self.widen, key)
        return schema if self.order is None else with_order(schema, self.order)


def alter(
    table: OpenTable,
    columns: SchemaChange,
    *,
    merger: str | Merger | None = None,
    options: Mapping[str, object] | None = None,
    add_constraints: Mapping[str, str] | None = None,
    drop_constraints: Sequence[str] | None = None,
    properties: Mapping[str, str | None] | None = None,
    description: str | None = None,
) -> int:
    """See :meth:`lakemerge.LakeTable.alter`. Returns the version that has the change."""
    begin = table.writable()
    handle = table.handle.knowing(merger)
    snapshot = alter_table(
        handle,
        begin,
        columns=columns,
        merger=merger,
        options=options,
        add_constraints=add_constraints,
        drop_constraints=drop_constraints,
        properties=properties,
        description=description,
    )
    table.handle = handle
    table.move(snapshot)
    return snapshot.version


def alter_table(
    handle: Handle,
    begin: TableView,
    *,
    columns: SchemaChange,
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    add_constraints: Mapping[str, str] | None = None,
    drop_constraints: Sequence[str] | None = None,
    properties: Mapping[str, str | None] | None = None,
    description: str | None = None,
) -> Snapshot:
    """Change columns, merger or properties, all in one commit; see :meth:`lakemerge.LakeTable.alter`.

    Returns the snapshot that has the change. If there is nothing to change, returns the snapshot of ``begin``.
    """
    parts = (merger, options, add_constraints, drop_constraints, properties, description)
    if columns.is_empty and all(part is None for part in parts):
        *names, last = map(argument, _CHANGES)
        raise InputError(f"there is nothing to alter; give {', '.join(names)} or {last}")
    given = dict(properties or {})
    if problems := property_problems(given, removable=True):
        raise InputError("the table cannot be altered: " + "; ".join(problems), problems=tuple(problems))
    named = _named(handle, begin, columns, begin.version + 1)
    before, is_named = named.config, named.config is not begin.config
    schema = columns.applied(before.schema, before.key)
    reshaped = is_named or not schema.equals(before.schema, check_metadata=True)
    widened = replace(columns, widen=None).applied(before.schema, before.key) != schema
    computes = widened and not before.merger(handle.registry).traits(before.shape).only_picks
    after = before.with_schema(schema)
    chosen = _chosen(handle, after, merger, options)
    remerged = (chosen.id, _json(chosen.options())) != (before.merger_id, _json(before.merger_options))
    if remerged:
        after = after.merged_by(chosen)
    added = (add_constraints or {}).items()
    after = replace(after, constraints=with_constraints(before.constraints, added, drop_constraints or ()))
    fresh = _checked(handle, begin, [c for c in judged(after, chosen) if c.name not in before.constraints])
    old = begin.snapshot.metadata
    if after == before and not reshaped and _with_texts(old, given, description) == old:
        return begin.snapshot

    def build(view: TableView) -> Attempt:
        tip = view.snapshot
        check_fence(begin, view)
        _check_same_definition(begin, view)
        if remerged or computes:
            _check_no_live_logs(view)
        if fresh and rows_changed(handle, begin, view):
            raise CommitConflictError("rows were written while those that are there were checked; try again")
        names = _named(handle, begin, columns, view.version + 1).config.names.extended(schema)
        defined = replace(after, buckets=view.config.buckets, names=names)
        configuration = defined.configuration()
        metadata = replace(
            _with_texts(tip.metadata, given, description),
            schema_string=defined.schema_string if reshaped else tip.metadata.schema_string,
            partition_columns=defined.partition_by,
        )
        if widened:
            configuration[PROPERTY] = "true"
        gone = {REMEMBERED, *(CONSTRAINT_PREFIX + name for name in before.constraints)}
        kept = {name: value for name, value in metadata.configuration.items() if name not in gone}
        metadata = with_vectors_enabled(replace(metadata, configuration={**kept, **configuration}))
        protocol = _protocol(with_feature(tip.protocol, schema) if widened else tip.protocol, defined, metadata)
        state = replace(
            view.state,
            merger_epoch=view.state.merger_epoch + remerged,
            schema_epoch=view.state.schema_epoch + reshaped,
        )
        return Attempt([*([] if protocol == tip.protocol else [protocol]), metadata, state.domain()])

    operation, parameters = _described(before, after, columns, named, given, description)
    done = landed(commit_to(handle, begin, build, operation=operation, parameters=parameters)).snapshot
    tell_locked_out(handle, begin.snapshot.protocol, done)
    return done


@dataclass(frozen=True, slots=True)
class _Named:
    """The definition after columns were renamed and dropped, and what that was."""

    config: TableConfig
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: Sequence[str] = ()


def _named(handle: Handle, begin: TableView, columns: SchemaChange, version: int) -> _Named:
    """Rename and drop columns, as the commit of a version does. Raises :class:`SchemaError`."""
    config = begin.config
    schema, renamed = with_names(config.schema, columns.rename_columns or {})
    dropped: list[str] = []
    if columns.drop_columns is not None:
        schema, dropped = without_columns(schema, columns.drop_columns)
    if not renamed and not dropped:
        return _Named(config)
    names = config.names.enabled(config.schema, begin.snapshot.metadata.id)
    merger = handle.registry.of_table(config.merger_id, config.merger_name)
    _check_follows(merger)
    for check in checks_of(config.constraints, config.schema):
        if found := sorted(check.columns & renamed.keys()):
            raise SchemaError(
                f"columns cannot be renamed: the constraint {check.name!r} ({check.text}) names {', '.join(found)}. "
                "Drop the constraint first, and add it with the new names"
            )
    if renamed:
        names = names.renamed(renamed, version)
        config = replace(
            config,
            key=_renamed(config.key, renamed),
            ordering=_renamed(config.ordering, renamed),
            partition_by=_renamed(config.partition_by, renamed),
            remembers=_renamed(config.remembers, renamed),
            merger_options=merger.renamed_options(config.merger_options, renamed),
        )
    if dropped:
        if not len(schema):
            raise SchemaError("a table keeps at least one column")
        problems = [problem for name in dropped if (problem := _needed(config, merger, name)) is not None]
        if problems:
            raise SchemaError("columns cannot be dropped: " + "; ".join(problems), problems=tuple(problems))
        names = names.without(dropped, version)
    return _Named(replace(config, schema=schema, names=names), renamed, dropped)


def _check_follows(merger: type[Merger]) -> None:
    """Raise :class:`MergerConfigurationError` unless the class says itself what other names mean for it. What it
    inherits says nothing of its own code."""
    told = next(each for each in merger.__mro__ if "renamed_options" in vars(each))
    own = next((each for each in merger.__mro__ if not each.__module__.startswith("mergers.")), None)
    if told is Merger or (own is not None and not issubclass(told, own)):
        raise MergerConfigurationError(
            f"merger {merger.name!r} does not say whether its options or its code name columns, so columns cannot be "
            "renamed or dropped: give its class the method renamed_options, which returns the options with other names",
            merger=merger.name,
        )


def _renamed(names: Sequence[str], changes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(changes.get(name, name) for name in names)


def _needed(config: TableConfig, merger: type[Merger], name: str) -> str | None:
    """Why a column cannot be dropped."""
    uses = (("key", config.key), ("partition", config.partition_by), ("ordering", config.ordering))
    for role, columns in uses:
        if name in columns:
            return f"{name!r} is a {role} column"
    for check in checks_of(config.constraints, config.schema):
        if name in check.columns:
            return f"the constraint {check.name!r} ({check.text}) names the column {name!r}: drop the constraint first"
    if name in config.remembers:
        return f"deletes remember the column {name!r}"
    if merger.renamed_options(config.merger_options, {name: f"{name}*"}) != config.merger_options:
        return f"options of the merger {merger.name!r} name the column {name!r}: change the options first"
    return None


def _checked(handle: Handle, begin: TableView, fresh: Sequence[Check]) -> Sequence[Check]:
    """New constraints, which the rows of the version meet. Raises :class:`SchemaError` if some do not."""
    if not fresh:
        return fresh
    with unless_replaced(handle.log, begin.snapshot):
        for batch in scan(handle, begin, columns=None, filter=None):
            for check in fresh:
                bad = check.violating(pa.Table.from_batches([batch]))
                if bad.num_rows:
                    key = bad.select(list(begin.config.key)).slice(0, 1).to_pylist()[0]
                    raise SchemaError(
                        f"rows violate the constraint {check.name!r} ({check.text}), such as that of key {key}"
                    )
    return fresh


def _protocol(present: Protocol, defined: TableConfig, metadata: Metadata) -> Protocol:
    """The protocol that a definition needs. It is never lowered."""
    protocol = with_mapping(present) if defined.names.is_on else present
    if defined.constraints:
        protocol = with_checks(protocol)
    return with_vectors(protocol) if Publish.of(metadata.configuration).by_vectors else protocol


def _with_texts(metadata: Metadata, properties: Mapping[str, str | None], description: str | None) -> Metadata:
    """Set properties and the description. Remove properties whose value is ``None``, and a description of no text."""
    if description is not None:
        metadata = replace(metadata, description=description or None)
    changed = {**metadata.configuration, **properties}
    left = {name: value for name, value in changed.items() if value is not None}
    return replace(metadata, configuration=left)


def _chosen(
    handle: Handle, config: TableConfig, merger: str | Merger | None, options: Mapping[str, object] | None
) -> Merger:
    """The merger after the change. Its options are validated against the schema after the change, even if the merger
    stays: if it did not accept the added columns, nobody could read the table."""
    if merger is None and options is None:
        return config.merger(handle.registry)
    if merger is None:
        merger = handle.registry.of_table(config.merger_id, config.merger_name).id
    return choose_merger(handle, merger, options, config.shape)


def _check_same_definition(begin: TableView, tip: TableView) -> None:
    if begin.state.restore_epoch != tip.state.restore_epoch:
        raise CommitConflictError("the table was restored to an earlier version meanwhile; open it again and retry")
    for what, was, now in (
        ("schema", begin.state.schema_epoch, tip.state.schema_epoch),
        ("merger", begin.state.merger_epoch, tip.state.merger_epoch),
        ("bucket count", begin.state.layout_epoch, tip.state.layout_epoch),
        # The columns and the merger after the change were judged by them.
        ("set of constraints", dict(begin.config.constraints), dict(tip.config.constraints)),
    ):
        if was != now:
            raise CommitConflictError(f"the {what} changed meanwhile; open the table again and retry")


def _check_no_live_logs(view: TableView) -> None:
    """Raise an error if there are live logs. Because of this check, every live log was written under the present
    merger, and in types that it computes in. A write that began before such a change is refused."""
    dirty = [file_slice for file_slice in view.file_slices if not file_slice.is_merged]
    if dirty:
        versions = sorted({block.version for file_slice in dirty for block in file_slice.blocks})
        raise CompactFirstError(
            f"logs of {len(versions)} commits are not compacted yet, and only {view.config.merger_name!r} with its "
            "present options and types can fold them: compact first (table.compact()), then alter again",
            versions=tuple(versions),
        )


def _described(
    before: TableConfig,
    after: TableConfig,
    columns: SchemaChange,
    named: _Named,
    properties: Mapping[str, str | None],
    description: str | None,
) -> tuple[str, Mapping[str, object]]:
    """Operation and parameters for the commit info."""
    parameters: dict[str, object] = {}
    operations = []
    if named.renamed:
        operations.append(Operation.RENAME_COLUMN)
        parameters["renamed"] = dict(named.renamed)
    if named.dropped:
        operations.append(Operation.DROP_COLUMNS)
        parameters["dropped"] = list(named.dropped)
    if added := new_columns(before.schema, after.schema):
        operations.append(Operation.ADD_COLUMNS)
        parameters["columns"] = added
    types = None if columns.widen is None else {name: str(kind) for name, kind in columns.widen.items()}
    changes = {"nullable": columns.nullable, "comments": columns.comments, "widen": types, "order": columns.order}
    if changed := {name: change for name, change in changes.items() if change is not None}:
        operations.append(Operation.CHANGE_COLUMNS)
        parameters |= {name: dict(part) if isinstance(part, Mapping) else list(part) for name, part in changed.items()}
    if (after.merger_id, after.merger_options) != (before.merger_id, before.merger_options):
        operations.append(Operation.CHANGE_MERGER)
        parameters |= {"merger": after.merger_name, "mergerOptions": dict(after.merger_options)}
    for operation, one, other in (
        (Operation.ADD_CONSTRAINT, after.constraints, before.constraints),
        (Operation.DROP_CONSTRAINT, before.constraints, after.constraints),
    ):
        if changed_texts := {name: text for name, text in one.items() if other.get(name) != text}:
            operations.append(operation)
            parameters[f"{operation.split()[0].lower()}Constraints"] = changed_texts
    if properties:
        operations.append(Operation.SET_PROPERTIES)
        parameters["properties"] = dict(properties)
    if description is not None:
        operations.append(Operation.SET_DESCRIPTION)
        parameters["description"] = description
    return ", ".join(operations), parameters


def _json(options: Mapping[str, object]) -> object:
    """Options as a table keeps them."""
    return orjson.loads(orjson.dumps(dict(options)))
