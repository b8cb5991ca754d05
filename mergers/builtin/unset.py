"""Which values of ``partial-update`` count as unset: the options ``unset``, ``defaults`` and ``marker``."""

from __future__ import annotations

import decimal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.functions.equal import equality_codes
from mergers.builtin.history import carried
from mergers.builtin.options import OptionReader
from mergers.builtin.values import frozen, thawed, typed_array
from mergers.contract import Bools, Groups, TableShape
from mergers.type_names import type_name

__all__ = ["Unset", "is_marker", "marker_of"]

_MODES = ("null", "absent", "default", "marker")


def marker_of(marker: str, kind: pa.DataType) -> pa.Array | None:
    """The marker as a value of a string or binary column; ``None`` for any other column."""
    if pa.types.is_string(kind):
        return pa.array([marker], type=kind)
    return pa.array([marker.encode()], type=kind) if pa.types.is_binary(kind) else None


def is_marker(values: pa.Array, marker: str) -> Bools:
    """Which values are the marker."""
    value = marker_of(marker, values.type)
    if value is None:
        return np.zeros(len(values), dtype=np.bool_)
    return pc.is_in(values, value_set=value).to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True)
class Unset:
    """``mode`` is one of ``null``, ``absent``, ``default`` and ``marker``."""

    known: ClassVar[Mapping[str, object]] = {"unset": "null", "defaults": {}, "marker": None}
    """The options, with their defaults."""

    mode: str = "null"
    defaults: Mapping[str, object] = field(default_factory=dict)
    marker: str | None = None

    @classmethod
    def parse(cls, reader: OptionReader) -> Self:
        mode, defaults, marker = reader.text("unset") or "null", reader.mapping("defaults"), reader.text("marker")
        if mode not in _MODES:
            reader.problems.append(f"unset must be one of {', '.join(_MODES)}, not {mode!r}")
        if "defaults" in reader.options and mode != "default":
            reader.problems.append('defaults need unset="default"')
        if marker is not None and mode != "marker":
            reader.problems.append('marker needs unset="marker"')
        if marker is None and mode == "marker":
            reader.problems.append('unset="marker" needs the option marker')
        return cls(mode, cls.parse_defaults(reader, defaults), marker)

    @staticmethod
    def parse_defaults(reader: OptionReader, defaults: Mapping[str, object]) -> Mapping[str, object]:
        for column, value in defaults.items():
            if not reader.is_column(column, "defaults"):
                continue
            if column in reader.shape.key:
                reader.problems.append(f"defaults names the key column {column!r}, which is always set")
                continue
            kind = reader.shape.schema.field(column).type
            try:
                if value is not None:
                    typed_array(value, kind)
            except (pa.ArrowException, TypeError, ValueError, decimal.DecimalException) as error:
                reader.problems.append(f"the default of column {column!r} is no {type_name(kind)}: {error}")
        return {column: frozen(value) for column, value in defaults.items()}

    def options(self) -> Mapping[str, object]:
        given: dict[str, object] = {} if self.mode == "null" else {"unset": self.mode}
        if self.defaults:
            given["defaults"] = {column: thawed(value) for column, value in self.defaults.items()}
        if self.marker is not None:
            given["marker"] = self.marker
        return given

    @property
    def has_defaults(self) -> bool:
        return self.mode == "default"

    def vetoes(self, shape: TableShape) -> Mapping[str, pa.Array]:
        """The values that a new row does not take over."""
        if self.marker is None:
            return {}
        marked = {name: marker_of(self.marker, shape.schema.field(name).type) for name in shape.values}
        return {name: value for name, value in marked.items() if value is not None}

    def require_nullable(self, reader: OptionReader, columns: Collection[str]) -> None:
        """Note which of ``columns`` a marker may leave null: in a new row it gives no value."""
        marked = [name for name in self.vetoes(reader.shape) if name in columns]
        reader.nullable(marked, f"the marker {self.marker!r} leaves null in it where the row is new")

    def sets(self, groups: Groups, name: str, *, nulls: bool = False) -> Bools:
        """Which records set the column. A stored row sets all its columns.

        ``nulls``: whether null counts as a value even if it is unset elsewhere (within a sequence group).
        """
        there = carried(groups, name)
        values = groups.column(name)
        if self.mode == "null" and not nulls and values.null_count:
            there = there & (values.is_valid().to_numpy(zero_copy_only=False) | groups.stored)
        elif self.mode == "marker" and self.marker is not None:
            there = there & (~is_marker(values, self.marker) | groups.stored)
        elif self.mode == "default":
            there = there & (~self._is_default(values, name) | groups.stored)
        return there

    def empty(self, groups: Groups, name: str) -> Bools:
        """Values that an older record may fill: null, and the default."""
        values = groups.column(name)
        empty: Bools = values.is_null().to_numpy(zero_copy_only=False)
        return empty | self._is_default(values, name) if self.mode == "default" else empty

    def _is_default(self, values: pa.Array, name: str) -> Bools:
        default = self.defaults.get(name)
        if default is None:
            return np.asarray(values.is_null().to_numpy(zero_copy_only=False))
        wanted = typed_array(default, values.type)
        if not pa.types.is_nested(values.type) and not pa.types.is_floating(values.type):
            return pc.is_in(values, value_set=wanted).to_numpy(zero_copy_only=False)
        # Arrow cannot compare nested values, and it distinguishes 0.0 and -0.0.
        codes = equality_codes(pa.concat_arrays([wanted, values]))
        return np.asarray(codes[1:] == codes[0])
