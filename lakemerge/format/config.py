"""What a table's metadata says about merging, and the permanent state domain.

Source: docs/table-format.md, sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from lakemerge.delta import DomainMetadata, Metadata, Snapshot
from lakemerge.errors import NotATableError, SchemaError, TableDamagedError, UnsupportedFeatureError
from lakemerge.schema.schema import UnknownTypeError, from_delta_json
from lakemerge.schema.widening import check_type_changes
from mergers import Merger, MergerRegistry, TableShape

__all__ = [
    "FORMAT_VERSION",
    "LOG_DOMAIN_PREFIX",
    "MAX_BUCKETS",
    "STATE_DOMAIN",
    "WRITER_FEATURE",
    "State",
    "TableConfig",
    "bucket_count",
]

FORMAT_VERSION = 1
MAX_BUCKETS = 2**16
WRITER_FEATURE = "lakemerge"
STATE_DOMAIN = "lakemerge.state"
LOG_DOMAIN_PREFIX = "lakemerge.log."

_PREFIX = "lakemerge."


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The merging part of ``metaData.configuration``, with the schema it applies to."""

    schema: pa.Schema
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    partition_by: tuple[str, ...]
    buckets: int | None
    """``None`` until the first write has chosen it."""
    merger_id: str
    merger_name: str
    merger_options: Mapping[str, object]

    @property
    def shape(self) -> TableShape:
        return TableShape(self.schema, self.key, self.ordering)

    def merger(self, registry: MergerRegistry) -> Merger:
        """The table's merger, by strategy id. Raises where nobody registered it, or where its
        options do not validate."""
        return registry.of_table(self.merger_id, self.merger_name).from_options(self.merger_options, self.shape)

    def configuration(self) -> dict[str, str]:
        """The entries of ``metaData.configuration``."""
        entries = {
            "formatVersion": str(FORMAT_VERSION),
            "key": _text(list(self.key)),
            "ordering": _text(list(self.ordering)),
            "merger.id": self.merger_id,
            "merger.name": self.merger_name,
            "merger.options": _text(dict(self.merger_options)),
        }
        if self.buckets is not None:
            entries["buckets"] = str(self.buckets)
        return {_PREFIX + name: value for name, value in entries.items()}

    @staticmethod
    def of(metadata: Metadata, *, url: str) -> TableConfig:
        """Read a table's metadata; raises :class:`NotATableError` for a plain Delta table."""
        entries = {k.removeprefix(_PREFIX): v for k, v in metadata.configuration.items() if k.startswith(_PREFIX)}
        if "formatVersion" not in entries:
            raise NotATableError(
                f"{url} is a Delta table, but not a LakeMerge table; create one with LakeTable.create and load it with "
                "upsert",
                url=url,
            )
        if entries["formatVersion"] != str(FORMAT_VERSION):
            raise UnsupportedFeatureError(
                f"{url} has LakeMerge format version {entries['formatVersion']}; this library understands "
                f"{FORMAT_VERSION}. Install a newer lakemerge.",
                url=url,
                format_version=entries["formatVersion"],
            )
        try:
            schema = from_delta_json(metadata.schema_string)
            check_type_changes(schema)
            key, ordering = _names(entries["key"]), _names(entries["ordering"])
            if strange := {*key, *ordering, *metadata.partition_columns}.difference(schema.names):
                raise ValueError(f"the schema has no columns {sorted(strange)}")
            return TableConfig(
                schema=schema,
                key=key,
                ordering=ordering,
                partition_by=tuple(metadata.partition_columns),
                buckets=bucket_count(int(entries["buckets"])) if "buckets" in entries else None,
                merger_id=entries["merger.id"],
                merger_name=entries["merger.name"],
                merger_options=dict(orjson.loads(entries["merger.options"])),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"the table properties of {url} are damaged: {error!r}", url=url) from error
        except UnknownTypeError as error:
            raise UnsupportedFeatureError(f"{url} needs a newer lakemerge: {error.message}", url=url) from error
        except SchemaError as error:
            raise TableDamagedError(f"the schema in the log of {url} is damaged: {error.message}", url=url) from error


@dataclass(frozen=True, slots=True)
class State:
    """The domain ``lakemerge.state``, which every version has."""

    merger_epoch: int = 0
    """Raised when the merger or its options change."""
    layout_epoch: int = 0
    """Raised when the bucket count changes."""
    schema_epoch: int = 0
    """Raised when the schema changes."""
    next_ordinal: int = 0
    """The first file ordinal (``_lm_file``) nobody has reserved."""
    fence_begin_version: int = 0
    """Transactions begun below this version cannot commit any more (set by vacuum)."""
    oldest_version: int = 0
    """Versions below this one cannot be read any more, savepoints aside (set by vacuum)."""
    restore_epoch: int = 0
    """Raised when an earlier version is restored."""

    def domain(self) -> DomainMetadata:
        body = {
            "formatVersion": FORMAT_VERSION,
            "mergerEpoch": self.merger_epoch,
            "layoutEpoch": self.layout_epoch,
            "schemaEpoch": self.schema_epoch,
            "nextOrdinal": self.next_ordinal,
            "fenceBeginVersion": self.fence_begin_version,
            "oldestVersion": self.oldest_version,
            "restoreEpoch": self.restore_epoch,
        }
        return DomainMetadata(STATE_DOMAIN, _text(body), False)

    def reserving(self, ordinals: int) -> State:
        return replace(self, next_ordinal=self.next_ordinal + ordinals)

    @staticmethod
    def of(snapshot: Snapshot) -> State:
        domain = snapshot.domains.get(STATE_DOMAIN)
        if domain is None:
            raise TableDamagedError(
                f"version {snapshot.version} has no domain {STATE_DOMAIN!r}, which every version of a LakeMerge table "
                "has: a commit of something else removed it. Versions before that commit can still be opened.",
                version=snapshot.version,
            )
        try:
            body = orjson.loads(domain.configuration)
            if body["formatVersion"] != FORMAT_VERSION:
                raise UnsupportedFeatureError(
                    f"state format version {body['formatVersion']} is not understood; install a newer lakemerge"
                )
            return State(
                merger_epoch=whole_number(body["mergerEpoch"]),
                layout_epoch=whole_number(body["layoutEpoch"]),
                schema_epoch=whole_number(body["schemaEpoch"]),
                next_ordinal=whole_number(body["nextOrdinal"]),
                fence_begin_version=whole_number(body["fenceBeginVersion"]),
                oldest_version=whole_number(body.get("oldestVersion", 0)),
                restore_epoch=whole_number(body.get("restoreEpoch", 0)),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"domain {STATE_DOMAIN!r} is damaged: {error!r}") from error


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def whole_number(value: object, *, below: int = 2**63) -> int:
    """A number that was stored; raises ``ValueError`` where it is not whole, negative or not ``below`` so much."""
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(f"a number must be whole, not negative and below {below}, not {value!r}")
    return value


def bucket_count(value: object) -> int:
    """A bucket count that was stored; raises ``ValueError`` where it is no power of two that a table may have."""
    if type(value) is not int or not 1 <= value <= MAX_BUCKETS or value & (value - 1):
        raise ValueError(f"a bucket count must be a power of two from 1 to {MAX_BUCKETS}, not {value!r}")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(str(name) for name in orjson.loads(text))
