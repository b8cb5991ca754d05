"""Which Delta tables cannot be converted. Each reason is told with its remedy, all of them at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from lakemerge.delta import Metadata, Snapshot, writer_features
from lakemerge.errors import InputError, UnsupportedFeatureError
from lakemerge.storage.base import Store
from mergers.wording import argument

__all__ = ["DROPPED_FEATURES", "KNOWN_FEATURES", "check_convertible", "check_exclusive"]

DROPPED_FEATURES: Final = frozenset({"clustering", "materializePartitionColumns"})
"""Writer features that end with a conversion: files are clustered by the key from then on, and partition columns are
always stored in files, too."""
KNOWN_FEATURES: Final = DROPPED_FEATURES | {
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "lakemerge",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""Writer features that are understood, at least where the table makes no use of them."""

_CLUSTERING: Final = "delta.clustering"
_STAGED: Final = ("_delta_log/_staged_commits", "_delta_log/_commits")
_DROP: Final = "drop the feature with its own engine (ALTER TABLE ... DROP FEATURE)"
_BY_NAME: Final[Mapping[str, str]] = {
    "catalogManaged": "a catalog makes its commits (catalogManaged): take it out of the catalog's hands first",
    "catalogOwned-preview": "a catalog makes its commits (catalogOwned): take it out of the catalog's hands first",
    "checkpointProtection": f"earlier checkpoints are protected (checkpointProtection): {_DROP}",
    "coordinatedCommits-preview": f"a coordinator makes its commits (coordinatedCommits): {_DROP}",
    "icebergCompatV1": f"it is kept readable for Iceberg (icebergCompatV1): {_DROP}",
    "icebergCompatV2": f"it is kept readable for Iceberg (icebergCompatV2): {_DROP}",
    "icebergCompatV3": f"it is kept readable for Iceberg (icebergCompatV3): {_DROP}",
    "icebergWriterCompatV1": f"it is kept writable for Iceberg (icebergWriterCompatV1): {_DROP}",
    "icebergWriterCompatV3": f"it is kept writable for Iceberg (icebergWriterCompatV3): {_DROP}",
    "rowTracking": f"it tracks rows (rowTracking), and rows would lose their ids: {_DROP}",
}


def check_convertible(store: Store, snapshot: Snapshot) -> None:
    """Raise :class:`UnsupportedFeatureError` with every reason why a plain Delta table cannot be converted.

    What its reader features forbid was told when the snapshot was read."""
    found = list(chain(_of_protocol(snapshot), _of_properties(snapshot.metadata), _of_log(store)))
    if found:
        problems = tuple(problem for _, problem in found)
        raise UnsupportedFeatureError(
            f"the table at {store.url} cannot be converted: {'; '.join(problems)}",
            features=tuple(feature for feature, _ in found),
            problems=problems,
        )


def check_exclusive(store: Store, *, exclusive: bool) -> None:
    """Raise :class:`InputError` for an object store, unless the caller says that nobody else writes the table."""
    if "://" in store.url and not exclusive:
        raise InputError(
            f"the table is in an object store ({store.url}), where Delta writers may commit by a listing and a write, "
            "so one that goes on meanwhile cannot be detected, and its commit or the conversion would be lost: stop "
            f"all writers of the table, and pass {argument('exclusive', True)}"
        )


def _of_protocol(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    protocol, metadata = snapshot.protocol, snapshot.metadata
    if protocol.min_writer > 7:
        yield "writer version", f"it needs Delta writer version {protocol.min_writer}, and this library knows up to 7"
    for feature in sorted(writer_features(protocol)):
        if feature in _BY_NAME:
            yield feature, _BY_NAME[feature]
        elif feature not in KNOWN_FEATURES:
            yield feature, f"it uses {feature}, which this library does not know: {_DROP}"
    for name in sorted(snapshot.domains):
        if name.startswith("delta.") and name != _CLUSTERING:
            yield name, f"it has the domain {name!r}, which this library does not know: {_DROP}"
    text = metadata.schema_string
    used = (
        ("identityColumns", "delta.identity.", "identity columns"),
        ("generatedColumns", "delta.generationExpression", "generated columns"),
        ("invariants", "delta.invariants", "invariants of columns"),
        ("allowColumnDefaults", "CURRENT_DEFAULT", "columns with default values"),
    )
    for feature, entry, told in used:
        columns = [name for name, entries in _entries(text) if any(key.startswith(entry) for key in entries)]
        if columns:
            yield feature, f"it has {told} ({', '.join(columns)}), which no writer would fill or check any more"


def _of_properties(metadata: Metadata) -> Iterator[tuple[str, str]]:
    has = metadata.configuration

    def is_on(name: str) -> bool:
        return has.get(name, "false").strip().lower() == "true"

    if is_on("delta.appendOnly"):
        yield "appendOnly", "its rows may not be replaced (delta.appendOnly): unset the property"
    if is_on("delta.enableChangeDataFeed"):
        yield (
            "changeDataFeed",
            "it writes a change data feed (delta.enableChangeDataFeed), which would end unseen: unset the property",
        )
    if is_on("delta.enableRowTracking"):
        yield "rowTracking", "it tracks rows (delta.enableRowTracking): unset the property"
    for name in sorted(has):
        if name.startswith("delta.coordinatedCommits.commitCoordinator"):
            yield "coordinatedCommits", f"a coordinator makes its commits ({name}): unset the property"
        if name.startswith("delta.enableIceberg") and is_on(name):
            yield "icebergCompat", f"it is kept readable for Iceberg ({name}): unset the property"
    if has.get("delta.universalFormat.enabledFormats"):
        yield (
            "UniForm",
            "it is also an Iceberg or Hudi table (delta.universalFormat.enabledFormats): unset the property",
        )


def _of_log(store: Store) -> Iterator[tuple[str, str]]:
    for folder in _STAGED:
        if any(islice(store.list(folder), 1)):
            yield (
                "staged commits",
                f"a coordinator staged commits, and nobody published them ({folder}): let its engine publish them",
            )


def _entries(schema_string: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each field's path and metadata. What is no schema is told where it is read as one."""

    def walk(node: object, path: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, object]]]:
        match node:
            case {"type": "struct", "fields": list(fields)}:
                for part in fields:
                    if isinstance(part, dict):
                        inner = (*path, str(part.get("name")))
                        entries = part.get("metadata")
                        yield ".".join(inner), entries if isinstance(entries, dict) else {}
                        yield from walk(part.get("type"), inner)
            case {"type": "array", "elementType": element}:
                yield from walk(element, path)
            case {"type": "map", "keyType": key, "valueType": value}:
                yield from walk(key, path)
                yield from walk(value, path)

    yield from walk(json.loads(schema_string), ())
