"""What a table's metadata says about merging, and the permanent state domain.

Source: docs/table-format.md, sections 1 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
import pyarrow as pa

from lakemerge.delta import Metadata
from lakemerge.errors import NotATableError, SchemaError, TableDamagedError, UnsupportedFeatureError
from lakemerge.format.bounds import skipping_property
from lakemerge.format.names import DROPPED, FORMAT_VERSION, MAX_BUCKETS
from lakemerge.format.values import bucket_count
from lakemerge.schema.names import ColumnNames
from lakemerge.schema.schema import UnknownTypeError, from_delta_json, to_delta_json
from lakemerge.schema.widening import check_type_changes
from mergers import Merger, MergerRegistry, TableShape
from mergers.wording import argument, in_python

__all__ = ["CONSTRAINT_PREFIX", "MERGER_OPTIONS", "REMEMBERED", "TableConfig", "bucket_problems"]


_PREFIX = "lakemerge."
CONSTRAINT_PREFIX: Final = "delta.constraints."
"""Delta's own properties: a constraint's name follows, and its condition is the value."""
MERGER_OPTIONS: Final = "lakemerge.merger.options"
"""The property with the options of the merger, as JSON."""
REMEMBERED: Final = "lakemerge.tombstoneColumns"
"""The property that names what tombstones remember beside the ordering. It is there only if they do."""


@dataclass(frozen=True, slots=True)
class TableConfig:
    """The merging part of ``metaData.configuration``, with the schema it applies to."""

    schema: pa.Schema
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    partition_by: tuple[str, ...]
    buckets: int | None
    """The bucket count; ``None`` until the first write has chosen it."""
    merger_id: str
    merger_name: str
    merger_options: Mapping[str, object]
    remembers: tuple[str, ...] = ()
    """The columns that tombstones have beside key and ordering. The merger chose them."""
    names: ColumnNames = field(default_factory=ColumnNames)
    """The names that the columns have in files. All other members have the names that people use."""

    constraints: Mapping[str, str] = field(default_factory=dict)
    """Name -> condition in SQL that every row meets."""

    @property
    def shape(self) -> TableShape:
        return TableShape(self.schema, self.key, self.ordering, self.remembers)

    @property
    def stored_partition_by(self) -> tuple[str, ...]:
        """The partition columns as ``partitionValues`` names them."""
        return self.names.all_of(self.partition_by)

    @property
    def key_fields(self) -> list[pa.Field]:
        """The key columns as files have them."""
        return [self.names.field(self.schema.field(name)) for name in self.key]

    @property
    def schema_string(self) -> str:
        """The schema as Delta's JSON."""
        return to_delta_json(self.names.noted(self.schema))

    def with_schema(self, schema: pa.Schema) -> TableConfig:
        """The same table with more columns, or changed ones."""
        return replace(self, schema=schema, names=self.names.extended(schema))

    def merged_by(self, merger: Merger) -> TableConfig:
        """The same table with another merger, or with other options."""
        return replace(
            self,
            merger_id=merger.id,
            merger_name=merger.name,
            merger_options=merger.options(),
            remembers=merger.remembers(self.shape),
        )

    def merger(self, registry: MergerRegistry) -> Merger:
        """The table's merger, found by its strategy id. Raises an error if nobody registered it, or if its options are
        not valid."""
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
        if self.remembers:
            entries["tombstoneColumns"] = _text(list(self.remembers))
        if self.buckets is not None:
            entries["buckets"] = str(self.buckets)
        own = {_PREFIX + name: value for name, value in entries.items()}
        return own | skipping_property(self.schema, self.partition_by) | self.names.properties() | self._constrained()

    def _constrained(self) -> dict[str, str]:
        return {CONSTRAINT_PREFIX + name: text for name, text in self.constraints.items()}

    @staticmethod
    def of(metadata: Metadata, *, url: str) -> TableConfig:
        """Read a table's metadata; raises :class:`NotATableError` for a plain Delta table."""
        entries = {k.removeprefix(_PREFIX): v for k, v in metadata.configuration.items() if k.startswith(_PREFIX)}
        if "formatVersion" not in entries:
            raise NotATableError(
                f"{url} is a Delta table, but not a LakeMerge table; a conversion makes it one in place"
                + in_python(" (LakeTable.convert)"),
                url=url,
            )
        if metadata.configuration.get(DROPPED) == "true":
            raise NotATableError(
                f"the table at {url} was dropped, and some of its files are still there: drop it again to delete them",
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
            schema, names = ColumnNames.read(
                from_delta_json(metadata.schema_string), metadata.configuration, metadata.id
            )
            check_type_changes(schema)
            key, ordering = _names(entries["key"]), _names(entries["ordering"])
            remembers = _names(entries.get("tombstoneColumns", "[]"))
            if strange := {*key, *ordering, *remembers, *metadata.partition_columns}.difference(schema.names):
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
                remembers=remembers,
                names=names,
                constraints={
                    name.removeprefix(CONSTRAINT_PREFIX): text
                    for name, text in metadata.configuration.items()
                    if name.startswith(CONSTRAINT_PREFIX)
                },
            )
        except (KeyError, ValueError, TypeError) as error:
            raise TableDamagedError(f"the table properties of {url} are damaged: {error!r}", url=url) from error
        except UnknownTypeError as error:
            raise UnsupportedFeatureError(f"{url} needs a newer lakemerge: {error.message}", url=url) from error
        except SchemaError as error:
            raise TableDamagedError(f"the schema in the log of {url} is damaged: {error.message}", url=url) from error


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _names(text: str) -> tuple[str, ...]:
    return tuple(str(name) for name in orjson.loads(text))


def bucket_problems(buckets: Any) -> list[str]:
    """What is wrong with a bucket count, if anything."""
    whole = isinstance(buckets, int) and not isinstance(buckets, bool)
    if not whole or not 1 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        return [f"{argument('buckets')} must be a power of two from 1 to {MAX_BUCKETS}, not {buckets!r}"]
    return []
