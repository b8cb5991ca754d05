"""Presets for change data capture: configurations of the other mergers, each with an id of its own.

Source: docs/merge-semantics.md, section 5, "Change-capture presets".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.commit_time import CommitTime
from mergers.builtin.delete_when import DeleteWhen
from mergers.builtin.event_time import EventTime
from mergers.builtin.options import OptionReader
from mergers.builtin.overlay import Overlay
from mergers.builtin.partial_update import PartialUpdate
from mergers.builtin.renaming import by_column, renamed
from mergers.builtin.unset import Unset, is_marker, marker_of
from mergers.contract import Bools, Groups, Ints, Kinds, Merged, Merger, RowKind, TableShape
from mergers.errors import RecordRefusedError
from mergers.laws import Laws
from mergers.option_fields import REQUIRED
from mergers.ordering import order_codes
from mergers.traits import Traits

__all__ = ["AwsDms", "DebeziumMysql", "DebeziumPostgres", "OverwriteNonDefaults"]

_UNAVAILABLE = "__debezium_unavailable_value"


def _op_column(reader: OptionReader) -> str:
    column = reader.text("op_column")
    if column is None:
        reader.problems.append("op_column, the column that holds the operation, is required")
        return ""
    if reader.is_column(column, "op_column") and not pa.types.is_string(reader.shape.schema.field(column).type):
        reader.problems.append(f"op_column {column!r} must be a string column")
    return column


@dataclass(frozen=True, slots=True)
class _Capture(Merger):
    """The common base of presets with an operation column."""

    op_column: str = ""

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        return {"op_column": REQUIRED}

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return renamed(options, names, {"op_column": lambda column, changed: changed.get(column, column)})

    def options(self) -> Mapping[str, object]:
        return {"op_column": self.op_column}

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return frozenset((*columns, self.op_column))

    def traits(self, shape: TableShape) -> Traits:
        return Traits(lone_upsert_is_row=True, only_picks=True)

    def delete_marks(self, shape: TableShape) -> Mapping[str, pa.Array]:
        return {self.op_column: self.delete_when.array(shape)}

    @property
    def delete_when(self) -> DeleteWhen:
        return DeleteWhen(self.op_column, ("d",))

    def combine(self, groups: Groups) -> Bools:
        return self._overlay(groups).combine()

    def merge_groups(self, groups: Groups) -> Merged:
        return self._overlay(groups).fold()

    def _overlay(self, groups: Groups) -> Overlay:
        deletes = groups.kinds == RowKind.DELETE
        return Overlay(
            groups,
            codes=self._codes(groups),
            deletes=deletes | self.delete_when.matches(groups),
            resets=deletes & ~groups.has_ordering,
            unset=self._unset(groups),
        )

    def _codes(self, groups: Groups) -> Ints:
        return order_codes([groups.column(name) for name in groups.shape.ordering])

    def _unset(self, groups: Groups) -> Mapping[str, Bools]:
        return {}


@dataclass(frozen=True, slots=True)
class DebeziumMysql(_Capture):
    """``event-time`` on (binlog file, position); operation ``d`` deletes."""

    id = "4962883a-33d3-4a9c-9eff-cc0b25ec8da5"
    name = "debezium-mysql"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        column = _op_column(reader)
        kinds = [shape.schema.field(name).type for name in shape.ordering]
        if len(kinds) != 2 or not pa.types.is_string(kinds[0]) or not pa.types.is_integer(kinds[1]):
            reader.problems.append(
                "ordering must name two columns, the binlog file (a string) and the position in it (an integer), not "
                f"{list(shape.ordering)}"
            )
        reader.finish()
        return cls(column)

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return EventTime().laws(shape, full_frames=full_frames)

    def traits(self, shape: TableShape) -> Traits:
        """A bulk load would not look at the file names."""
        return replace(_Capture.traits(self, shape), lone_upsert_is_row=False)

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:
        file = shape.ordering[0]
        if file not in rows.schema.names:
            return
        files = rows.column(file)
        bad = pc.and_(files.is_valid(), _file_number(files).is_null())
        if pc.any(bad).as_py():
            raise RecordRefusedError(
                f"column {file!r} holds {files.filter(bad)[0].as_py()!r}, which has no file number: a binlog file "
                "ends in digits, after its last dot if it has one",
                column=file,
            )

    def _codes(self, groups: Groups) -> Ints:
        file, position = (groups.column(name) for name in groups.shape.ordering)
        digits = _file_number(file)
        # Without leading zeros, the number with more digits is the higher one, however many they are.
        return order_codes([pc.utf8_length(digits), digits, position])


def _file_number(files: pa.Array) -> pa.Array:
    """The digits after the last dot, without leading zeros; null where there are none."""
    found = pc.struct_field(pc.extract_regex(files, r"(?:^|\.)(?P<digits>[0-9]+)$"), "digits")
    return pc.utf8_ltrim(found, "0")


@dataclass(frozen=True, slots=True)
class DebeziumPostgres(_Capture):
    """``event-time`` on the LSN; operation ``d`` deletes, and Debezium's marker for a value that it
    did not get counts as unset."""

    id = "a4b5a0f1-0de3-49d0-a6f2-4c222823594b"
    name = "debezium-postgres"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        column = _op_column(reader)
        kinds = [shape.schema.field(name).type for name in shape.ordering]
        if len(kinds) != 1 or not (pa.types.is_integer(kinds[0]) or pa.types.is_decimal(kinds[0])):
            reader.problems.append(
                f"ordering must name one column, the LSN as a number, not {list(shape.ordering)}; a text such as "
                "'16/B374D848' does not compare as one"
            )
        Unset("marker", marker=_UNAVAILABLE).require_nullable(reader, shape.values)
        reader.finish()
        return cls(column)

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        """The laws. A frame of all columns counts as partial, because a column may hold the marker."""
        marked = any(marker_of(_UNAVAILABLE, shape.schema.field(n).type) for n in shape.values if n != self.op_column)
        return EventTime().laws(shape, full_frames=full_frames and not marked)

    def bulk_load_vetoes(self, shape: TableShape) -> Mapping[str, pa.Array]:
        marked = {name: marker_of(_UNAVAILABLE, shape.schema.field(name).type) for name in shape.values}
        operations = pa.array(["d", _UNAVAILABLE], type=shape.schema.field(self.op_column).type)
        return {name: value for name, value in marked.items() if value is not None} | {self.op_column: operations}

    def _unset(self, groups: Groups) -> Mapping[str, Bools]:
        marked = {}
        for name in groups.rows.column_names:
            if (
                name in groups.shape.values
                and marker_of(_UNAVAILABLE, groups.shape.schema.field(name).type) is not None
            ):
                mask = is_marker(groups.column(name), _UNAVAILABLE) & ~groups.stored
                if mask.any():
                    marked[name] = mask
        return marked


@dataclass(frozen=True, slots=True)
class AwsDms(_Capture):
    """``commit-time``; operation ``D`` deletes. Ordering columns are data."""

    id = "908c97eb-a602-43df-b8be-29892d65fbcb"
    name = "aws-dms"

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        column = _op_column(reader)
        reader.finish()
        return cls(column)

    @property
    def delete_when(self) -> DeleteWhen:
        return DeleteWhen(self.op_column, ("D",))

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return self._merger.laws(shape, full_frames=full_frames)

    def traits(self, shape: TableShape) -> Traits:
        return replace(_Capture.traits(self, shape), uses_ordering=False)

    def combine(self, groups: Groups) -> Bools:
        return self._merger.combine(groups)

    def merge_groups(self, groups: Groups) -> Merged:
        return self._merger.merge_groups(groups)

    @property
    def _merger(self) -> CommitTime:
        return CommitTime(self.delete_when)


@dataclass(frozen=True, slots=True)
class OverwriteNonDefaults(Merger):
    """``partial-update`` with ``unset="default"`` and without ordering."""

    id = "2165fa92-ae80-44ad-bbc0-d9f5fb16194e"
    name = "overwrite-non-defaults"

    defaults: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        return renamed(options, names, {"defaults": by_column})

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        reader = OptionReader(cls, options, shape)
        if shape.ordering:
            reader.problems.append('it has no ordering; with one, use partial-update with unset="default"')
        defaults = Unset.parse_defaults(reader, reader.mapping("defaults"))
        reader.finish()
        return cls(defaults)

    def options(self) -> Mapping[str, object]:
        given = Unset("default", self.defaults).options()
        return {name: value for name, value in given.items() if name == "defaults"}

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        return self._merger.laws(shape, full_frames=full_frames)

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        return self._merger.needs(shape, columns)

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        refused = sorted(kind.symbol for kind in kinds & {RowKind.DELETE, RowKind.UPDATE_BEFORE})
        if refused:
            raise RecordRefusedError(
                f"overwrite-non-defaults takes no deletes or retractions, and the frame has {', '.join(refused)}; "
                'where they come, use partial-update with unset="default"',
                kinds=tuple(refused),
            )

    def traits(self, shape: TableShape) -> Traits:
        return Traits(lone_upsert_is_row=True)

    def merge_groups(self, groups: Groups) -> Merged:
        return self._merger.merge_groups(groups)

    @property
    def _merger(self) -> PartialUpdate:
        return PartialUpdate(Unset("default", self.defaults))
