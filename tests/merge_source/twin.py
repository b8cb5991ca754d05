"""A source and the plain-Python model side by side: the same changes, the same runs, the same output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.merge_source.histories import numbered
from tests.merge_source.model import Model
from tests.merge_source.world import Entity, World

__all__ = ["Twin"]


class Twin:
    """Tables ``A``, ``B`` and so on, by schema; a change goes to the product and to the model."""

    def __init__(self, folder: Path, config: Mapping[str, Any], **schemas: str) -> None:
        self.world = World(folder)
        self.model = Model()
        self.config: dict[str, Any] = {"type": "merge", "version": 2, "initial_datasets": [], **config}
        self.tables: dict[str, str] = {}
        for name, schema in schemas.items():
            self.add(name, schema)

    def add(self, name: str, schema: str) -> None:
        self.world.create(name, f"_id STRING NOT NULL, {schema}, _deleted BOOLEAN")
        self.tables[name] = name

    def put(self, name: str, *rows: Entity) -> None:
        self.world.put(name, rows)
        for row in rows:
            self.model.put(name, row)

    def delete(self, name: str, *keys: str) -> None:
        self.world.apply(name, [{"delete": key} for key in keys])
        for key in keys:
            self.model.delete(name, key)

    def run(self, *, full: bool = False, **changes: Any) -> list[str]:
        """One run, which both must agree on; the ids that it emitted, with ``-`` before those that no longer apply
        and are deleted, and ``>`` before those that are replaced.

        :param changes: of the configuration, from this run on.
        """
        self.config |= changes
        expected = self.model.run(self.config, self.tables, full=full)
        emitted = self.world.run(self.config, full=full)
        assert numbered(emitted) == numbered(expected)
        assert self.world.source is not None
        assert numbered(self.world.source.entities()) == numbered(self.model.state)
        assert self.world.source.check().findings == ()
        return [_mark(entity) + entity["_id"] for entity in emitted]


def _mark(entity: Entity) -> str:
    return ">" if entity.get("$replaced") else "-" if entity.get("_deleted") else ""
