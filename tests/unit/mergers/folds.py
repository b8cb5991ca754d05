"""Folding records written as tuples, for tests of single mergers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from mergers import Frame, Merger, RowKind, TableShape, default_registry, fold
from mergers.kernel import overlay_rows, tombstone_schema

__all__ = ["build", "fold_frames", "problems_of", "shape_of"]

Rows = Sequence[tuple[Any, ...]]


def shape_of(fields: Mapping[str, pa.DataType], *, ordering: Sequence[str] = ()) -> TableShape:
    """The key is the column ``k``, an integer that is not among ``fields``."""
    schema = pa.schema([pa.field("k", pa.int32(), nullable=False), *(pa.field(n, t) for n, t in fields.items())])
    return TableShape(schema, ("k",), tuple(ordering))


def build(name: str, options: Mapping[str, Any], shape: TableShape) -> Merger:
    return default_registry().resolve(name).from_options(dict(options), shape)


def problems_of(error: object) -> tuple[str, ...]:
    """Every problem that a configuration error lists."""
    return tuple(getattr(error, "problems"))  # noqa: B009 - facts are no typed attributes


def fold_frames(
    merger: Merger, shape: TableShape, *commits: Rows, columns: Sequence[str] | None = None, compact: bool = False
) -> list[tuple[Any, ...]]:
    """The rows after these commits of (kind, key, value, ...), sorted by key. ``compact``: after each."""
    shape = replace(shape, remembers=merger.remembers(shape))
    names = list(columns or shape.schema.names)
    nullable = pa.schema([field.with_nullable(True) for field in shape.schema])
    base, tombstones, frames = nullable.empty_table(), tombstone_schema(shape).empty_table(), list[Frame]()
    for version, rows in enumerate(commits):
        arrays = [pa.array([row[i + 1] for row in rows], nullable.field(name).type) for i, name in enumerate(names)]
        kinds = np.array([_KINDS[row[0]] for row in rows], dtype=np.int8)
        frames.append(Frame(pa.table(arrays, names=names), kinds, version))
        if compact or version == len(commits) - 1:
            args: dict[str, Any] = {"base": base, "tombstones": tombstones, "frames": frames}
            folded = fold(merger, shape, **args, columns=shape.schema.names)
            base, tombstones = overlay_rows(base, folded, shape.schema.names, sort=True), folded.tombstones
            frames = []
    return [tuple(row.values()) for row in base.to_pylist()]


_KINDS = {kind.symbol: int(kind) for kind in RowKind}
