"""Paimon without Spark: pypaimon's primary-key tables, in an interpreter that has pypaimon."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.compare.engine import Place
from benchmarks.compare.on_arrow import OnArrow
from benchmarks.compare.queries import Bound
from benchmarks.compare.workload import WIDE, Frame

__all__ = ["Paimon"]

_KIND = "_kind"
"""Says of a row whether it is a delete; pypaimon takes that from a column of the table alone."""
_SIGNS = {"=": "equal", ">=": "greater_or_equal", "<": "less_than"}


class Paimon(OnArrow):
    cannot: Mapping[str, str] = {
        "compact": "pypaimon has no compaction; Paimon's Java engines do it",
        "merge": "pypaimon's upserts read nothing",
    }
    configuration: Mapping[str, str] = {
        "bucket": "4",
        "merge-engine": "deduplicate; for the wide table partial-update",
        "sequence.field": "the time column",
        "rowkind.field": _KIND,
    }

    def __init__(self) -> None:
        self._schemas: dict[Path, pa.Schema] = {}

    @property
    def versions(self) -> Mapping[str, str | None]:
        return {**super().versions, "pypaimon": importlib.metadata.version("pypaimon")}

    def load(self, place: Place, rows: Path) -> None:
        from pypaimon import Schema

        frame = pq.read_table(rows)
        fields = [field.with_nullable(field.name not in place.entity.key) for field in frame.schema]
        schema = pa.schema([*fields, pa.field(_KIND, pa.string())])
        options = {
            "bucket": "4",
            "merge-engine": "partial-update" if place.entity is WIDE else "deduplicate",
            "sequence.field": place.entity.ordering,
        }
        if place.entity is not WIDE:
            options["rowkind.field"] = _KIND
        definition = Schema.from_pyarrow_schema(schema, primary_keys=list(place.entity.key), options=options)
        self._catalog(place).create_table(_name(place), definition, False)
        self._schemas[place.path] = schema
        self._write(place, frame, "+I")

    def upsert(self, place: Place, frame: Frame) -> None:
        self._write(place, pq.read_table(frame.path), "+U")

    def delete(self, place: Place, frame: Frame) -> None:
        self._write(place, pq.read_table(frame.path), "-D")

    def update_columns(self, place: Place, frame: Frame, columns: tuple[str, ...]) -> None:
        """Columns that are not set are null, which this merge engine takes for unset."""
        rows = pq.read_table(frame.path)
        for field in self._schemas[place.path]:
            if field.name not in rows.column_names and field.name != _KIND:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        self._write(place, rows, "+U")

    def compact(self, place: Place) -> None:
        raise AssertionError(f"no case asks for it: {self.cannot['compact']}")

    def rows(self, place: Place, columns: Sequence[str], bounds: Sequence[Bound]) -> pa.Table:
        builder = self._table(place).new_read_builder().with_projection(list(columns or place.entity.names))
        if bounds:
            made = builder.new_predicate_builder()
            tests = [getattr(made, _SIGNS[sign])(name, value) for name, sign, value in bounds]
            builder = builder.with_filter(made.and_predicates(tests))
        return builder.new_read().to_arrow(builder.new_scan().plan().splits())

    def _write(self, place: Place, rows: pa.Table, kind: str) -> None:
        schema = self._schemas[place.path]
        sent = rows.append_column(_KIND, pa.repeat(pa.scalar(kind), rows.num_rows)).select(schema.names).cast(schema)
        builder = self._table(place).new_batch_write_builder()
        writer, commit = builder.new_write(), builder.new_commit()
        try:
            writer.write_arrow(sent)
            commit.commit(writer.prepare_commit())
        finally:
            writer.close()
            commit.close()

    def _table(self, place: Place) -> Any:
        return self._catalog(place).get_table(_name(place))

    @staticmethod
    @functools.cache
    def _catalog(place: Place) -> Any:
        from pypaimon import CatalogFactory

        catalog = CatalogFactory.create({"warehouse": str(place.path)})
        catalog.create_database("d", True)
        return catalog


def _name(place: Place) -> str:
    return f"d.{place.entity.name}"
