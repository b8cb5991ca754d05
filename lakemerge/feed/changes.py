"""The change feed without Spark: what each commit changed in the rows, with before and after images."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from lakemerge.errors import InputError
from lakemerge.feed.difference import CHANGE_TYPE, KIND, TIMESTAMP, TOLD, VERSION, FeedShape, unit_batches
from lakemerge.feed.planner import check_not_overtaken, unless_overtaken
from lakemerge.feed.units import FeedUnit, of_another_past, units_between, units_of_commit
from lakemerge.feed.walk import blocks_of, changing_commits, check_not_replaced
from lakemerge.format.config import TableConfig
from lakemerge.format.feed_offset import Offset
from lakemerge.handle import Handle
from lakemerge.layout.travel import check_converted
from lakemerge.layout.view import TableView
from lakemerge.read.feed_columns import FeedColumns
from mergers.wording import argument

__all__ = ["KIND", "REMEDY", "TIMESTAMP", "VERSION", "check_free_names", "feed_plan", "read_changes", "unit_columns"]

REMEDY: Final = (
    "Read the changes after a version that is kept, or start again from the present rows. A consumer "
    "(table.consumers.register) holds back vacuum for what it has yet to read"
)
"""What the reader of a batch of changes does if a vacuum was faster."""


def read_changes(
    handle: Handle, until: TableView, since: int, *, net: bool = False, before_images: bool = True
) -> pa.RecordBatchReader:
    """See :meth:`lakemerge.LakeTable.changes`."""
    shape, units = feed_plan(handle, until, since, net=net, before_images=before_images, spark_names=False)

    def batches() -> Iterator[pa.RecordBatch]:
        with unless_overtaken(handle, Offset(since + 1), until.snapshot, REMEDY):
            for unit in units:
                yield from unit_batches(unit, shape)

    return pa.RecordBatchReader.from_batches(shape.schema, batches())


def feed_plan(
    handle: Handle, until: TableView, since: int, *, net: bool, before_images: bool, spark_names: bool
) -> tuple[FeedShape, Iterator[FeedUnit]]:
    """The units with the changes after version ``since``, and the shape of the changes.

    :raises InputError: ``since`` is no version up to ``until``, or the table has columns with the feed's names.
    :raises lakemerge.VersionNotFoundError: a vacuum took versions that are needed.
    :raises lakemerge.TableReplacedError: the table was replaced in between.
    """
    if type(since) is not int or since > until.version:
        raise InputError(f"{argument('since')} must be a version up to {until.version}, not {since!r}")
    check_free_names(until.config, spark_names=spark_names)
    with contextlib.ExitStack() as stack:
        if since >= 0:
            stack.enter_context(unless_overtaken(handle, Offset(since + 1), until.snapshot, REMEDY))
        check_converted(since, until.snapshot)
        before = handle.view(handle.log.snapshot(version=since))
        check_not_overtaken(Offset(since + 1), handle.log.update(until.snapshot), REMEDY)
        check_not_replaced(handle, before.snapshot, until.snapshot)
        columns = FeedColumns.between(handle, before, until, reserved=TOLD.names)
    shape = FeedShape(columns, before_images=before_images, spark_names=spark_names)
    return shape, (_net if net else _each)(handle, before, until)


def check_free_names(config: TableConfig, *, spark_names: bool = False) -> None:
    """Raises :class:`InputError` if the table has columns with the feed's names."""
    kind = CHANGE_TYPE if spark_names else KIND
    if hidden := [name for name in config.schema.names if name.lower() in (kind, VERSION, TIMESTAMP)]:
        raise InputError(
            f"the table has column(s) {', '.join(hidden)}, which would be two in its changes: {kind}, {VERSION} and "
            f"{TIMESTAMP} describe the commit. Rename such columns to read changes",
            columns=tuple(hidden),
        )


def unit_columns(unit: FeedUnit) -> FeedColumns:
    """The columns of the versions before and after a unit's commit."""
    schemas = [(unit.version, unit.after.spec.config.schema)]
    if unit.before.file_slices:
        schemas.append((unit.version - 1, unit.before.spec.config.schema))
    return FeedColumns.of(schemas, reserved=TOLD.names)


def _each(handle: Handle, before: TableView, until: TableView) -> Iterator[FeedUnit]:
    for was, now in changing_commits(handle, before.snapshot, until.version):
        yield from units_of_commit(handle, was, now)


def _net(handle: Handle, before: TableView, until: TableView) -> Iterator[FeedUnit]:
    """The difference of two versions. Only keys of the commits' records are compared, unless one of the commits is a
    restore, an overwrite or a load."""
    blocks = []
    for was, now in changing_commits(handle, before.snapshot, until.version):
        if of_another_past(was, now) or (was.is_empty and now.base_files):
            yield from units_between(handle, before, until, None)
            return
        blocks += blocks_of(now)
    yield from units_between(handle, before, until, blocks)
