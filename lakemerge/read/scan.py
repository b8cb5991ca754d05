"""Reading a version without Spark: prune file slices, split large ones, merge each part, filter, project.

Spark plans with the same functions; only who runs the parts differs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.arguments import shown
from lakemerge._internal.pools import thread_pool
from lakemerge.errors import InputError, TableDamagedError
from lakemerge.format.minor import Minor
from lakemerge.format.names import MINOR_DOMAIN_PREFIX, STATE_DOMAIN
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.filter.filter import Filter, parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.reads_per_write import note_read
from lakemerge.read.splits import Part, split_file_slices
from mergers.wording import argument

__all__ = ["ReadMode", "asked_columns", "in_mode", "read_arrow", "scan", "scan_part"]

ReadMode = Literal["merged", "base"]
"""``merged`` is the table. ``base`` is the read-optimised view: only base files, as other Delta readers see it."""


def read_arrow(
    handle: Handle, view: TableView, *, columns: Sequence[str] | None, filter: str | pc.Expression | None
) -> pa.Table:
    """The rows of a version, read in parallel parts; see :meth:`lakemerge.LakeTable.to_arrow`."""
    plan = _plan(handle, view, columns, filter)
    with thread_pool(handle.settings.threads) as pool:
        found = pool.map(lambda part: list(plan.tables(part)), plan.parts)
        return pa.concat_tables([plan.schema.empty_table(), *(table for tables in found for table in tables)])


def scan(
    handle: Handle,
    view: TableView,
    *,
    columns: Sequence[str] | None,
    filter: str | pc.Expression | None,
    ordered: bool = True,
) -> pa.RecordBatchReader:
    """The rows of a version as a stream of bounded memory; see :meth:`lakemerge.LakeTable.scan`.

    :param ordered: whether rows come in the order of parts. Else several threads read, each a table ahead.
    """
    plan = _plan(handle, view, columns, filter)
    tables = (
        (table for part in plan.parts for table in plan.tables(part))
        if ordered
        else _read_ahead(plan, handle.settings.threads)
    )
    return pa.RecordBatchReader.from_batches(plan.schema, (batch for table in tables for batch in table.to_batches()))


def _read_ahead(plan: _ScanPlan, threads: int) -> Iterator[pa.Table]:
    """The tables of several parts in turn. Of each of them, one is read ahead."""
    waiting = map(plan.tables, plan.parts)
    active: deque[tuple[Iterator[pa.Table], Future[pa.Table | None]]] = deque()
    with thread_pool(threads) as pool:
        active.extend((tables, pool.submit(next, tables, None)) for tables in islice(waiting, threads))
        while active:
            tables, reading = active.popleft()
            table = reading.result()
            following = tables if table is not None else next(waiting, None)
            if following is not None:
                active.append((following, pool.submit(next, following, None)))
            if table is not None:
                yield table


@dataclass(frozen=True, slots=True)
class _ScanPlan:
    spec: MergeSpec
    schema: pa.Schema
    condition: Filter | None
    parts: list[Part]

    def tables(self, part: Part) -> Iterator[pa.Table]:
        for table in scan_part(self.spec, part, self.schema.names, self.condition):
            try:
                fitting = table.cast(self.schema)
            except ValueError as error:  # of Arrow, such as a null in a key column
                raise TableDamagedError(
                    f"stored rows do not fit the table's columns: {error}. Run `lakemerge check`, which names the file"
                ) from error
            yield fitting


def _plan(
    handle: Handle, view: TableView, columns: Sequence[str] | None, filter: str | pc.Expression | None
) -> _ScanPlan:
    names = asked_columns(view, columns)
    if not names:
        raise InputError("an Arrow table without columns has no rows; ask for at least one column, such as a key")
    condition = parse_filter(filter, view.config.schema)
    file_slices = prune_file_slices(view, condition, exact=True)
    note_read(view, file_slices)
    return _ScanPlan(
        spec=MergeSpec.of(handle, view),
        schema=pa.schema([view.config.schema.field(name) for name in names]),
        condition=condition,
        parts=split_file_slices(file_slices, handle.settings.target_task_bytes),
    )


def scan_part(spec: MergeSpec, part: Part, names: Sequence[str], condition: Filter | None) -> Iterator[pa.Table]:
    """The requested columns of a part's rows that meet the condition, in tables of bounded size.

    The condition is evaluated on merged rows, because a merge may change any column except the key.
    """
    wanted = set(names) | (condition.columns if condition is not None else set())
    read = wanted or {spec.config.key[0]}
    with ParquetFiles(spec.store, spec.footers) as files:
        file_slice = part.narrowed(files, spec.config.key_fields)
        if file_slice is None:
            return
        for merged in merge_file_slice(spec, file_slice, columns=read, sort=False, files=files, condition=condition):
            rows = merged.rows if condition is None else condition.kept(merged.rows)
            if rows.num_rows:
                yield rows.select(list(names))


def in_mode(view: TableView, mode: str) -> TableView:
    """The version as a read in that mode sees it. For ``base``, it has no logs, and of minor entries only those that
    other Delta readers see, as deletion vectors and files."""
    given: object = mode
    if not isinstance(given, str) or given not in get_args(ReadMode):
        known = ", ".join(map(repr, get_args(ReadMode)))
        raise InputError(f"{argument('mode')} must be one of {known}, not {shown(mode)}")
    if mode == "merged":
        return view
    domains = {
        name: domain
        for name, domain in view.snapshot.domains.items()
        if name == STATE_DOMAIN or (name.startswith(MINOR_DOMAIN_PREFIX) and Minor.of(domain).published)
    }
    return TableView(replace(view.snapshot, domains=domains), view.config, view.store)


def asked_columns(view: TableView, columns: Sequence[str] | None) -> list[str]:
    """The table's names of the requested columns, in the requested order. Case does not matter."""
    if columns is None:
        return list(view.config.schema.names)
    if isinstance(columns, str):
        raise InputError(f"{argument('columns')} must be a list of names; did you mean [{columns!r}]?")
    known = {name.lower(): name for name in view.config.schema.names}
    unknown = [name for name in columns if str(name).lower() not in known]
    if unknown:
        raise InputError(
            f"unknown column(s) {', '.join(map(repr, unknown))}; the table has {', '.join(view.config.schema.names)}",
            columns=tuple(unknown),
        )
    names = [known[str(name).lower()] for name in columns]
    if len(set(names)) < len(names):
        raise InputError(f"columns are asked for twice: {', '.join(names)}")
    return names
