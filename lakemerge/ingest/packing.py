"""Tasks that read a window's pieces and pack them into log files: on threads here, on executors under Spark.

A task has neighbouring pieces, and tasks are numbered in the order of the pieces. So records are in the log in the
order of files and blocks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import InputError
from lakemerge.format.ingests import INGEST_FOLDER, NamedFile
from lakemerge.format.ledger import REJECTS, write_rejects
from lakemerge.ingest.formats.base import Piece
from lakemerge.ingest.formats.record_rows import joined_fields
from lakemerge.ingest.reading import BadRecordError, Reading, Rejects, reason_of
from lakemerge.layout.placement import place_rows
from lakemerge.write.pack import Packed, PackSpec, pack

__all__ = ["Done", "RunTasks", "Task", "new_fields", "on_threads", "run_task", "split_tasks"]

R = TypeVar("R")

_LEAST_TASK_BYTES = 8 << 20


class PiecePart(NamedTuple):
    """A piece or a part of it, and the number of the piece."""

    number: int
    piece: Piece


class Task(NamedTuple):
    number: int
    parts: tuple[PiecePart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.piece.length for part in self.parts)


class Done(NamedTuple):
    """What a task did."""

    packed: Packed
    counts: tuple[tuple[int, int, int], ...]
    """For each piece: its number, how many records were taken up, and how many were set aside."""
    rejects: NamedFile | None


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of a window knows. Picklable."""

    reading: Reading
    pack: PackSpec
    window: int


class RunTasks(Protocol):
    """Calls a function for each task, and returns its results in the order of the tasks. An error of it is raised."""

    def __call__(self, function: Callable[[Task], R], tasks: Sequence[Task]) -> list[R]: ...


def split_tasks(pieces: Sequence[Piece], splits: Callable[[str], bool], *, at_a_time: int) -> list[Task]:
    """Tasks of about equal size, of neighbouring pieces, about as many as run at a time. Large pieces are cut."""
    target = max(_LEAST_TASK_BYTES, -(-sum(piece.length for piece in pieces) // at_a_time))
    tasks: list[list[PiecePart]] = [[]]
    room = target
    for number, piece in enumerate(pieces):
        for part in _cut(piece, room, target) if splits(piece.file.path) else (piece,):
            if tasks[-1] and room <= 0:
                tasks.append([])
                room = target
            tasks[-1].append(PiecePart(number, part))
            room -= part.length
    return [Task(number, tuple(parts)) for number, parts in enumerate(tasks) if parts]


def on_threads(function: Callable[[Task], R], tasks: Sequence[Task], *, threads: int) -> list[R]:
    with thread_pool(threads) as pool:
        running = [pool.submit(function, task) for task in tasks]
        try:
            return [future.result() for future in running]
        except BaseException:
            for future in running:
                future.cancel()
            raise


def run_task(job: Job, task: Task) -> Done:
    """Read a task's pieces and pack their records. Records that only the upsert refuses are bad records, too. They are
    looked for once it has refused some, so that others cost nothing; what the first attempt wrote belongs to no
    version, like that of any lost attempt.

    Raises :class:`lakemerge.ingest.reading.BadRecordError` beyond the limit.
    """
    try:
        return _run(job, task)
    except InputError as error:
        if isinstance(error, BadRecordError) or "path" in error.facts:
            raise
        return _run(replace(job, reading=replace(job.reading, check=partial(_check, job.pack))), task)


def _check(spec: PackSpec, rows: pa.RecordBatch) -> None:
    """Raises the errors that packing raises for rows."""
    records, _ = spec.frame.convert(rows, spec.merger)
    if spec.config.partition_by:
        place_rows(pa.Table.from_batches([records]), spec.config, spec.buckets)


def _run(job: Job, task: Task) -> Done:
    rejects = Rejects(job.reading.limit, [])
    counts: list[tuple[int, int, int]] = []

    def records() -> Iterator[pa.RecordBatch]:
        for part in task.parts:
            rows, before = 0, len(rejects.found)
            for batch in job.reading.rows(part.piece, rejects):
                rows += batch.num_rows
                yield batch
            counts.append((part.number, rows, len(rejects.found) - before))

    packed = pack(records(), job.pack, task.number)
    return Done(packed, tuple(counts), _written(job, task, rejects))


def new_fields(reading: Reading, task: Task) -> dict[str, pa.DataType]:
    """The fields that records of a task have and the frame lacks."""
    return joined_fields(reading.new_fields(part.piece) for part in task.parts)


def _written(job: Job, task: Task, rejects: Rejects) -> NamedFile | None:
    if not rejects.found:
        return None
    rows = [
        (job.window, found.path, found.origin.offset, found.origin.row, found.origin.text, reason_of(found))
        for found in rejects.found
    ]
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), REJECTS, strict=True)]
    path = f"{INGEST_FOLDER}/{job.pack.name}-rejects-{task.number:05d}-{uuid.uuid4().hex[:8]}.parquet"
    return write_rejects(job.pack.store, path, [pa.Table.from_arrays(columns, schema=REJECTS)])


def _cut(piece: Piece, room: int, target: int) -> Iterator[Piece]:
    """The piece in parts: first as much as the present task has room for, then whole tasks."""
    offset = piece.offset
    size = max(room, _LEAST_TASK_BYTES)
    while offset < piece.end or offset == piece.offset:
        length = min(size, piece.end - offset)
        if piece.end - offset - length < _LEAST_TASK_BYTES:
            length = piece.end - offset
        yield piece._replace(offset=offset, length=length)
        offset += length
        size = target
        if not length:
            return
