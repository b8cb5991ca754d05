"""Creating a table: everything about its definition is checked before its first version is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import orjson
import pyarrow as pa

from lakemerge._internal.arguments import mapping, shown
from lakemerge._internal.near import did_you_mean
from lakemerge.commits.replace import replacement
from lakemerge.delta import (
    TXN_RETENTION,
    AlreadyDone,
    Attempt,
    Metadata,
    Protocol,
    Snapshot,
    parse_checkpoint_interval,
    parse_duration_ms,
)
from lakemerge.errors import InputError, SchemaError, TableExistsError
from lakemerge.format.config import TableConfig, bucket_problems
from lakemerge.format.names import DROPPED, WRITER_FEATURE
from lakemerge.format.operations import Operation
from lakemerge.format.publish import (
    DELETION_VECTORS,
    MAX_LAG,
    PUBLISH,
    Publish,
    publish_problems,
    with_vectors,
    with_vectors_enabled,
)
from lakemerge.format.schedule import MAINTENANCE, SCHEDULE_DEFAULTS, schedule_problems
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.partition import is_partitionable
from lakemerge.quantities import byte_count
from lakemerge.schema.lengths import length_of, lengths_of
from lakemerge.schema.names import COLUMN_MAPPING
from lakemerge.schema.schema import needs_timestamp_ntz, to_arrow_schema, to_delta_json
from lakemerge.sql.types import field_ddl
from lakemerge.write.checks import Check, checks_of
from mergers import Merger, TableShape
from mergers.logs import logger
from mergers.ordering import is_orderable
from mergers.probe import probed, restored
from mergers.type_names import type_name
from mergers.wording import argument, in_python

__all__ = [
    "Definition",
    "IfExists",
    "check_replaces",
    "check_same",
    "choose_merger",
    "create_table",
    "define_table",
    "judged",
    "property_problems",
    "tell_locked_out",
    "with_checks",
    "with_constraints",
]

IfExists = Literal["error", "open"]
"""What a creation does where there is a table already."""

_logger = logger(__name__)

_CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_DURATIONS = frozenset(
    {
        "delta.deletedFileRetentionDuration",
        "delta.logRetentionDuration",
        TXN_RETENTION,
        "lakemerge.recordRetention",
        "lakemerge.tombstoneRetention",
    }
)
_OF_PUBLISH = frozenset({PUBLISH, MAX_LAG})
_OF_FLOWS = frozenset({"lakemerge.flow.history", "lakemerge.flow.truncated"})
"""Properties that :mod:`lakemerge.flows` keeps with its targets."""
_SIZES = frozenset({"lakemerge.retention.maxBytes"})
_SETTABLE = sorted({_CHECKPOINT_INTERVAL, *_DURATIONS, *_OF_PUBLISH, *_SIZES, *SCHEDULE_DEFAULTS})


@dataclass(frozen=True, slots=True)
class Definition:
    """What a new table is. Everything about it was checked."""

    metadata: Metadata
    protocol: Protocol
    config: TableConfig

    @property
    def parameters(self) -> Mapping[str, object]:
        """What the commit says of it."""
        config = self.config
        return {
            "key": list(config.key),
            "ordering": list(config.ordering),
            "merger": config.merger_name,
            "partitionBy": list(config.partition_by),
        }


def create_table(
    handle: Handle,
    schema: object,
    *,
    key: Sequence[str],
    ordering: Sequence[str],
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    partition_by: Sequence[str],
    buckets: int | None,
    name: str | None,
    description: str | None,
    properties: Mapping[str, str] | None,
    constraints: Sequence[tuple[str, str]] = (),
    replace: bool = False,
    if_exists: IfExists = "error",
) -> Snapshot:
    """Validate and commit version 0, or the version that replaces a table; see :meth:`lakemerge.LakeTable.create`."""
    given: object = if_exists
    if not isinstance(given, str) or given not in get_args(IfExists):
        known = ", ".join(map(repr, get_args(IfExists)))
        raise InputError(f"{argument('if_exists')} must be one of {known}, not {shown(if_exists)}")
    if replace and if_exists != "error":
        raise InputError(f"give {argument('replace', True)} or {argument('if_exists', if_exists)}, not both")
    defined = define_table(
        handle,
        schema,
        key=key,
        ordering=ordering,
        merger=merger,
        options=options,
        partition_by=partition_by,
        buckets=buckets,
        name=name,
        description=description,
        properties=properties,
        constraints=constraints,
    )

    def build(tip: Snapshot | None) -> Attempt | AlreadyDone:
        if tip is None:
            return Attempt([defined.protocol, defined.metadata, State().domain()])
        check_replaces(handle, tip, replace=replace or if_exists == "open")
        if if_exists == "open":
            check_same(handle, tip, defined, buckets=buckets, properties=properties or {})
            return AlreadyDone(tip.version)
        return replacement(handle.view(tip), defined.metadata, defined.protocol, handle.now_ms())

    # As in Delta, a commit that may replace a table says so, whether there was one or not.
    operation = Operation.REPLACE if replace else Operation.CREATE
    outcome = handle.log.commit(None, build, operation=operation, parameters=defined.parameters)
    if isinstance(outcome, AlreadyDone):
        return handle.log.snapshot()
    tell_locked_out(handle, None, outcome.snapshot)
    return outcome.snapshot


def define_table(
    handle: Handle,
    schema: object,
    *,
    key: Sequence[str],
    ordering: Sequence[str],
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    partition_by: Sequence[str],
    buckets: int | None,
    name: str | None,
    description: str | None,
    properties: Mapping[str, str] | None,
    constraints: Sequence[tuple[str, str]] = (),
) -> Definition:
    """Validate the definition of a table. Nothing is read or written. Raises the errors of
    :meth:`lakemerge.LakeTable.create`.

    :param constraints: names and conditions.
    """
    arrow = to_arrow_schema(schema)
    problems: list[str] = []
    key = _named(key, arrow, "key", problems)
    ordering = _named(ordering, arrow, "ordering", problems)
    partition_by = _named(partition_by, arrow, "partition", problems)
    _check_columns(arrow, key, ordering, partition_by, problems)
    if buckets is not None:
        problems += bucket_problems(buckets)
    properties = {MAINTENANCE: "auto", **(properties or {})}
    problems += property_problems(properties)
    texts: dict[str, object] = {"name": name, "description": description}
    problems += [f"{what} must be a string, not {v!r}" for what, v in texts.items() if not isinstance(v, str | None)]
    if problems:
        raise SchemaError("the table cannot be created: " + "; ".join(problems), problems=tuple(problems))
    fields = [field.with_nullable(False) if field.name in key else field for field in arrow]
    shape = TableShape(pa.schema(fields), tuple(key), tuple(ordering))
    chosen = choose_merger(handle, merger, options, shape)
    config = TableConfig(
        schema=shape.schema,
        key=shape.key,
        ordering=shape.ordering,
        partition_by=tuple(partition_by),
        buckets=buckets,
        merger_id=chosen.id,
        merger_name=chosen.name,
        merger_options=chosen.options(),
        remembers=chosen.remembers(shape),
        constraints=with_constraints({}, constraints),
    )
    judged(config, chosen)
    metadata = Metadata(
        id=handle.new_id(),
        name=name,
        description=description,
        schema_string=to_delta_json(shape.schema),
        partition_columns=config.partition_by,
        configuration={"delta.enableInCommitTimestamps": "true"} | properties | config.configuration(),
        created_time_ms=handle.now_ms(),
    )

    protocol = _protocol(shape.schema)
    if config.constraints:
        protocol = with_checks(protocol)
    if Publish.of(properties).by_vectors:
        protocol = with_vectors(protocol)
    return Definition(with_vectors_enabled(metadata), protocol, config)


def tell_locked_out(handle: Handle, before: Protocol | None, after: Snapshot) -> None:
    """Say whom a table with deletion vectors or a column mapping locks out, once it is one."""
    mapped = before is not None and COLUMN_MAPPING in before.reader_features
    if not mapped and COLUMN_MAPPING in after.protocol.reader_features:
        _logger.warning(
            "from version %d on, the table at %s needs Delta reader version 3 with columnMapping: polars, deltalake's "
            "to_pyarrow_table, and engines of reader versions 1 and 2 cannot read it any more",
            after.version,
            handle.store.url,
        )
    had = before is not None and DELETION_VECTORS in before.reader_features
    if not had and DELETION_VECTORS in after.protocol.reader_features:
        _logger.warning(
            "from version %d on, the table at %s needs Delta reader version 3 with deletionVectors: deltalake's "
            "to_pyarrow_table, engines of reader versions 1 and 2, UniForm and manifests cannot read it any more, also "
            "not once publication is off",
            after.version,
            handle.store.url,
        )


def check_replaces(handle: Handle, tip: Snapshot, *, replace: bool) -> None:
    """Raise :class:`TableExistsError` unless the table at ``tip`` may and can be replaced."""
    url = handle.store.url
    if "lakemerge.formatVersion" not in tip.metadata.configuration:
        raise TableExistsError(
            f"there is already a plain Delta table at {url}, which is never replaced; use another path",
            url=url,
        )
    if tip.metadata.configuration.get(DROPPED) == "true":
        raise TableExistsError(
            f"the table at {url} was dropped, and some of its files are still there: drop it again to delete them",
            url=url,
        )
    if not replace:
        raise TableExistsError(
            f"there is already a table at {url}; open it"
            + in_python(" (LakeTable.open)")
            + f", replace it by an empty one ({argument('replace', True)}), or use another path",
            url=url,
        )


def check_same(
    handle: Handle, tip: Snapshot, defined: Definition, *, buckets: int | None, properties: Mapping[str, str]
) -> None:
    """Raise :class:`TableExistsError` unless the table at ``tip`` has the definition. What the definition leaves to the
    table does not count: the bucket count, and properties that are not given."""
    wanted, there, metadata = defined.config, handle.view(tip).config, defined.metadata
    has = tip.metadata.configuration
    problems = [
        f"{what} {_told(now)}, not {_told(asked)}"
        for what, asked, now in (
            ("its columns are", _columns(wanted.schema), _columns(there.schema)),
            ("its key is", wanted.key, there.key),
            ("its ordering is", wanted.ordering, there.ordering),
            ("it is partitioned by", wanted.partition_by, there.partition_by),
            ("its merger is", wanted.merger_name, there.merger_name),
            ("the merger's options are", _plain(wanted.merger_options), _plain(there.merger_options)),
            ("its name is", metadata.name, tip.metadata.name),
            ("its description is", metadata.description, tip.metadata.description),
            *((f"its property {name!r} is", value, has.get(name)) for name, value in properties.items()),
        )
        if asked != now
    ]
    if buckets is not None and there.buckets is not None and buckets != there.buckets:
        problems.append(f"it has {there.buckets} buckets, not {buckets}")
    if problems:
        raise TableExistsError(
            f"the table at {handle.store.url} has another definition: {'; '.join(problems)}. Open it as it is"
            + in_python(" (LakeTable.open)")
            + ", alter it, or use another path",
            url=handle.store.url,
            problems=tuple(problems),
        )


def _columns(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(field_ddl(field, " ") for field in schema)


def _plain(options: Mapping[str, object]) -> object:
    """Options as a table keeps them."""
    return orjson.loads(orjson.dumps(dict(options)))


def _told(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, tuple) else repr(value)


def _protocol(schema: pa.Schema) -> Protocol:
    """Reader version 1 if the schema allows it, because some readers refuse any feature that they do not know.

    Key columns are NOT NULL. In Delta this belongs to the feature ``invariants``: delta-spark does not read a table
    that has such columns and does not name the feature.
    """
    features = {"domainMetadata", "inCommitTimestamp", "invariants", WRITER_FEATURE}
    if not needs_timestamp_ntz(schema):
        return Protocol(1, 7, frozenset(), frozenset(features))
    return Protocol(3, 7, frozenset({"timestampNtz"}), frozenset(features | {"timestampNtz"}))


def with_constraints(
    present: Mapping[str, str], add: Iterable[tuple[str, str]], drop: Iterable[str] = ()
) -> Mapping[str, str]:
    """The constraints after the change. Raises :class:`SchemaError`."""
    left = dict(present)
    for name in drop:
        if name.lower() not in left:
            raise SchemaError(f"there is no constraint {name!r}; the table has {', '.join(left) or 'none'}")
        del left[name.lower()]
    for name, text in add:
        if not name.isidentifier() or name.lower() in left:
            raise SchemaError(f"a constraint needs a name of letters and digits that no other has, not {name!r}")
        left[name.lower()] = text
    return left


def with_checks(protocol: Protocol) -> Protocol:
    """The protocol of a table with constraints."""
    return replace(protocol, writer_features=protocol.writer_features | {"checkConstraints"})


def judged(config: TableConfig, merger: Merger) -> Sequence[Check]:
    """The constraints of a table. Raises :class:`SchemaError` if records alone do not decide whether rows meet them."""
    _check_lengths(config.schema, merger, config.shape)
    checks = checks_of(config.constraints, config.schema)
    if checks and not merger.traits(config.shape).whole_records:
        raise SchemaError(
            f"the table cannot have the constraint {checks[0].name!r}: a write does not read the row that its record "
            f"meets, and the merger {config.merger_name!r} makes rows of several records. Mergers that take whole "
            "records, such as event-time and commit-time, can have constraints"
        )
    return checks


def _check_lengths(schema: pa.Schema, merger: Merger, shape: TableShape) -> None:
    """Raise :class:`SchemaError` if a merger may make longer texts than a column has: writes see the records alone."""
    lengths, traits = lengths_of(schema), merger.traits(shape)
    if lengths and not (traits.only_picks or traits.whole_records):
        name, length = next(iter(lengths.items()))
        raise SchemaError(
            f"column {name!r} cannot be {length.ddl}, because the merger {merger.name!r} makes values of several "
            "records, which may be longer: take STRING, or a merger that picks values"
        )


def choose_merger(handle: Handle, merger: str | Merger | None, options: Any, shape: TableShape) -> Merger:
    """The merger that a caller names, configured for a table of that shape. ``None`` means the default merger.

    Raises an error if the options of an instance would not come back from the table, or if a method of the class gives
    what no merger may give."""
    if options is not None:
        mapping(options, "options")
    if isinstance(merger, Merger):
        if options:
            raise InputError("give the options to the merger instance, not separately")
        return probed(restored(merger, shape), shape)
    if merger is None:
        merger = "event-time" if shape.ordering else "commit-time"
    if not isinstance(merger, str):
        raise InputError(f"{argument('merger')} must be a name, a UUID or a Merger instance, not {shown(merger)}")
    return probed(handle.registry.resolve(merger).from_options(dict(options or {}), shape), shape)


def _named(columns: Any, schema: pa.Schema, role: str, problems: list[str]) -> list[str]:
    if isinstance(columns, str):
        raise InputError(f"{role} columns must be a list of names; did you mean [{columns!r}]?")
    if not isinstance(columns, Collection) or not all(isinstance(name, str) for name in columns):
        raise InputError(f"{role} columns must be a list of names, not {columns!r}")
    known = {name.lower(): name for name in schema.names}
    names = []
    for name in columns:
        if name.lower() not in known:
            problems.append(
                f"{role} column {name!r} is not in the schema, which has {', '.join(schema.names)}"
                + did_you_mean(name, schema.names)
            )
        elif known[name.lower()] in names:
            problems.append(f"{role} column {name!r} is named twice")
        else:
            names.append(known[name.lower()])
    return names


def _check_columns(
    schema: pa.Schema, key: Sequence[str], ordering: Sequence[str], partition_by: Sequence[str], problems: list[str]
) -> None:
    if not key and not any(problem.startswith("key column") for problem in problems):
        problems.append("a table needs at least one key column: name those that identify a row, such as ['id']")
    for name in key:
        length = length_of(schema.field(name))
        if length is not None and length.pads:
            problems.append(
                f"key column {name!r} is {length.ddl}: a key is found by its bytes, and blanks would change them; take "
                f"VARCHAR({length.most})"
            )
        kind = schema.field(name).type
        if not is_orderable(kind) or pa.types.is_floating(kind):
            problems.append(
                f"key column {name!r} is {type_name(kind)}; keys are integers, strings, binary, booleans, dates, "
                "timestamps or decimals"
            )
    for name in ordering:
        kind = schema.field(name).type
        if not is_orderable(kind):
            problems.append(f"ordering column {name!r} is {type_name(kind)}, which has no order: use another column")
        if name in key:
            problems.append(f"ordering column {name!r} is a key column; all records of a key would be equal")
    for name in partition_by:
        if name not in key:
            problems.append(
                f"partition column {name!r} must be a key column: add it to the key, or use a key column. A write "
                "finds the partition of a record without reading the table, so a row whose value in another column "
                "changes would be in two partitions"
            )
        elif not is_partitionable(schema.field(name).type):
            problems.append(
                f"partition column {name!r} is {type_name(schema.field(name).type)}, which cannot partition a table"
            )


def property_problems(properties: Mapping[str, Any], *, removable: bool = False) -> list[str]:
    """The problems with table properties that a user sets.

    :param removable: whether the value ``None`` is allowed. It removes the property.
    """
    problems = [
        f"table property {name!r} is not one that users set{did_you_mean(name, _SETTABLE)}"
        for name in properties
        if not _is_settable(name)
    ]
    for name, value in properties.items():
        if removable and value is None:
            continue
        if not isinstance(value, str):
            # What holds text may hold a secret under a wrong name.
            given = shown(value) if isinstance(value, int | float) else f"a value of type {type(value).__name__}"
            problems.append(f"table property {name!r} must be a string, not {given}")
        elif name in SCHEDULE_DEFAULTS:
            problems += schedule_problems(name, value)
        elif name in _OF_PUBLISH:
            problems += publish_problems(name, value)
        elif name in _DURATIONS and parse_duration_ms(value) is None:
            problems.append(f"table property {name!r} must be an interval such as 'interval 7 days', not {value!r}")
        elif name in _SIZES and not _is_size(value):
            problems.append(f"table property {name!r} must be a number of bytes such as '50GiB', not {value!r}")
        elif name == _CHECKPOINT_INTERVAL and parse_checkpoint_interval(value) is None:
            problems.append(f"table property {name!r} must be a positive number of commits, not {value!r}")
    return problems


def _is_size(text: str) -> bool:
    try:
        byte_count(text)
    except InputError:
        return False
    return True


def _is_settable(name: object) -> bool:
    """Whether a user may set a property: one that Delta leaves to users, one of the few Delta properties that do not
    change the protocol, or one of LakeMerge's settings."""
    if not isinstance(name, str) or not name:
        return False
    if name.startswith("lakemerge."):
        return any(name in known for known in (_DURATIONS, SCHEDULE_DEFAULTS, _SIZES, _OF_FLOWS, _OF_PUBLISH))
    return not name.startswith("delta.") or name in _DURATIONS or name == _CHECKPOINT_INTERVAL
