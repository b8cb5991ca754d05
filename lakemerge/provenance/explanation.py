"""The result of :meth:`lakemerge.LakeTable.explain`."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakemerge.provenance.verdicts import shown_value
from lakemerge.python_values import decimal_text
from lakemerge.results.display import definition_html, table_html
from mergers.wording import printable

__all__ = ["Explanation", "Step"]

_Row = Mapping[str, Any]

_SCHEMA = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("file", pa.string()),
        ("row_index", pa.int64()),
        ("kind", pa.string()),
        ("ordering", pa.string()),
        ("values", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("verdict", pa.string()),
        ("words", pa.string()),
        ("source", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One record of the key, or an expiry between its records."""

    version: int
    """The version that committed the record."""
    timestamp_ms: int | None = None
    """The time of the commit, UTC epoch milliseconds; ``None`` if the commit was cleaned up."""
    file: str = ""
    """Path of the file that holds the record."""
    row_index: int | None = None
    """Its position in the file, counted from 0; ``None`` for a row of a first load, and for an expiry."""
    kind: str | None = None
    """``+I``, ``+U``, ``-U`` or ``-D``; ``None`` for an expiry."""
    ordering: tuple[Any, ...] | None = None
    """The record's values of the ordering columns, if it has them and they decide."""
    values: _Row = field(default_factory=dict)
    """The columns that the record sets."""
    before: _Row | None = None
    """The row before; ``None`` if there was none."""
    after: _Row | None = None
    verdict: str = ""
    """``applied``, ``ignored``, ``unchanged``, ``deleted``, ``retracted``, ``folded`` or ``expired``."""
    words: str = ""
    """The verdict as a sentence."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where the record came from; see ``docs/guides/provenance.md``."""

    @property
    def timestamp(self) -> dt.datetime | None:
        """The time of the commit; ``None`` where the commit was cleaned up."""
        return None if self.timestamp_ms is None else dt.datetime.fromtimestamp(self.timestamp_ms / 1000, dt.UTC)

    @property
    def origin(self) -> str:
        """``source`` in a few words."""
        return _origin(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Every known record of a key, and what it did to the row."""

    key: _Row
    version: int
    """The version of the table that this explains."""
    begins: int
    """The version from which on the key's records are known."""
    steps: tuple[Step, ...] = ()
    start: _Row | None = None
    """The row before the first step."""
    row: _Row | None = None
    """The row after the last step: what :meth:`lakemerge.LakeTable.get` gives."""
    failed: str | None = None
    """Why the last records cannot be merged, if they cannot. There is no row then, and reads of the key fail."""
    notes: tuple[str, ...] = ()
    """Sentences that say where the known history ends, and why."""

    def to_arrow(self) -> pa.Table:
        """A row for each step. Rows and sources are JSON texts, because their columns differ from table to table."""
        rows = [
            {
                "version": step.version,
                "timestamp": step.timestamp,
                "file": step.file or None,
                "row_index": step.row_index,
                "kind": step.kind,
                "ordering": _json(None if step.ordering is None else list(step.ordering)),
                "values": _json(step.values),
                "before": _json(step.before),
                "after": _json(step.after),
                "verdict": step.verdict,
                "words": step.words,
                "source": _json(step.source),
            }
            for step in self.steps
        ]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)

    def __repr__(self) -> str:
        lines = [f"{_shown(self.key)} at version {self.version}, records known from version {self.begins} on"]
        if self.start is not None:
            lines.append(f"  begins as {_shown(self.start)}")
        for step in self.steps:
            kind = "  " if step.kind is None else step.kind
            origin = f"  [{step.origin}]" if step.origin else ""
            lines.append(f"  {step.version:>6}  {_time(step)}  {kind}  {step.words}{origin}")
        lines.append(f"  {self._outcome}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(map(printable, lines))

    @property
    def _outcome(self) -> str:
        if self.failed is not None:
            return f"cannot be read: {self.failed}"
        return f"is {'no row' if self.row is None else _shown(self.row)}"

    def _repr_html_(self) -> str:
        rows = [
            (step.version, _time(step), step.kind or "", step.words, step.origin, _shown(step.after) or "no row")
            for step in self.steps
        ]
        facts = [("key", _shown(self.key)), ("records known from version", str(self.begins))]
        facts += [("begins as", _shown(self.start))] if self.start is not None else []
        facts += [("row", self._outcome)]
        facts += [("note", note) for note in self.notes]
        names = ("version", "time (UTC)", "kind", "what it did", "from", "row after")
        return definition_html(facts) + table_html(names, rows)


_MOST_FILES = 3
"""More files of a window are only counted."""


def _origin(told: Mapping[str, Any]) -> str:
    parts = [f"job {told['job']}, window {told['window']}"] if "job" in told else []
    if "replayed" in told:
        before = told["replayed"]
        parts.append(f"version {before.get('version')} of {before.get('table', 'another table')}")
        parts += [f"there by {words}"] if (words := _origin(before)) else []
    elif "application" in told:
        parts.append(f"{told['application']} {told['number']}")
    files = told.get("files", ())
    parts += [file if isinstance(file, str) else f"{file['path']} at {file['offset']}" for file in files[:_MOST_FILES]]
    parts += [f"and {len(files) - _MOST_FILES} more"] if len(files) > _MOST_FILES else []
    parts += [f"{name} {value}" for name, value in told.get("info", {}).items()]
    parts += [str(told["note"])] if "note" in told else []
    return ", ".join(parts) or str(told.get("operation", "")).lower()


def _time(step: Step) -> str:
    return "" if step.timestamp is None else f"{step.timestamp:%Y-%m-%d %H:%M:%S}"


def _shown(row: _Row | None) -> str:
    return "" if row is None else ", ".join(f"{name} {shown_value(value)}" for name, value in row.items())


def _json(value: object) -> str | None:
    """A value as JSON text. Types that JSON lacks are written as Python writes them."""
    if value is None:
        return None
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> object:
    if isinstance(value, decimal.Decimal):
        return decimal_text(value)
    return value.hex() if isinstance(value, bytes) else str(value)
