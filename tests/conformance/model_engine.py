"""The plain-Python model as an engine of the conformance runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from tests.conformance.model_mergers import ALL_MERGERS
from tests.conformance.runner import Compaction, Filter, TableCase
from tests.conformance.values import arrow_schema
from tests.model import Merger, Misconfigured, ModelTable, Refused, Unreadable

__all__ = ["ModelEngine", "ModelHandle"]


class ModelEngine:
    """Folds every record; buckets, batches and compactions mean nothing to it."""

    errors: tuple[type[Exception], ...] = (Misconfigured, Refused, Unreadable)

    def __init__(self, mergers: Mapping[str, type[Merger]] = ALL_MERGERS) -> None:
        self._mergers = mergers

    def create(self, table: TableCase, *, buckets: int, spread: bool) -> ModelHandle:
        return ModelHandle(
            ModelTable(
                table.schema,
                key=table.key,
                ordering=table.ordering,
                merger=table.merger,
                options=table.options,
                mergers=self._mergers,
                partition_by=table.partition_by,
            )
        )


class ModelHandle:
    def __init__(self, model: ModelTable) -> None:
        self.model = model

    def write(self, frame: pa.Table, *, kind_column: str | None, spread: bool) -> int:
        given = frame.column(kind_column).to_pylist() if kind_column else ["+U"] * frame.num_rows
        kinds = [str(kind) for kind in given]
        data = frame.drop_columns([kind_column]) if kind_column else frame
        return self.model.write(data.column_names, data.to_pylist(), kinds)

    def delete(self, frame: pa.Table) -> int:
        return self.model.write(frame.column_names, frame.to_pylist(), ["-D"] * frame.num_rows)

    def update(self, values: Mapping[str, Any], where: Filter | None) -> int:
        found = self._rows(where)
        return self.model.transact({self.model.key_of(row): {**row, **values} for row in found})

    def delete_where(self, where: Filter | None) -> int:
        return self.model.transact({self.model.key_of(row): None for row in self._rows(where)})

    def merge(self, source: pa.Table, matched: str | None, *, insert: bool) -> int:
        there = {self.model.key_of(row): row for row in self.model.rows()}
        states: dict[tuple[Any, ...], dict[str, Any] | None] = {}
        for row in source.to_pylist():
            key = self.model.key_of(row)
            if key in there and matched == "delete":
                states[key] = None
            elif key in there and matched == "update":
                states[key] = {**there[key], **row}
            elif key not in there and insert:
                states[key] = {name: row.get(name) for name in self.model.schema.names}
        return self.model.transact(states)

    def overwrite(self, frame: pa.Table, where: Filter | None, *, dynamic: bool, spread: bool) -> int:
        rows = frame.to_pylist()
        covers = None if where is None else (lambda row: where.keeps(row[where.column]))
        return self.model.overwrite(frame.column_names, rows, covers=covers, dynamic=dynamic)

    def _rows(self, where: Filter | None) -> list[dict[str, Any]]:
        return [row for row in self.model.rows() if where is None or where.keeps(row[where.column])]

    def add_columns(self, ddl: str) -> None:
        self.model.add_columns(list(arrow_schema(ddl)))

    def compact(self, kind: Compaction) -> None:
        """Changes no answer."""

    def reopen(self) -> None:
        """Holds nothing but the model."""

    def version(self) -> int:
        return self.model.version

    def read(
        self,
        *,
        version: int | None = None,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        form: Literal["sql", "expression"] = "sql",
    ) -> pa.Table:
        schema = self.model.schema_at(self.model.version if version is None else version)
        rows = [r for r in self.model.rows(version) if filter is None or filter.keeps(r[filter.column])]
        fields = [pa.field(f.name, f.type) for f in schema]
        table = pa.Table.from_pylist(rows, schema=pa.schema(fields))
        return table.select(list(columns)) if columns is not None else table
