"""Values that say what a version holds and what reading it costs: buckets, totals, the plan of a read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from lakemerge.commits.lag import lag_ms
from lakemerge.format.publish import Publish
from lakemerge.handle import Handle
from lakemerge.layout.published import published_of
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import MergeSpec
from lakemerge.read.scan import asked_columns
from lakemerge.results.display import Shown, definition_html, readable_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BucketInfo", "ReadPlan", "TableDetail", "buckets_of", "detail_of", "html_of", "plan_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes(Shown):
    """What a bucket or a table holds. :class:`BucketInfo` and :class:`TableDetail` share these fields."""

    base_files: int
    base_rows: int
    base_bytes: int
    winner_files: int
    """Files of the minor compactions since the last full one."""
    winner_rows: int
    winner_bytes: int
    log_blocks: int
    """Live log blocks: those that are not merged yet."""
    log_rows: int
    """Records in those blocks; some may lie outside the bucket's files that need them."""
    log_bytes: int
    """The uncompressed size. The records take about as much memory."""

    @property
    def read_amplification(self) -> float:
        """Bytes that a full read reads, per byte of base file. It is 1 if everything is clean."""
        extra = self.winner_bytes + self.log_bytes
        return 1 + extra / self.base_bytes if self.base_bytes else float(1 + bool(extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketInfo(_Sizes):
    """One bucket: what it holds and what reading it costs now."""

    partition: Mapping[str, str | None]
    """Partition values, as Delta writes them."""
    bucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetail(_Sizes):
    """An overview of a version."""

    url: str
    version: int
    merger: str
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    partition_by: tuple[str, ...]
    buckets: int | None
    filled_buckets: int
    dirty_buckets: int
    """Buckets with live logs."""
    log_commits: int
    """Commits whose logs are not merged everywhere."""
    maintenance: str = ""
    """What follows a write, and what a write would decide now, and why (docs/guides/maintenance.md)."""
    publish: str = "off"
    """The table property ``lakemerge.publish``."""
    published_version: int | None = None
    """The newest version whose rows other Delta engines see, but for ``unpublished_slices``. ``None`` where the table
    does not publish (docs/guides/other-engines.md)."""
    unpublished_slices: int = 0
    """How many file slices lag behind ``published_version``: the rows of these are older."""
    publish_lag_seconds: float = 0.0
    """How long ago the oldest commit was made whose records other engines do not see, by this host's clock: to learn
    the store's is a write. 0 if they see all."""
    publish_max_lag_seconds: float | None = None
    """The table property ``lakemerge.publish.maxLag``; ``None`` where it is not set."""

    @property
    def lags(self) -> bool:
        """Whether other engines lag behind for longer than the table allows."""
        return self.publish_max_lag_seconds is not None and self.publish_lag_seconds > self.publish_max_lag_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan(Shown):
    """How a read would be done, counted in file slices. A file slice is a base file and the key range that it owns."""

    file_slices: int
    pruned: int
    """Not read, because statistics, partition values or the key's bucket say that no row matches."""
    clean: int
    """Read as they are: no log touches them."""
    minor: int
    """Read without a merge: the base file without superseded rows, plus winner files."""
    first: int
    """Premerged: Spark merges their logs, which are small, before it reads the rest. Then they are read like
    ``minor``. The table keeps the premerge for later reads of the same version."""
    merged: int
    """Merged while reading: they have logs that no compaction has taken up."""
    log_blocks: int
    """Log blocks to be merged, in a premerge or while reading."""
    bytes: int
    """Stored bytes of the file slices to be read, of all columns."""
    through_arrow: str | None
    """Why Spark reads all these file slices through Arrow in Python tasks, even those that need no merge. ``None`` if
    Spark's own Parquet reader can read those, or if the table has no session to ask."""
    not_native: str | None
    """Why Spark does not read them by LakeMerge's own scan, but by a union of scans. ``None`` if it does, or if the
    table has no session to ask."""

    def __str__(self) -> str:
        lines = [f"{self.file_slices - self.pruned} of {self.file_slices} file slices, {self.bytes:,} bytes"]
        if self.clean:
            lines.append(f"  {self.clean} as they are: no log touches them")
        if self.minor:
            lines.append(f"  {self.minor} without a merge: base minus superseded rows, plus winners")
        since = f"{self.log_blocks} log blocks since the last compaction"
        if self.first:
            lines.append(f"  {self.first} premerged, then base minus superseded rows, plus merged ones: {since}")
        if self.merged:
            lines.append(f"  {self.merged} merged while reading: {since}")
        if self.through_arrow is not None:
            lines.append(f"  on Spark all of it through Arrow in Python tasks: {self.through_arrow}")
        elif self.not_native is not None:
            lines.append(f"  on Spark not by LakeMerge's own scan: {self.not_native}")
        return "\n".join(lines)


def buckets_of(view: TableView) -> list[BucketInfo]:
    """Every bucket with files or live logs, by partition and bucket."""
    names = view.config.partition_by
    order = sorted(
        view.file_slices_by_bucket, key=lambda part: ([value or "" for value in part.partition], part.bucket)
    )
    return [
        BucketInfo(
            partition=dict(zip(names, part.partition, strict=True)),
            bucket=part.bucket,
            **_totals(view.file_slices_by_bucket[part]),
        )
        for part in order
    ]


def detail_of(handle: Handle, view: TableView, *, maintenance: str = "") -> TableDetail:
    config, slices = view.config, buckets_of(view)
    return TableDetail(
        url=handle.store.url,
        version=view.version,
        merger=config.merger_name,
        key=config.key,
        ordering=config.ordering,
        partition_by=config.partition_by,
        buckets=config.buckets,
        filled_buckets=len(slices),
        dirty_buckets=sum(part.log_blocks > 0 for part in slices),
        log_commits=len(view.log_commits) - len(view.dead_log_commits()),
        maintenance=maintenance,
        **{**_publication(handle, view), **_totals(view.file_slices)},
    )


def _publication(handle: Handle, view: TableView) -> dict[str, Any]:
    publish = Publish.of(view.snapshot.metadata.configuration)
    if not publish.is_on:
        return {}
    found = published_of(view)
    return {
        "publish": publish.mode,
        "published_version": found.version,
        "unpublished_slices": found.behind,
        "publish_lag_seconds": lag_ms(handle, view, handle.now_ms, found) / 1000,
        "publish_max_lag_seconds": None if publish.max_lag_ms is None else publish.max_lag_ms / 1000,
    }


def html_of(detail: TableDetail) -> str:
    """What a notebook shows for a table."""
    live = f"{detail.log_blocks:,} blocks of {detail.log_commits} commits, {readable_bytes(detail.log_bytes)}"
    return definition_html(
        [
            ("table", detail.url),
            ("version", detail.version),
            ("merger", detail.merger),
            ("key", ", ".join(detail.key)),
            ("ordering", ", ".join(detail.ordering) or "commit order"),
            ("buckets", "not chosen yet" if detail.buckets is None else detail.buckets),
            ("base", f"{detail.base_files} files, {detail.base_rows:,} rows, {readable_bytes(detail.base_bytes)}"),
            ("live logs", live),
            ("read amplification", f"{detail.read_amplification:.2f}"),
        ]
    )


def plan_of(
    handle: Handle,
    view: TableView,
    columns: Sequence[str] | None,
    filter: str | pc.Expression | None,
    spark: SparkSession | None,
) -> ReadPlan:
    asked = asked_columns(view, columns)
    condition = parse_filter(filter, view.config.schema)
    file_slices = prune_file_slices(view, condition)
    first, through_arrow, not_native = 0, None, None
    if spark is not None:
        from lakemerge.spark.reader import native_ways, ways_of

        wanted = set(asked) | (condition.columns if condition is not None else set())
        read = [name for name in view.config.schema.names if name in wanted]
        spec = MergeSpec(handle.store, view.config, handle.merger(view), handle.settings)
        ways = native_ways(spark, handle, view, spec, file_slices, read)
        if isinstance(ways, str):
            not_native, ways = ways, ways_of(spark, handle, view, spec, file_slices, read)
        first, through_arrow = len(ways.premerge), ways.through_arrow
    return ReadPlan(
        file_slices=len(view.file_slices),
        pruned=len(view.file_slices) - len(file_slices),
        clean=sum(file_slice.is_clean for file_slice in file_slices),
        minor=sum(file_slice.is_merged and not file_slice.is_clean for file_slice in file_slices),
        first=first,
        merged=sum(not file_slice.is_merged for file_slice in file_slices) - first,
        log_blocks=sum(len(file_slice.blocks) for file_slice in file_slices),
        bytes=sum(file_slice.stored_bytes for file_slice in file_slices),
        through_arrow=through_arrow,
        not_native=not_native,
    )


def _totals(file_slices: Sequence[FileSlice]) -> dict[str, int]:
    bases = [file_slice.base for file_slice in file_slices if file_slice.base is not None]
    winners = [
        winner for file_slice in file_slices if file_slice.minor is not None for winner in file_slice.minor.winners
    ]
    # A block that reaches into several file slices counts once.
    blocks = {(b.file.path, b.first_row_group): b for file_slice in file_slices for b in file_slice.blocks}.values()
    return {
        "base_files": len(bases),
        "base_rows": sum(base.rows for base in bases),
        "base_bytes": sum(base.add.size_bytes for base in bases),
        "winner_files": len(winners),
        "winner_rows": sum(winner.rows for winner in winners),
        "winner_bytes": sum(winner.size_bytes for winner in winners),
        "log_blocks": len(blocks),
        "log_rows": sum(block.rows for block in blocks),
        "log_bytes": sum(block.data_bytes for block in blocks),
    }
