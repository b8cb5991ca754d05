"""The output of commands: facts and reports as tables for people."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from lakemerge.cli.output import columns, facts, say, say_lines, with_base64
from lakemerge.delta import HistoryEntry
from lakemerge.format.ingests import ingests_of
from lakemerge.format.publish import PUBLISH
from lakemerge.ingest.results import IngestFile, IngestResult, IngestStatus
from lakemerge.python_values import python_values, with_text_decimals
from lakemerge.results.compactions import CompactionPlan, CompactionResult, LogCompactionResult, PlannedBucket
from lakemerge.results.display import counted, counts, readable_bytes
from lakemerge.results.maintenance import CopyResult, ExpiryResult, MaintenanceResult, VacuumResult
from lakemerge.schema.schema import type_ddl
from lakemerge.storage.probe import ProbeResult
from lakemerge.table.describe import BucketInfo, TableDetail
from lakemerge.table.table import LakeTable

__all__ = [
    "cell",
    "columns_of",
    "shown_buckets",
    "shown_copy",
    "shown_detail",
    "shown_history",
    "shown_ingest",
    "shown_ingest_files",
    "shown_ingest_status",
    "shown_lag",
    "shown_maintenance",
    "shown_plan",
    "shown_probe",
    "shown_rejects",
    "shown_result",
    "shown_rows",
    "shown_vacuum",
]

_PLANNED = 20
_PATHS = 20


def shown_detail(table: LakeTable) -> None:
    detail = table.detail()
    live = f"{counted(detail.log_blocks, 'block')} of {counted(detail.log_commits, 'commit')}"
    told = [
        ("table", detail.url),
        ("version", str(detail.version)),
        ("merger", detail.merger),
        ("key", ", ".join(detail.key)),
        ("ordering", ", ".join(detail.ordering) or "commit order"),
        ("partitioned by", ", ".join(detail.partition_by) or "nothing"),
        ("buckets", "not chosen yet" if detail.buckets is None else str(detail.buckets)),
        ("buckets with rows", f"{detail.filled_buckets}, {detail.dirty_buckets} of them with live logs"),
        ("base", f"{counts(file=detail.base_files, row=detail.base_rows)}, {readable_bytes(detail.base_bytes)}"),
        (
            "winners",
            f"{counts(file=detail.winner_files, row=detail.winner_rows)}, {readable_bytes(detail.winner_bytes)}",
        ),
        ("live logs", f"{live}, {readable_bytes(detail.log_bytes)}"),
        ("read amplification", f"{detail.read_amplification:.2f}"),
        *([] if detail.publish == "off" else [("published", published_words(detail))]),
        *((f"ingest {name}", _job(table, name)) for name in ingests_of(table.opened.view.snapshot)),
        *((f"column {name}", kind) for name, kind in columns_of(table.schema).items()),
    ]
    facts(told)


def shown_lag(detail: TableDetail) -> None:
    allowed = detail.publish_max_lag_seconds
    facts(
        [
            ("table", detail.url),
            ("published", published_words(detail)),
            ("allowed lag", "not set" if allowed is None else f"{allowed:.1f} s"),
        ]
    )


def published_words(detail: TableDetail) -> str:
    """What other Delta engines see."""
    if detail.publish == "off":
        return f"the table does not publish ({PUBLISH})"
    lag = f"{detail.publish_lag_seconds:.1f} s behind" if detail.publish_lag_seconds else "nothing lags behind"
    slices = counted(detail.unpublished_slices, "file slice")
    left = f", but for {slices}" if detail.unpublished_slices else ""
    return f"version {detail.published_version}{left}; {lag}"


def shown_history(entries: Sequence[HistoryEntry]) -> None:
    rows = (
        (
            str(entry.version),
            _instant(entry.timestamp_ms),
            entry.operation or "",
            _pairs(entry.parameters),
            _pairs(entry.metrics),
        )
        for entry in entries
    )
    columns(("version", "time (UTC)", "operation", "what", "numbers"), rows)


def shown_buckets(slices: Sequence[BucketInfo], *, limit: int) -> None:
    names = ("partition", "bucket", "base files", "rows", "base", "winners", "log blocks", "logs", "amplified")
    costly = sorted(slices, key=lambda part: -part.read_amplification)
    rows = (
        (
            _pairs(part.partition),
            str(part.bucket),
            str(part.base_files),
            f"{part.base_rows:,}",
            readable_bytes(part.base_bytes),
            readable_bytes(part.winner_bytes),
            f"{part.log_blocks:,}",
            readable_bytes(part.log_bytes),
            f"{part.read_amplification:.2f}",
        )
        for part in costly[:limit]
    )
    columns(names, rows)
    if len(costly) > limit:
        say(f"{counted(len(costly) - limit, 'more bucket')}; --limit shows more")


def shown_plan(plan: CompactionPlan) -> None:
    say_lines(str(plan))
    if not plan.groups:
        return
    names = ("commit", "partition", "bucket", "base files", "base", "winners", "logs", "blocks", "why")
    rows = [(number, part) for number, group in enumerate(plan.groups, start=1) for part in group.buckets]
    columns(names, ((str(number), *_planned(part)) for number, part in rows[:_PLANNED]))
    if len(rows) > _PLANNED:
        say(counted(len(rows) - _PLANNED, "more bucket"))


def shown_probe(result: ProbeResult) -> None:
    for finding in result.findings:
        say(f"{finding.verdict:<7} {finding.promise}: {finding.detail}")
    weak = any(finding.verdict != "kept" for finding in result.findings)
    kept = "keeps what tables need" if not weak else "keeps what tables need, but for what is weak or unknown above"
    say(f"{result.url} {kept if result.ok else 'does not keep what tables need: do not write tables there'}")


def shown_result(result: CompactionResult) -> None:
    if result.plan.groups:
        facts(result.report())
    else:
        say(str(result.plan))


def shown_rows(rows: pa.Table, *, limit: int) -> None:
    shown = rows.slice(0, limit)
    columns(rows.column_names, zip(*(map(cell, python_values(column)) for column in shown.columns), strict=True))
    if rows.num_rows > limit:
        say(f"{counted(rows.num_rows - limit, 'more row')}; --limit shows more")


def shown_ingest(result: IngestResult) -> None:
    rows = [
        ("windows", f"{result.windows:,}"),
        ("files", f"{result.files:,} loaded, {result.failed:,} failed"),
        ("rows", f"{result.rows:,} loaded, {result.rejected:,} set aside"),
    ]
    if result.to_retry:
        why = "failed, now or before: lakemerge ingest files --state failed says why, ingest retry loads them again"
        rows.append(("to retry", f"{result.to_retry:,} {why}"))
    waiting = [] if result.waiting is None else [("waiting", result.waiting)]
    facts([*rows, *waiting])


def shown_ingest_status(status: IngestStatus) -> None:
    counts = ", ".join(f"{count:,} {state}" for state, count in status.files.items()) or "none yet"
    told = [
        ("job", status.name),
        ("window", f"{status.window}, generation {status.generation}"),
        ("files", counts),
        ("loaded", f"{status.rows:,} rows, {readable_bytes(status.bytes)}"),
        ("set aside", f"{status.rejected:,} records"),
        ("source", _pairs(status.source)),
    ]
    reset = [("restored", "the table was restored after the last window: reset the job")] if status.needs_reset else []
    facts([*told, *reset])


def shown_ingest_files(files: Sequence[IngestFile], *, limit: int) -> None:
    rows = []
    for file in files[:limit]:
        windows = ", ".join(map(str, file.windows))
        size = f"{readable_bytes(file.bytes)} of {readable_bytes(file.size)}"
        why = " ".join((file.reason or "").split())
        rows.append((file.path, file.state, windows, size, f"{file.rows:,}", f"{file.rejected:,}", why))
    columns(("file", "state", "windows", "bytes", "rows", "set aside", "why"), rows)
    if len(files) > limit:
        say(f"{counted(len(files) - limit, 'more file')}; --limit shows more")


def shown_rejects(rejects: pa.Table, *, limit: int) -> None:
    rows = []
    for row in rejects.slice(0, limit).to_pylist():
        place = row["offset"] if row["offset"] is not None else row["row"]
        rows.append((row["path"], str(place), row["reason"], " ".join(row["text"].split())))
    columns(("file", "byte or row", "why", "text"), rows)
    if rejects.num_rows > limit:
        say(f"{counted(rejects.num_rows - limit, 'more record')}; --limit shows more")


def shown_maintenance(result: MaintenanceResult) -> None:
    say(f"{_instant(dt.datetime.now(dt.UTC).timestamp() * 1000)} maintenance, version {result.version}:")
    for part in result.done:
        match part:
            case CompactionResult():
                shown_result(part)
            case VacuumResult():
                shown_vacuum(part)
            case LogCompactionResult():
                made = f"{counted(part.commits, 'commit')} into {counted(part.files, 'file')}"
                say(f"log compaction: {made}, {readable_bytes(part.bytes)}")
            case ExpiryResult() if part.horizon is not None:
                say(f"tombstone expiry: deletes up to version {part.horizon} are forgotten")
            case ExpiryResult():
                say("tombstone expiry: no delete is old enough")
    for conflict in result.conflicts:
        say(f"another process was first: {conflict}")
    if not result.done and not result.conflicts:
        say("nothing is due")


def shown_copy(result: CopyResult) -> None:
    facts(
        [
            ("copy", result.url),
            ("version", str(result.version)),
            ("oldest version", str(result.oldest_version)),
            ("sent", f"{counted(result.files, 'file')}, {readable_bytes(result.bytes)}"),
            ("there before", counted(result.files_there, "file")),
        ]
    )


def shown_vacuum(result: VacuumResult) -> None:
    verb = "would be deleted" if result.dry_run else "deleted"
    for reason in result.reasons:
        say(reason)
    if not result.paths:
        say("vacuum: there is nothing to delete")
        return
    kinds = [(kind, counted(count, "file")) for kind, count in result.files.items()]
    oldest = ("oldest version kept", str(result.oldest_version))
    facts([("vacuum", verb), *kinds, ("bytes", readable_bytes(result.bytes)), oldest])
    if result.dry_run:
        for path in result.paths[:_PATHS]:
            say(f"  {path}")
        if len(result.paths) > _PATHS:
            say(f"  and {len(result.paths) - _PATHS:,} more")
        say("nothing was deleted; add --delete to delete the files")


def _planned(part: PlannedBucket) -> Iterable[str]:
    yield ", ".join("null" if value is None else value for value in part.partition)
    yield str(part.bucket)
    yield str(len(part.files))
    yield from map(readable_bytes, (part.base_bytes, part.winner_bytes, part.log_bytes))
    yield f"{part.log_blocks:,}"
    yield ", ".join(part.reasons)


def _job(table: LakeTable, name: str) -> str:
    status = table.ingest(name).status()
    locations = status.source.get("locations")
    listed = ", ".join(map(str, locations)) if isinstance(locations, list) else ""
    told = f"; {status.source.get('format')} from {listed}" if listed else ""
    return str(status).removeprefix(f"{name}: ") + told


def columns_of(schema: pa.Schema) -> dict[str, str]:
    """The type of each column as DDL."""
    return {field.name: type_ddl(field.type) + ("" if field.nullable else " NOT NULL") for field in schema}


def _instant(epoch_ms: float) -> str:
    return dt.datetime.fromtimestamp(epoch_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _pairs(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def cell(value: object) -> str:
    """A value as a table of a command shows it."""
    return "null" if value is None else str(with_text_decimals(with_base64(value)))
