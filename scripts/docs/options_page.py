"""The page of everything that can be set: table properties, settings, options of Spark's source, storage options.

Names and defaults come from the code. Meanings that the code does not hold as a value stand here, and a test compares
their names with the code's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from compaction import retention
from lakemerge import options
from lakemerge.cli.arguments import OPTIONS_VARIABLE
from lakemerge.delta import TXN_RETENTION
from lakemerge.format.schedule import SCHEDULE_DEFAULTS
from lakemerge.results.compactions import CompactionStrategy
from lakemerge.storage import s3_options
from mergers.option_fields import REQUIRED
from mergers.registry import MergerRegistry, default_registry
from scripts.docs.markdown import attribute_docs, paragraph, table

__all__ = ["FEED", "FIXED", "READS", "RETENTION", "SCHEDULE", "SHOWN", "STORAGE", "WRITES", "options_page"]

SCHEDULE: Final[Mapping[str, str]] = {
    "lakemerge.compaction.afterCommits": "A base file is due for compaction when this many commits have logs for it.",
    "lakemerge.compaction.afterBytes": "It is due when its logs (uncompressed) and winner files have this many bytes.",
    "lakemerge.compaction.ratio": "It is due when they have this many bytes for each byte of the base file.",
    "lakemerge.compaction.afterMinutes": "It is due when the oldest commit that is not in it is this old.",
    "lakemerge.minorCompaction.afterCommits": "A minor compaction is due when this many commits have live logs for a "
    "base file.",
    "lakemerge.minorCompaction.afterBytes": "It is due when the live logs of a base file have this many bytes.",
    "lakemerge.minorCompaction.ratio": "It is due when they have this many bytes for each byte of the base file.",
    "lakemerge.minorCompaction.afterMinutes": "It is due when the oldest live log of a base file is this old.",
    "lakemerge.logCompaction.afterCommits": "It is due when this many commits of the table have live logs.",
    "lakemerge.vacuum.afterMinutes": "A vacuum is due when the last scheduled one was this long ago. Old deletes are "
    "forgotten with it.",
    "lakemerge.maintenance.inline": "`true`: each write of rows is followed by what is due.",
    "lakemerge.maintenance": "`auto`, which new tables set: each write of rows is followed by a compaction "
    "where it is worth its cost.",
    "lakemerge.maintenance.readsPerWrite": "How many full reads follow each write; `auto` uses it. If it is "
    "not set, writers learn it from the reads of their process.",
    "lakemerge.maxPendingCommits": "A write that finds this many commits which no compaction has taken up maintains "
    "first.",
}
RETENTION: Final[Mapping[str, str]] = {
    retention.FILE_RETENTION: "How long vacuum keeps files that the latest version does not need, and so how long "
    "earlier versions can be read.",
    retention.LOG_RETENTION: "How long commits and checkpoints are kept, and so how far `history()` goes back.",
    TXN_RETENTION: "How long the numbers of `txn=` and of streams' batches are remembered.",
    retention.TOMBSTONE_RETENTION: "How long a delete is remembered, so that an older record stays out.",
    retention.RECORD_RETENTION: "How long vacuum keeps the records that `explain`, `what_if` and `replay` read.",
    retention.MAX_BYTES: "How many bytes the files of old versions may take, such as `50GiB`. "
    "[Provenance](../guides/provenance.md#how-long-records-are-kept) explains it.",
}
SHOWN: Final[Mapping[str, tuple[str, str]]] = {
    "lakemerge.publish": (
        "`off`",
        (
            "`deletionVectors`: other Delta engines see what minor compactions merged. `rewrite`: for engines that do "
            "not know deletion vectors, minor compactions rewrite the files that have changes. `off`: they see what "
            "full compactions merged."
        ),
    ),
    "lakemerge.publish.maxLag": (
        "no limit",
        "How old a commit may be that they do not see, such as `0s` or `5m`. With `0s` each write publishes.",
    ),
}
FIXED: Final[Mapping[str, str]] = {
    "delta.checkpointInterval": "A checkpoint of the Delta log is written after this many commits. You can set it.",
    "delta.dataSkippingStatsColumns": "Columns of which every file has bounds. LakeMerge keeps it, for other engines.",
    "delta.enableDeletionVectors": "`true` while `lakemerge.publish` is `deletionVectors`.",
    "delta.enableInCommitTimestamps": "`true` in every table: commits carry their time.",
    "delta.enableTypeWidening": "Set by the first `alter(widen=...)`.",
    "lakemerge.formatVersion": "The version of the table format.",
    "lakemerge.key": "The key columns, as JSON. They cannot change, but for their names.",
    "lakemerge.ordering": "The ordering columns, as JSON. They cannot change, but for their names.",
    "lakemerge.merger.id": "The merger's strategy UUID; `alter(merger=...)` changes it.",
    "lakemerge.merger.name": "The merger's name, for people.",
    "lakemerge.tombstoneColumns": "The columns that a delete remembers beside the ordering: the sequences of groups.",
    "lakemerge.merger.options": "The merger's options, as JSON; `alter(options=...)` changes them.",
    "lakemerge.buckets": "Buckets of each partition; `rescale` changes it.",
    "lakemerge.columnNames": "The former names of columns that were renamed or dropped, as JSON.",
    "delta.columnMapping.mode": "Set by the first `alter(rename_columns=...)` or `alter(drop_columns=...)`.",
    "delta.columnMapping.maxColumnId": "The highest id of a column.",
    "delta.constraints.NAME": "A constraint: `alter(add_constraints=...)` and `alter(drop_constraints=...)` change it.",
    "lakemerge.flow.history": "Kept by [flows](../streaming.md#flows): how a table of type 2 is read.",
    "lakemerge.flow.truncated": "Kept by flows: the last truncate.",
}
READS: Final[Mapping[str, str]] = {
    "path": "Where the table is; `load(path)` and `save(path)` set it.",
    "columns": "The columns to read, with commas between them. Without LakeMerge's jar Spark does not prune columns by "
    "itself.",
    "version": "The version to read.",
    "versionAsOf": "The same, under Delta's name.",
    "timestamp": "The last version committed at or before this time.",
    "timestampAsOf": "The same, under Delta's name.",
    "mode": "`merged` (the default), or `base`: base files alone, without a merge.",
    "failedKeys": "`raise` (the default), or `skip`: keys whose merge fails have no row.",
}
WRITES: Final[Mapping[str, str]] = {
    "kindColumn": "The column with the kind of each row: `+I`, `+U`, `-U`, `-D`.",
    "mergeSchema": "`true`: columns that only the frame has are added to the table.",
    "replaceWhere": 'For `mode("overwrite")`: a condition on partition columns, which says what is overwritten.',
    "partitionOverwriteMode": "`static`, or `dynamic`: an overwrite is of the partitions that the frame has rows of.",
    "txnAppId": "With `txnVersion`: a write that was committed before is skipped.",
    "txnVersion": "The number of the write within `txnAppId`.",
    "checkpointLocation": "Spark's own, for streams.",
    "queryName": "Spark's own, for streams.",
    "repeatedBatch": "`check`, or `skip`: skip a batch by its number alone, whatever its rows are (stream).",
}
FEED: Final[Mapping[str, str]] = {
    "readChangeFeed": "`true`: read changes instead of rows. A stream of `load(path)` needs it, or another of these.",
    "readChangeData": "The same, under Delta's other name.",
    "startingVersion": "The first version to read; `latest`: future commits only.",
    "startingTimestamp": "The first time to read, instead of a version.",
    "endingVersion": "The last version to read.",
    "endingTimestamp": "The last time to read.",
    "deduplicationMode": "`none` or `netChanges`, which has each key once (batch).",
    "beforeImages": "`false`: leave out what a changed row was before.",
    "maxBytesPerTrigger": "Bytes that end a micro-batch (stream).",
    "maxVersionsPerTrigger": "Commits that end a micro-batch (stream).",
    "consumer": "A [consumer](../streaming.md#consumers) that was registered before. The stream starts at its "
    "position, and advances it (stream).",
    "schemaChanges": "`keep` or `stop`: what happens when a column is added (stream).",
    "skipDeletes": "`true`: `spark.readStream.table` leaves deleted rows out, and does not stop there (stream).",
}
STORAGE: Final[Mapping[str, str]] = {
    "key": "Access key id.",
    "secret": "Secret access key.",
    "token": "Session token.",
    "username": "s3fs's other name for the key id.",
    "password": "s3fs's other name for the secret.",
    "profile": "A profile of the AWS configuration.",
    "endpoint_url": "The URL of a store that is not Amazon's.",
    "region_name": "The region.",
    "addressing_style": "`auto`, `path` or `virtual`.",
    "anon": "`true`: no credentials.",
    "use_ssl": "`false`: plain HTTP.",
    "requester_pays": "`true`: whoever asks pays.",
    "cache_regions": "`true`: s3fs remembers regions of buckets.",
    "local_expiry_check": "`true`: s3fs looks at the expiry of credentials by itself.",
    "client_kwargs": "Arguments of botocore's client, as a mapping or JSON.",
    "config_kwargs": "Arguments of botocore's configuration, as a mapping or JSON.",
    "s3_additional_kwargs": "Arguments of each request, as a mapping or JSON.",
}
_INTRODUCTION = """# All properties, settings and options

This page lists everything that can be set. It is generated from the code.

| what | where it is set | how long it holds |
| --- | --- | --- |
| [table properties](#table-properties) | `create(properties=...)`, `alter(properties=...)` | with the table |
| [merger options](#merger-options) | `create(options=...)`, `alter(options=...)` | with the table |
| [settings](#settings) | `LakeTable.open(settings=Settings(...))` | in one process; they change cost, never rows |
| [compaction strategy](#compaction-strategy) | `table.compact(strategy=...)` | for one call |
| [options of Spark's source](#options-of-sparks-source) | `.option(name, value)` | for one read or write |
| [storage options](#storage-options) | `storage_options=...`, `.option(name, value)` | for one open table |
"""


def options_page() -> str:
    return "\n".join([_INTRODUCTION, *_properties(), *_mergers(), *_settings(), *_source(), *_storage()])


def _properties() -> Iterator[str]:
    yield "## Table properties\n"
    yield "Values are strings. `None` in `alter(properties=...)` removes a property. Other properties that begin "
    yield "with neither `delta.` nor `lakemerge.` are kept as they are.\n"
    yield "### The schedule of maintenance\n"
    yield "[Maintaining tables](../guides/maintenance.md) explains the services. `off` switches a threshold off.\n"
    rows = ([f"`{name}`", f"`{default}`", SCHEDULE[name]] for name, default in SCHEDULE_DEFAULTS.items())
    yield table(["property", "default", "meaning"], rows)
    yield "### Retention\n"
    yield "Durations are written as `interval 7 days`. [Retention](../guides/retention.md) explains them.\n"
    yield table(["property", "default", "meaning"], ([f"`{n}`", _kept(n), text] for n, text in RETENTION.items()))
    yield "### What other engines see\n"
    yield "[Other engines](../guides/other-engines.md#fresh-rows-publish) explains them.\n"
    yield table(["property", "default", "meaning"], ([f"`{n}`", default, text] for n, (default, text) in SHOWN.items()))
    yield "### Others\n"
    yield "All but the first are the table's own: calls of LakeMerge set them.\n"
    yield table(["property", "meaning"], ([f"`{name}`", text] for name, text in FIXED.items()))


def _kept(name: str) -> str:
    milliseconds = retention._DEFAULTS_MS.get(name)
    return "no limit" if milliseconds is None else f"`interval {milliseconds // 86_400_000} days`"


def _mergers() -> Iterator[str]:
    yield "## Merger options\n"
    yield "[Which merger?](../which-merger.md) helps to choose. The pages of the mergers explain the options.\n"
    rows = []
    for merger in _builtins():
        known = merger.known_options()
        rows += [[f"`{merger.name}`", f"`{option}`", _given(default)] for option, default in known.items()]
        rows += [[f"`{merger.name}`", "none", ""]] if not known else []
    yield table(["merger", "option", "default"], rows)


def _builtins() -> MergerRegistry:
    return default_registry()


def _settings() -> Iterator[str]:
    for heading, kind in [*((name, getattr(options, name)) for name in options.__all__), ("Compaction strategy", None)]:
        shown = kind or CompactionStrategy
        if not dataclasses.is_dataclass(shown):
            continue
        yield f"## {heading}\n"
        yield f"`lakemerge.{shown.__name__}`. {paragraph(shown.__doc__)}\n"
        docs = attribute_docs(shown) | ({"order": _ORDER} if shown is CompactionStrategy else {})
        rows = ([f"`{field.name}`", _default(field), docs[field.name]] for field in dataclasses.fields(shown))
        yield table(["field", "default", "meaning"], rows)


_ORDER = "What is compacted first: `oldest`, `log-bytes`, `log-count` or `read-amplification`."


def _given(default: object) -> str:
    """The default of a merger's option. Options are written as JSON."""
    if default is REQUIRED:
        return "required"
    return "none" if default is None else f"`{json.dumps(default)}`"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.name == "threads":
        return "processors, at most 8"
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else f"`{_plain(field.default_factory())}`"
    if field.name.endswith("_bytes") and isinstance(field.default, int):
        return f"`{field.default:_}` ({field.default >> 20:,} MiB)"
    return f"`{_plain(field.default)}`"


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _source() -> Iterator[str]:
    yield "## Options of Spark's source\n"
    yield 'For `format("lakemerge")`. Spark does not look at the case of their names. An option that is none of these '
    yield "is a storage option.\n"
    for title, names in (("Reads", READS), ("Writes", WRITES), ("Changes", FEED)):
        yield f"### {title}\n"
        yield table(["option", "meaning"], ([f"`{name}`", text] for name, text in names.items()))


def _storage() -> Iterator[str]:
    yield "## Storage options\n"
    yield "For tables on S3. [Object stores](../guides/stores.md) lists those of Google Cloud Storage and Azure, and "
    yield "explains credentials. Stores that are only read take fsspec's options, a local folder takes none. "
    yield f"The command line reads more from the variable `{OPTIONS_VARIABLE}`, a JSON object.\n"
    yield table(["option", "meaning"], ([f"`{name}`", text] for name, text in STORAGE.items()))
    yield "These variables of the process stand in for options that are not given. Their names serve as names of "
    yield "options, too.\n"
    yield table(["variable", "option"], ([f"`{a}`", f"`{b}`"] for a, b in s3_options._AWS_NAMES.items()))
