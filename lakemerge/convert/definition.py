"""What a Delta table is to become: its definition, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakemerge.convert.refusals import DROPPED_FEATURES
from lakemerge.convert.source import DeltaSource
from lakemerge.delta import Metadata, Protocol, Snapshot, writer_features
from lakemerge.errors import SchemaError
from lakemerge.format.config import CONSTRAINT_PREFIX, TableConfig
from lakemerge.format.names import WRITER_FEATURE
from lakemerge.format.publish import with_vectors_enabled
from lakemerge.format.schedule import MAINTENANCE
from lakemerge.handle import Handle
from lakemerge.schema.names import COLUMN_MAPPING, MODE
from lakemerge.table.create import define_table
from lakemerge.write.checks import checks_of
from mergers import Merger

__all__ = ["Converted", "converted", "key_partitions", "protocol_after"]

_NEEDED = frozenset({"domainMetadata", "inCommitTimestamp", "invariants", WRITER_FEATURE})
_ENDS = frozenset({"delta.checkpointPolicy"})
"""Properties that end: LakeMerge writes classic checkpoints alone."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The definition of the table after its conversion."""

    metadata: Metadata
    protocol: Protocol
    config: TableConfig
    merger: Merger


def converted(
    handle: Handle,
    begin: Snapshot,
    source: DeltaSource,
    *,
    key: Sequence[str],
    ordering: Sequence[str],
    merger: str | Merger | None,
    options: Mapping[str, object] | None,
    partition_by: Sequence[str] | None,
    buckets: int | None,
) -> Converted:
    """Raises the errors of :meth:`lakemerge.LakeTable.create`, and :class:`SchemaError` for constraints that the merger
    cannot keep."""
    before = begin.metadata
    chosen = key_partitions(before.partition_columns, key) if partition_by is None else partition_by
    defined = define_table(
        handle,
        source.schema,
        key=key,
        ordering=ordering,
        merger=merger,
        options=options,
        partition_by=chosen,
        buckets=buckets,
        name=before.name,
        description=before.description,
        properties=None,
    )
    constraints = {
        name.removeprefix(CONSTRAINT_PREFIX): text
        for name, text in before.configuration.items()
        if name.startswith(CONSTRAINT_PREFIX)
    }
    config = replace(defined.config, names=source.names, constraints=constraints)
    own = config.merger(handle.registry)
    if checks_of(constraints, config.schema) and not own.traits(config.shape).whole_records:
        raise SchemaError(
            f"the table has the constraint(s) {', '.join(map(repr, constraints))}, which the merger "
            f"{config.merger_name!r} cannot keep: a write does not read the row that its record meets. Mergers that "
            "take whole records, such as event-time and commit-time, can; or drop the constraints first"
        )
    kept = {name: value for name, value in before.configuration.items() if name not in _ENDS}
    metadata = replace(
        before,
        schema_string=config.schema_string,
        partition_columns=config.partition_by,
        configuration={
            MAINTENANCE: "auto",
            **kept,
            "delta.enableInCommitTimestamps": "true",
            **config.configuration(),
        },
    )
    return Converted(with_vectors_enabled(metadata), protocol_after(begin), config, own)


def key_partitions(partition_columns: Sequence[str], key: Sequence[str]) -> tuple[str, ...]:
    """The partition columns that are key columns. The others become columns like all others."""
    wanted = {name.lower() for name in key}
    return tuple(name for name in partition_columns if name.lower() in wanted)


def protocol_after(begin: Snapshot) -> Protocol:
    """The protocol that lists every feature that the old version implies. It is never lowered, but for features of
    writers that end."""
    before = begin.protocol
    writer = (writer_features(before) - DROPPED_FEATURES) | _NEEDED
    mapped = begin.metadata.configuration.get(MODE, "none") != "none"
    reader, features = before.min_reader, before.reader_features
    if mapped:
        # With reader version 2, which has the mapping in it, deltalake's readers give nulls for renamed columns.
        reader, features = 3, features | {COLUMN_MAPPING}
        writer |= {COLUMN_MAPPING}
    elif reader == 2:
        writer |= {COLUMN_MAPPING}
    return Protocol(reader, 7, features, writer, extra=before.extra)
