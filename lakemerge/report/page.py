"""The page itself: HTML with its style sheet and plots in it; it asks the network for nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lakemerge._internal.arguments import checked, shown
from lakemerge.delta import HistoryEntry
from lakemerge.errors import InputError, LakeMergeError
from lakemerge.format.operations import WRITING, Operation
from lakemerge.provenance.lineage_events import KINDS
from lakemerge.report.facts import due, failures, growth_of, reasons_of, replaced_by, service_of, windows_of, written_by
from lakemerge.report.svg import Bar, Mark, areas, bars, legend, marks
from lakemerge.results.display import counted, html_text, readable_bytes, table_html
from lakemerge.table.describe import BucketInfo
from mergers.wording import argument

if TYPE_CHECKING:
    from lakemerge.table.table import LakeTable

__all__ = ["STYLE", "report_html"]


_COSTLIEST: Final = 20
_RECENT: Final = 30
_NAMED: Final = 3
_LONGEST: Final = 60
_KINDS: Final = ("writes", "ingest", "compactions", "everything else")
_REWRITES: Final = (Operation.COMPACT, Operation.COMPACT_LOGS, Operation.RESCALE)


@checked
def report_html(table: LakeTable, *, key: Mapping[str, object] | None = None) -> str:
    """A self-contained page about the table as it is now.

    :param key: also explain this key, as far as history goes.
    """
    from lakemerge.table.table import LakeTable

    if not isinstance(table, LakeTable):
        raise InputError(f"{argument('table')} must be a LakeTable, not {shown(table)}")
    history = sorted(table.history(), key=lambda entry: entry.version)
    parts = [
        _section("State", _state(table)),
        _section("What maintenance would do now, and why", table_html(("service", "would do", "why"), due(table))),
        _section("Buckets by read amplification", _groups(table.buckets())),
        _section("Commits and their sizes", _commits(history)),
        _section("Growth", _growth(table, history)),
        _section("Compactions and their reasons", _compactions(history)),
        _section("Ingest windows and failures", _ingest(table, history)),
        _section("Where rows came from and went to", _lineage(table, None)),
        _section("Keys that cannot be merged", _failed(table)),
    ]
    if key is not None:
        found = table.explain(key, 0)
        parts.insert(1, _section(f"The row of {_pairs(key)}", found._repr_html_() + _lineage(table, key)))
    title = f"LakeMerge report: {table.url}"
    now = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
    head = f"<h1>{html_text(table.url)}</h1><p class='when'>version {table.version}, {now}</p>"
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html_text(title)}</title>"
        f"<style>{STYLE}</style></head>"
        f"<body><main>{head}{''.join(parts)}</main></body></html>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html_text(title)}</h2>{body}</section>"


def _state(table: LakeTable) -> str:
    detail = table.detail()
    file_slices = [
        ("rows in base files", f"{detail.base_rows:,}"),
        ("base files", f"{detail.base_files:,}, {readable_bytes(detail.base_bytes)}"),
        ("live logs", f"{detail.log_blocks:,} blocks, {readable_bytes(detail.log_bytes)}"),
        ("read amplification", f"{detail.read_amplification:.2f}"),
        ("buckets with live logs", f"{detail.dirty_buckets:,} of {detail.filled_buckets:,}"),
        ("merger", detail.merger),
        ("key", ", ".join(detail.key)),
        ("ordering", ", ".join(detail.ordering) or "commit order"),
        ("partitioned by", ", ".join(detail.partition_by) or "nothing"),
        ("buckets", "not chosen yet" if detail.buckets is None else f"{detail.buckets:,}"),
    ]
    cards = "".join(f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>" for name, value in file_slices)
    return f"<dl class='cards'>{cards}</dl>"


def _groups(slices: Sequence[BucketInfo]) -> str:
    if not slices:
        return "<p>The table has no files yet.</p>"
    costly = sorted(slices, key=lambda part: -part.read_amplification)[:_COSTLIEST]
    rows = []
    for part in costly:
        where = f"{_pairs(part.partition)}, " if part.partition else ""
        sizes = (part.base_bytes, part.winner_bytes, part.log_bytes)
        told = ", ".join(
            f"{readable_bytes(size)} {name}" for size, name in zip(sizes, ("base", "winners", "logs"), strict=True)
        )
        label = f"{where}bucket {part.bucket}"
        note = f"{part.read_amplification:.2f}x, {counted(part.log_blocks, 'log block')}"
        rows.append(Bar(label, tuple(map(float, sizes)), note, f"{label}: {told}"))
    more = len(slices) - len(costly)
    rest = f"<p>Not shown, because cheaper to read: {counted(more, 'bucket')}.</p>" if more else ""
    return legend(("base files", "winner files", "live logs")) + bars(rows) + rest


def _commits(history: Sequence[HistoryEntry]) -> str:
    points = [
        Mark(
            entry.timestamp_ms,
            float(written_by(entry)),
            _kind(entry),
            f"version {entry.version}, {entry.operation}, {_time(entry.timestamp_ms)}: "
            f"{readable_bytes(written_by(entry))}",
        )
        for entry in history
    ]
    rows = [
        (entry.version, _time(entry.timestamp_ms), entry.operation or "", _written(entry),
         entry.metrics.get("numSourceRows", ""))
        for entry in reversed(history[-_RECENT:])
    ]  # fmt: skip
    names = ("version", "time (UTC)", "operation", "written", "records")
    recent = _folded(f"The last {len(rows)} of {len(history)} commits", table_html(names, rows))
    return legend(_KINDS) + marks(points) + recent


def _growth(table: LakeTable, history: Sequence[HistoryEntry]) -> str:
    found = growth_of(table, history)
    return legend(("base files", "logs that are not compacted")) + areas(found.times_ms, (found.base, found.logs))


def _compactions(history: Sequence[HistoryEntry]) -> str:
    rows = [
        (
            entry.version,
            _time(entry.timestamp_ms),
            service_of(entry),
            reasons_of(entry),
            replaced_by(entry),
            _written(entry),
        )
        for entry in reversed(history)
        if entry.operation in _REWRITES
    ]
    if not rows:
        return "<p>The log has no compaction.</p>"
    shown = table_html(("version", "time (UTC)", "what", "why", "replaced", "written"), rows[:_RECENT])
    return shown + _more(len(rows))


def _ingest(table: LakeTable, history: Sequence[HistoryEntry]) -> str:
    windows = list(reversed(windows_of(history)))
    if not windows:
        return "<p>No job ingests into this table.</p>"
    rows = [
        (
            about.get("name", ""),
            about.get("window", ""),
            entry.version,
            _time(entry.timestamp_ms),
            about.get("files", ""),
            entry.metrics.get("numSourceRows", ""),
            about.get("rejected", 0),
            about.get("reason", ""),
        )
        for entry, about in windows
    ]
    names = ("job", "window", "version", "time (UTC)", "files", "records", "rejected", "closed because")
    failed = failures(table)
    said = table_html(("job", "file", "state", "reason"), failed[:_RECENT]) if failed else "<p>Nothing failed.</p>"
    return table_html(names, rows[:_RECENT]) + _more(len(rows)) + f"<h3>Failures</h3>{said}" + _more(len(failed))


def _lineage(table: LakeTable, key: Mapping[str, object] | None) -> str:
    """The latest events, newest first, by kind: a page without scripts is searched by the browser's own search."""
    found = table.lineage(key=key)
    rows = [
        (event.kind, (event.version, "" if event.timestamp_ms is None else _time(event.timestamp_ms), event.words,
         _listed(event.inputs), _listed(event.outputs)))
        for event in reversed(found.events)
    ]  # fmt: skip
    if not rows:
        return "<p>No event is known.</p>"
    names = ("version", "time (UTC)", "what happened", "from", "to")
    parts = [
        _folded(f"{kind}: {counted(len(of_kind), 'event')}", table_html(names, of_kind[:_RECENT]) + _more(len(of_kind)))
        for kind in KINDS
        if (of_kind := [row for of, row in rows if of == kind])
    ]
    notes = "".join(f"<p>{html_text(note)}</p>" for note in found.notes)
    whose = "" if key is None else "<h3>Where it came from and went to</h3>"
    return whose + "".join(parts) + notes


def _listed(parts: Iterable[object]) -> str:
    told = [str(part) for part in parts]
    shown = ", ".join(part if len(part) <= _LONGEST else f"\u2026{part[-_LONGEST:]}" for part in told[:_NAMED])
    return shown + (f" and {len(told) - _NAMED} more" if len(told) > _NAMED else "")


def _written(entry: HistoryEntry) -> str:
    size = written_by(entry)
    return readable_bytes(size) if size else ""


def _failed(table: LakeTable) -> str:
    try:
        found = table.failed_keys()
    except LakeMergeError as error:  # a merger that is not registered, or that fails for all keys
        return f"<p>{html_text(error.message)}</p>"
    if not found.keys:
        return "<p>None: all rows can be read.</p>"
    rows = [
        (_pairs(failed.key), failed.reason, len(failed.records) + failed.more, failed.records[0].version)
        for failed in found.keys[:_RECENT]
        if failed.records
    ]
    return table_html(("key", "why", "records that wait", "since version"), rows) + _more(len(found))


def _kind(entry: HistoryEntry) -> int:
    if entry.operation in _REWRITES:
        return 2
    if entry.operation == Operation.INGEST:
        return 1
    return 0 if entry.operation in WRITING else 3


def _more(count: int) -> str:
    return f"<p>{count - _RECENT:,} more are not shown.</p>" if count > _RECENT else ""


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html_text(title)}</summary>{body}</details>"


def _time(at_ms: int) -> str:
    return f"{dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC):%Y-%m-%d %H:%M:%S}"


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


STYLE: Final = """
:root { --ink: #1c2430; --faint: #667085; --line: #e3e7ee; --paper: #ffffff; --ground: #f5f7fa;
  --c0: #3b6fb6; --c1: #e8a13a; --c2: #c4513f; --c3: #8a94a6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #9aa5b5; --line: #303949; --paper: #1b222d;
  --ground: #12171f; --c0: #6ea0e6; --c1: #f0b65c; --c2: #e87a68; --c3: #8a94a6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 8px 0 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 16px 0 6px; }
.when { color: var(--faint); margin: 2px 0 18px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-bottom: 16px; overflow-x: auto; break-inside: avoid; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 12px; margin: 0; }
.cards div { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
dt { color: var(--faint); font-size: 12.5px; }
dd { margin: 0; font-size: 16px; font-weight: 600; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-top: 8px; }
th { color: var(--faint); font-weight: 600; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { max-width: 340px; overflow-wrap: break-word; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--faint); }
.legend span { margin-right: 18px; color: var(--faint); font-size: 13px; }
.legend { margin: 0 0 8px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg text.label { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.dot { fill-opacity: 0.75; stroke: var(--paper); stroke-width: 1; }
.area { fill-opacity: 0.8; }
"""
