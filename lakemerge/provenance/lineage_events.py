"""The result of :meth:`lakemerge.LakeTable.lineage`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakemerge.results.display import definition_html, table_html
from mergers.wording import printable

__all__ = ["KINDS", "Lineage", "LineageEvent"]

KINDS = (
    "RECEIVE",
    "CREATE",
    "REPLAY",
    "SEND",
    "ADDINFO",
    "CHANGE",
    "JOIN",
    "FORK",
    "RESTORE",
    "EXPIRE",
    "DROP",
)
"""The kinds of events."""

_SCHEMA = pa.schema(
    [
        ("event", pa.string()),
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("operation", pa.string()),
        ("inputs", pa.list_(pa.string())),
        ("outputs", pa.list_(pa.string())),
        ("gone", pa.list_(pa.string())),
        ("words", pa.string()),
        ("details", pa.string()),
    ]
)
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LineageEvent:
    """One event in the life of the table's content."""

    kind: str
    """One of :data:`KINDS`."""
    version: int
    """The version of the commit that did it. Of a ``SEND`` to a consumer: the last version that went to it."""
    operation: str
    inputs: tuple[str, ...] = ()
    """Paths of files, names of ingest windows, or versions of other tables."""
    outputs: tuple[str, ...] = ()
    words: str = ""
    """The event as a sentence."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the commit says about itself."""
    timestamp_ms: int | None = None
    gone: frozenset[str] = frozenset()
    """The files among these that were vacuumed since."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files that it tells of."""
        return (*self.inputs, *self.outputs)

    def is_outside(self, path: str) -> bool:
        """Whether a path is not a file of the table, but a source file, a receiver or the name of a window."""
        return not path.startswith(("base/", "_lakemerge/", "lakemerge.log."))

    @property
    def timestamp(self) -> dt.datetime | None:
        """The time of the commit; ``None`` where the commit was cleaned up."""
        return None if self.timestamp_ms is None else dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Events in the order of their commits."""

    version: int
    begins: int
    """The oldest commit that the log still has."""
    key: Mapping[str, Any] | None
    events: tuple[LineageEvent, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[LineageEvent]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def to_arrow(self) -> pa.Table:
        """A row for each event, with details as JSON texts."""
        rows = [
            {
                "event": event.kind,
                "version": event.version,
                "timestamp": event.timestamp,
                "operation": event.operation,
                "inputs": list(event.inputs),
                "outputs": list(event.outputs),
                "gone": sorted(event.gone),
                "words": event.words,
                "details": orjson.dumps(dict(event.details), default=str).decode(),
            }
            for event in self.events
        ]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)

    def to_dot(self) -> str:
        """A graph in the language of Graphviz. Files and windows are boxes, events are ovals; files that are gone are
        dashed."""
        gone = {path for event in self.events for path in event.gone}
        paths = dict.fromkeys(path for event in self.events for path in event.paths)
        lines = ["digraph lineage {", "  rankdir=LR;", '  node [fontname="sans-serif", fontsize=10];']
        for path in paths:
            style = ", style=dashed" if path in gone else ""
            lines.append(f"  {_quoted(path)} [shape=box, label={_quoted(path.rpartition('/')[2])}{style}];")
        for number, event in enumerate(self.events):
            name = f"event{number}"
            lines.append(f"  {name} [shape=oval, label={_quoted(f'{event.kind} {event.version}')}];")
            lines += [f"  {_quoted(path)} -> {name};" for path in event.inputs]
            lines += [f"  {name} -> {_quoted(path)};" for path in event.outputs]
        return "\n".join([*lines, "}"])

    def __repr__(self) -> str:
        whose = f"version {self.version}" if self.key is None else f"{dict(self.key)} at version {self.version}"
        lines = [f"lineage of {whose}, commits known from version {self.begins} on"]
        lines += [f"  {event.version:>6}  {event.kind:<8} {event.words}{_files(event)}" for event in self.events]
        return "\n".join(map(printable, [*lines, *(f"  note: {note}" for note in self.notes)]))

    def _repr_html_(self) -> str:
        facts = [("version", str(self.version)), ("commits known from version", str(self.begins))]
        facts += [("key", str(dict(self.key)))] if self.key is not None else []
        facts += [("note", note) for note in self.notes]
        rows = [
            (
                event.version,
                "" if event.timestamp is None else f"{event.timestamp:%Y-%m-%d %H:%M:%S}",
                event.kind,
                event.words,
                _named(event.inputs, event.gone),
                _named(event.outputs, event.gone),
            )
            for event in self.events
        ]
        names = ("version", "time (UTC)", "event", "what happened", "of", "to")
        return definition_html(facts) + table_html(names, rows)


def _files(event: LineageEvent) -> str:
    parts = [f"of {_named(event.inputs, event.gone)}"] if event.inputs else []
    parts += [f"to {_named(event.outputs, event.gone)}"] if event.outputs else []
    return f" ({', '.join(parts)})" if parts else ""


def _named(paths: tuple[str, ...], gone: frozenset[str]) -> str:
    shown = [f"{path}{' (gone)' if path in gone else ''}" for path in paths[:_SHOWN]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{printable(escaped)}"'
