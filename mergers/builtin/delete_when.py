"""The option ``delete_when``: an upsert with one of the given values in a column is a delete."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mergers.builtin.options import OptionReader
from mergers.builtin.values import typed_value
from mergers.contract import Bools, Groups, RowKind, TableShape
from mergers.type_names import type_name

__all__ = ["DeleteWhen"]


@dataclass(frozen=True, slots=True)
class DeleteWhen:
    """``{"column": c, "values": [...]}``. Values are exact; null and unset never match.

    In JSON, dates and timestamps are ISO strings, decimals strings, binary ``{"b64": ...}``.
    """

    column: str
    values: tuple[object, ...]

    @classmethod
    def parse(cls, reader: OptionReader) -> DeleteWhen | None:
        """``None`` if the option is not given."""
        option, shape, problems = reader.options.get("delete_when"), reader.shape, reader.problems
        if option is None:
            return None
        if not isinstance(option, Mapping) or set(option) != {"column", "values"}:
            problems.append('delete_when must be {"column": name, "values": [value, ...]}')
            return None
        column, values = option["column"], option["values"]
        if not reader.is_column(column, "delete_when"):
            return None
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            problems.append("delete_when needs a list of at least one value")
            return None
        parsed = cls(str(column), tuple(values))
        try:
            parsed.array(shape)
        except (pa.ArrowException, TypeError, ValueError, decimal.DecimalException) as error:
            kind = shape.schema.field(column).type
            problems.append(f"delete_when values do not fit column {column!r} ({type_name(kind)}): {error}")
            return None
        return parsed

    @staticmethod
    def renamed(option: Mapping[str, Any], names: Mapping[str, str]) -> object:
        """The option after columns got other names."""
        return {**option, "column": names.get(option["column"], option["column"])}

    def option(self) -> Mapping[str, object]:
        return {"column": self.column, "values": list(self.values)}

    def array(self, shape: TableShape) -> pa.Array:
        """The values, typed as the column."""
        kind = shape.schema.field(self.column).type
        if pa.types.is_nested(kind):
            raise TypeError("nested columns cannot mark deletes")
        values = [typed_value(value, kind) for value in self.values]
        if any(value is None for value in values):
            raise ValueError("null never matches")
        if pa.types.is_floating(kind) and 0.0 in values:
            values += [0.0, -0.0]  # Arrow tells them apart
        return pa.array(values, type=kind)

    def matches(self, groups: Groups) -> Bools:
        """Which records are upserts that delete. Stored rows never are."""
        found = pc.is_in(groups.column(self.column), value_set=self.array(groups.shape), skip_nulls=True)
        mask: Bools = found.to_numpy(zero_copy_only=False)
        upserts = (groups.kinds == RowKind.INSERT) | (groups.kinds == RowKind.UPDATE_AFTER)
        return np.asarray(mask & upserts & ~groups.stored)
