"""Checks a table's ingest jobs: that ledgers and rejects are there, can be read, and have the right contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.parquet import parquet_table
from lakemerge.check.kinds import INGEST_FILE_CHANGED, LEDGER_DAMAGED
from lakemerge.errors import LakeMergeError
from lakemerge.format.ingests import Ingest, NamedFile
from lakemerge.format.ledger import LEDGER, REJECTS, ledger_tables
from lakemerge.results.findings import Finding
from lakemerge.storage.base import Store
from mergers.interrupts import is_foreign

__all__ = ["check_ingest", "ingest_sizes"]


def ingest_sizes(jobs: Mapping[str, Ingest]) -> dict[str, int]:
    """The files that jobs name, and their sizes."""
    return {file.path: file.size_bytes for job in jobs.values() for file in (*job.ledger, *job.rejects)}


def check_ingest(store: Store, job: Ingest, *, without: set[str]) -> Iterator[Finding]:
    """Check what one job has in the table's folder.

    :param without: files that are not there.
    """
    whole = True
    for file, schema in (*((f, LEDGER) for f in job.ledger), *((f, REJECTS) for f in job.rejects)):
        if file.path not in without:
            problem = _problem(store, file, schema)
            whole &= problem is None or schema is not LEDGER
            if problem is not None:
                yield INGEST_FILE_CHANGED.found(file.path, problem)
    if whole and without.isdisjoint(file.path for file in job.ledger):
        yield from _check_pieces(store, job)


def _problem(store: Store, file: NamedFile, schema: pa.Schema) -> str | None:
    """What is wrong with a file, if anything."""
    try:
        with store.open_input(file.path, size_bytes=file.size_bytes) as data:
            found = parquet_table(data.read())
            found.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError, LakeMergeError) as error:
        if is_foreign(error):
            raise
        return f"it cannot be read: {error}"
    if not found.schema.equals(schema):
        return "it has other columns than its kind of file"
    if found.num_rows != file.rows:
        return f"it has {found.num_rows} rows; the log says {file.rows}"
    return None


def _check_pieces(store: Store, job: Ingest) -> Iterator[Finding]:
    """Check that no window is above the job's own, and that committed pieces of a file's version follow each other."""
    try:
        for table in ledger_tables(store, job.ledger):
            last = pc.max(table["window"]).as_py()
            if last > job.window:
                problem = f"it names window {last}; the last one of job {job.name!r} is {job.window}"
                yield LEDGER_DAMAGED.found(job.ledger[-1].path, problem)
            yield from _gaps(job, table)
    except LakeMergeError as error:
        yield LEDGER_DAMAGED.found(job.ledger[-1].path, error.message)


def _gaps(job: Ingest, table: pa.Table) -> Iterator[Finding]:
    taken = table.filter(pc.equal(table["state"], "committed"))
    if taken.num_rows < 2:
        return
    before, after = taken.slice(0, taken.num_rows - 1), taken.slice(1)
    same = pc.and_(_equal(before, after, "path"), _equal(before, after, "token"))
    ends = pc.add(before["offset"], before["length"])
    gaps = pc.and_(same, pc.not_equal(ends, after["offset"]))
    paths: Sequence[str] = after.filter(gaps)["path"].to_pylist()
    for path in dict.fromkeys(paths):
        yield LEDGER_DAMAGED.found(job.ledger[-1].path, f"pieces of {path} do not follow each other")


def _equal(before: pa.Table, after: pa.Table, name: str) -> pa.ChunkedArray:
    return pc.equal(before[name], after[name])
