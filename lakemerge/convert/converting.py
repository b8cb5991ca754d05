"""A plain Delta table becomes a LakeMerge table in place, in one commit that replaces its files by base files.

The rows are packed by bucket and merged into base files, as those of a first load are. A row of a Delta table is the
state of its key, so no merger is asked what it makes of it: of several rows of a key the one with the highest ordering
stays. Parts of the table are done one after the other, and what is done is noted (:mod:`lakemerge.convert.progress`).
Source: docs/table-format.md, section 15.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Final
from typing import Protocol as TypingProtocol

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.commits.base import with_buckets
from lakemerge.commits.compaction import removal
from lakemerge.convert.definition import Converted, converted, key_partitions
from lakemerge.convert.inspection import inspected
from lakemerge.convert.progress import Done, Progress
from lakemerge.convert.refusals import KNOWN_FEATURES, check_convertible, check_exclusive
from lakemerge.convert.source import DeltaSource, partition_scalar
from lakemerge.delta import (
    Action,
    AddFile,
    AlreadyDone,
    Attempt,
    DeltaLog,
    DomainMetadata,
    RemoveFile,
    Snapshot,
    decode,
)
from lakemerge.delta.listing import fetch, list_log
from lakemerge.errors import (
    CommitConflictError,
    FrameError,
    LakeMergeError,
    RecordRefusedError,
    TableError,
    TableExistsError,
)
from lakemerge.format.base_file import BaseFile, rows_of
from lakemerge.format.conversion import Conversion, FormerFile, former_path, read_former, write_former
from lakemerge.format.names import BASE_FOLDER, CONVERT_FOLDER, FORMER_FOLDER
from lakemerge.format.operations import Operation
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.partition import partition_value
from lakemerge.layout.view import FileSlice, build_file_slices
from lakemerge.results.conversion import ConversionPlan, ConversionResult
from lakemerge.storage.base import is_own_failure
from lakemerge.table.create import check_same, define_table
from lakemerge.write.base_file import ordinals_needed
from lakemerge.write.discard import discard_packed
from lakemerge.write.first_load import load_file_slice
from lakemerge.write.overwrite import repeated_key_of
from lakemerge.write.pack import Packed, PackSpec, pack
from lakemerge.write.start import choose_buckets, plan_frame
from mergers import Merger
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["ConvertRequest", "Engine", "convert_table"]

_logger = logger(__name__)

_ROWS_TO_FILES = 4
"""As Arrow data the rows take about so many times as much as in files."""
_STEP_FILES = 8
"""A step has partitions of about so many target files together, or one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertRequest:
    """The options of a conversion; see :meth:`lakemerge.LakeTable.convert`."""

    key: Sequence[str]
    ordering: Sequence[str] = ()
    merger: str | Merger | None = None
    options: Mapping[str, object] | None = None
    partition_by: Sequence[str] | None = None
    buckets: int | None = None
    exclusive: bool = False


class Engine(TypingProtocol):
    """What does the work: threads of this process, or tasks of Spark."""

    def pack(self, source: DeltaSource, spec: PackSpec, merger: Merger, adds: Sequence[AddFile]) -> list[Packed]: ...

    def load(
        self, spec: PackSpec, version: int, jobs: Sequence[tuple[FileSlice, int]]
    ) -> list[tuple[list[AddFile], Mapping[str, object] | None]]: ...


def convert_table(
    handle: Handle, request: ConvertRequest, *, dry_run: bool, engine: Engine | None = None
) -> ConversionResult | ConversionPlan:
    """See :meth:`lakemerge.LakeTable.convert`."""
    started = time.monotonic()
    begin = handle.log.snapshot()
    if "lakemerge.formatVersion" in begin.metadata.configuration:
        return _repeated(handle, begin, request, started)
    check_convertible(handle.store, begin)
    source = DeltaSource.of(handle.store, begin)
    definition = converted(
        handle,
        begin,
        source,
        key=request.key,
        ordering=request.ordering,
        merger=request.merger,
        options=request.options,
        partition_by=request.partition_by,
        buckets=request.buckets,
    )
    run = _Run.of(handle, begin, source, definition, engine or InProcess())
    if dry_run:
        found = inspected(source, list(begin.files.values()), definition.config.key, handle.settings)
        return ConversionPlan(
            url=handle.store.url,
            version=begin.version,
            rows=found.rows,
            files=len(begin.files),
            bytes=sum(add.size_bytes for add in begin.files.values()),
            steps=len(run.steps),
            buckets=run.spec.buckets,
            partition_by=definition.config.partition_by,
            null_keys=found.null_keys,
            repeated_rows=found.repeated_rows,
            repeated_keys=found.repeated_keys,
            seconds=time.monotonic() - started,
        )
    check_exclusive(handle.store, exclusive=request.exclusive)
    parts, before = run.parts()
    run.progress.check_there(parts)
    after = run.commit(parts)
    if after is None:  # another process was first
        return _repeated(handle, handle.log.snapshot(), request, started)
    _end(handle, after)
    adds = [add for part in parts for add in part.adds]
    read = sum(part.rows for part in parts)
    return ConversionResult(
        url=handle.store.url,
        version=after.version,
        rows=rows_of(adds),
        merged_rows=read - rows_of(adds),
        files=len(adds),
        bytes=sum(add.size_bytes for add in adds),
        former_files=len(begin.files),
        steps_done_before=before,
        repeated=False,
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True, slots=True)
class InProcess:
    """An :class:`Engine` of a few threads. Each holds at most the budget of a write or of a merge."""

    def pack(self, source: DeltaSource, spec: PackSpec, merger: Merger, adds: Sequence[AddFile]) -> list[Packed]:
        tasks = shares(adds, spec.settings.threads)
        with thread_pool(spec.settings.threads) as pool:
            return list(pool.map(partial(pack_files, source, spec, merger), tasks, range(len(tasks))))

    def load(
        self, spec: PackSpec, version: int, jobs: Sequence[tuple[FileSlice, int]]
    ) -> list[tuple[list[AddFile], Mapping[str, object] | None]]:
        with thread_pool(spec.settings.threads) as pool:
            return list(pool.map(partial(load_job, spec, version), jobs))


def shares(adds: Sequence[AddFile], count: int) -> list[list[AddFile]]:
    """The files in order, in at most so many runs of about the same size."""
    total = sum(add.size_bytes for add in adds)
    found: list[list[AddFile]] = [[]]
    size = 0
    for add in adds:
        if found[-1] and size >= total * len(found) / count and len(found) < count:
            found.append([])
        found[-1].append(add)
        size += add.size_bytes
    return [share for share in found if share]


def pack_files(source: DeltaSource, spec: PackSpec, merger: Merger, adds: Sequence[AddFile], task: int) -> Packed:
    """Pack the rows of some files, as one task."""

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in source.batches(adds, budget_bytes=spec.settings.write_budget_bytes):
            # The rows are states, so the merger does not take any for a delete; what it cannot hold it refuses.
            merger.check_records(spec.config.shape, batch, None)
            yield batch

    return pack(checked(), spec, task)


def load_job(
    spec: PackSpec, version: int, job: tuple[FileSlice, int]
) -> tuple[list[AddFile], Mapping[str, object] | None]:
    """Merge one file slice into base files. Without an ordering also a key that several rows have."""
    file_slice, first_ordinal = job
    adds = load_file_slice(spec, version, file_slice, first_ordinal)
    if spec.config.ordering or rows_of(adds) == sum(block.rows for block in file_slice.blocks):
        return adds, None
    return adds, repeated_key_of(spec, file_slice)


@dataclass(frozen=True, slots=True)
class _Run:
    """One conversion under way."""

    handle: Handle
    begin: Snapshot
    source: DeltaSource
    definition: Converted
    engine: Engine
    spec: PackSpec
    steps: Sequence[Sequence[AddFile]]
    progress: Progress
    transaction_id: str

    @staticmethod
    def of(handle: Handle, begin: Snapshot, source: DeltaSource, definition: Converted, engine: Engine) -> _Run:
        config = definition.config
        groups = _groups(begin.files.values(), source, config.partition_by)
        largest = max((sum(add.size_bytes for add in group) for group in groups), default=0)
        transaction = handle.new_transaction()
        folding = handle.registry.resolve("event-time" if config.ordering else "commit-time")
        merger = folding.from_options({}, config.shape)
        frame = plan_frame(source.frame_schema, config, merger)
        spec = PackSpec(
            store=handle.store,
            config=replace(config, remembers=()),
            merger=merger,
            frame=frame,
            buckets=config.buckets or choose_buckets(largest * _ROWS_TO_FILES),
            settings=handle.settings,
            name=f"{begin.version:020d}-{transaction.id}",
            combines=False,
            unites=False,
        )
        steps = _steps(groups, _STEP_FILES * handle.settings.target_file_bytes)
        told = {
            "steps": [[add.path for add in step] for step in steps],
            "buckets": spec.buckets,
            "targetFileBytes": handle.settings.target_file_bytes,
        }
        progress = Progress.of(handle.store, begin, definition.metadata, told)
        return _Run(handle, begin, source, definition, engine, spec, steps, progress, transaction.id)

    def parts(self) -> tuple[list[Done], int]:
        """All parts, as they are noted, and how many of them an earlier call had done."""
        parts: list[Done] = []
        before = 0
        try:
            for step, adds in enumerate(self.steps):
                first = parts[-1].next_ordinal if parts else 0
                done = self.progress.done(step)
                if done is not None and done.first_ordinal == first and done.buckets == self.spec.buckets:
                    before += 1
                else:
                    made = self._made(adds, first)
                    done = self.progress.note(step, made)
                    if done is not made:
                        self._discard([add.path for add in made.adds if add not in done.adds])
                _logger.info("conversion of %s: part %d of %d", self.handle.store.url, step + 1, len(self.steps))
                parts.append(done)
        except BaseException as error:
            discard_packed(self.handle.store, self.spec.name)
            if isinstance(error, FrameError | RecordRefusedError):
                # The rows have to change first, and then this version is not the newest any more.
                self._discard([add.path for part in parts for add in part.adds])
                self._discard([file.path for file in self.handle.store.list(f"{BASE_FOLDER}/{self.spec.name}")])
                with contextlib.suppress(LakeMergeError, OSError):
                    self.progress.forget()
            raise
        return parts, before

    def _made(self, adds: Sequence[AddFile], first_ordinal: int) -> Done:
        """Write the base files of a part of the table."""
        spec, settings = self.spec, self.handle.settings
        packed = self.engine.pack(self.source, spec, self.definition.merger, adds)
        blocks = [replace(block, version=self.begin.version + 1) for task in packed for block in task.blocks]
        file_slices = list(build_file_slices([], blocks, buckets=spec.buckets))
        counts = [ordinals_needed(file_slice.stored_bytes, settings) for file_slice in file_slices]
        firsts = accumulate(counts[:-1], initial=first_ordinal)
        jobs = list(zip(file_slices, firsts, strict=True)) if file_slices else []
        made = self.engine.load(spec, self.begin.version, jobs)
        repeated = next((key for _, key in made if key is not None), None)
        if repeated is not None:
            raise FrameError(
                f"several rows have the key {dict(repeated)}, and no column says which one counts: give "
                f"{argument('ordering')}, or delete all but one of them. A dry run counts such rows",
                key=dict(repeated),
            )
        discard_packed(self.handle.store, spec.name)
        written = tuple(add for each, _ in made for add in each)
        return Done(first_ordinal, sum(counts), sum(task.rows for task in packed), spec.buckets, written)

    def _discard(self, paths: Sequence[str]) -> None:
        """Delete files that no commit can name."""
        try:
            self.handle.store.delete(list(paths))
        except Exception as error:
            if not is_own_failure(error):
                raise
            _logger.warning("files of a conversion could not be deleted", exc_info=True)

    def commit(self, parts: Sequence[Done]) -> Snapshot | None:
        """The one commit. ``None``: another process has converted the table meanwhile.

        :raises CommitConflictError: somebody else has changed the table meanwhile.
        """
        handle, begin, config = self.handle, self.begin, self.definition.config
        version = begin.version + 1
        transaction = handle.new_transaction()
        former = former_path(version, transaction.id)
        write_former(handle.store, former, _former(handle, begin))
        adds = [add for part in parts for add in part.adds]
        merged = sum(part.rows for part in parts) - rows_of(adds)
        state = State(fence_begin_version=version, oldest_version=version)
        if parts and parts[-1].next_ordinal:
            state = state.reserving(parts[-1].next_ordinal)
        metadata = self.definition.metadata
        if adds and config.buckets is None:
            metadata = with_buckets(metadata, config, self.spec.buckets)
        now_ms = handle.store_now_ms()

        def build(tip: Snapshot | None) -> Attempt | AlreadyDone:
            if tip is None or tip.metadata.id != begin.metadata.id:
                raise CommitConflictError(f"the table at {handle.store.url} was removed or replaced meanwhile")
            if tip.version != begin.version:
                if "lakemerge.formatVersion" in tip.metadata.configuration:
                    return AlreadyDone(tip.version)
                raise CommitConflictError(
                    f"another writer committed version {tip.version} of the table at {handle.store.url} while version "
                    f"{begin.version} was converted; nothing was changed. Stop its writers, and convert it again",
                    version=tip.version,
                )
            actions: list[Action] = [
                self.definition.protocol,
                metadata,
                state.domain(),
                Conversion(version, former).domain(),
                *(DomainMetadata(name, "", True) for name in tip.domains if name.startswith("delta.")),
                *(_removed(add, now_ms, data_change=merged > 0) for add in tip.files.values()),
                *(
                    replace(BaseFile.of(add, config.stored_partition_by).merged_to(version), data_change=merged > 0)
                    for add in adds
                ),
            ]
            metrics = {
                "numConvertedFiles": len(tip.files),
                "numOutputRows": rows_of(adds),
                "numMergedRows": merged,
                "numFiles": len(adds),
                "numOutputBytes": sum(add.size_bytes for add in adds),
            }
            return Attempt(actions, metrics)

        log = DeltaLog(handle.store, writer_features=KNOWN_FEATURES)
        parameters = {
            "key": list(config.key),
            "ordering": list(config.ordering),
            "merger": config.merger_name,
            "partitionBy": list(config.partition_by),
        }
        try:
            outcome = log.commit(
                begin, build, operation=Operation.CONVERT, parameters=parameters, transaction=transaction
            )
        except BaseException:
            if not transaction.may_land:
                self._discard([former])
            raise
        if isinstance(outcome, AlreadyDone):
            self._discard([former])
            return None
        return outcome.snapshot


def _groups(adds: Iterable[AddFile], source: DeltaSource, partition_by: Sequence[str]) -> list[list[AddFile]]:
    """The files of each partition of the new table; all files together, where the old one is not divided so."""
    ordered = sorted(adds, key=lambda add: add.path)
    if not ordered:
        return []
    if not partition_by or not set(partition_by) <= source.partition_by.keys():
        return [ordered]
    groups: dict[tuple[str | None, ...], list[AddFile]] = {}
    for add in ordered:
        values = []
        for name in partition_by:
            text = add.partition_values.get(source.partition_by[name])
            value = partition_scalar(text, source.schema.field(name).type, add.path).as_py()
            if value is None:
                raise FrameError(
                    f"key column {name!r} is null in the partition of file {add.path!r}; keys must not be null: give "
                    "such rows a key, or delete them",
                    column=name,
                )
            values.append(partition_value(value))
        groups.setdefault(tuple(values), []).append(add)
    return list(groups.values())


def _steps(groups: Sequence[Sequence[AddFile]], size: int) -> list[list[AddFile]]:
    """Whole groups, together of about the size."""
    steps: list[list[AddFile]] = []
    filled = size
    for group in groups:
        if filled >= size:
            steps.append([])
            filled = 0
        steps[-1].extend(group)
        filled += sum(add.size_bytes for add in group)
    return steps


def _removed(add: AddFile, now_ms: int, *, data_change: bool) -> RemoveFile:
    return replace(removal(add, now_ms), data_change=data_change)


_LOG_ATTEMPTS: Final = 3


def _former(handle: Handle, begin: Snapshot) -> Iterator[FormerFile]:
    """The files of the version and, as far as the log still knows them, of versions before."""
    vectors: dict[str, None] = {}
    known: dict[str, int] = {}
    of_log = _actions_in_log(handle, begin.version)
    for action in chain(begin.tombstones.values(), begin.files.values(), of_log):
        known[action.path] = action.size_bytes or known.get(action.path, 0)
        if action.vector is not None:
            vectors[action.vector.path] = None
    for path, size in known.items():
        yield FormerFile(path, size, "data")
    for path in vectors:
        yield FormerFile(path, 0, "vectors")
    # A conversion before this one, which was taken back, may have left its list.
    for stat in handle.store.list(FORMER_FOLDER):
        for file in read_former(handle.store, stat.path):
            if file.path not in known and file.path not in vectors:
                yield file


def _actions_in_log(handle: Handle, until: int) -> Iterator[AddFile | RemoveFile]:
    """The files that commits name which are still there. A snapshot does not keep the earlier vectors of a file, nor
    files that were removed long ago and that nobody deleted."""
    for attempt in range(_LOG_ATTEMPTS):
        paths = [stat.path for version, stat in sorted(list_log(handle.store).commits.items()) if version <= until]
        try:
            for path, data in zip(paths, fetch(handle.store, paths), strict=True):
                # What another version of the table had, and cannot be read, is left where it is.
                with contextlib.suppress(TableError):
                    yield from (action for action in decode(data, path) if isinstance(action, AddFile | RemoveFile))
            return
        except FileNotFoundError:
            # A clean-up deleted it since it was listed. Actions that come twice say the same.
            if attempt == _LOG_ATTEMPTS - 1:
                raise


def _repeated(handle: Handle, tip: Snapshot, request: ConvertRequest, started: float) -> ConversionResult:
    """The end of a conversion whose commit an earlier call made.

    :raises TableExistsError: the table was never a plain one, or has another definition.
    """
    view = handle.view(tip)
    conversion = Conversion.of(tip)
    if conversion is None:
        raise TableExistsError(f"the table at {handle.store.url} is a LakeMerge table already", url=handle.store.url)
    config = view.config
    defined = define_table(
        handle,
        config.schema,
        key=request.key,
        ordering=request.ordering,
        merger=request.merger,
        options=request.options,
        partition_by=(
            key_partitions(config.partition_by, request.key) if request.partition_by is None else request.partition_by
        ),
        buckets=request.buckets,
        name=tip.metadata.name,
        description=tip.metadata.description,
        properties=None,
    )
    check_same(handle, tip, defined, buckets=request.buckets, properties={})
    _end(handle, tip)
    return ConversionResult(
        url=handle.store.url,
        version=conversion.version,
        rows=0,
        merged_rows=0,
        files=0,
        bytes=0,
        former_files=0,
        steps_done_before=0,
        repeated=True,
        seconds=time.monotonic() - started,
    )


def _end(handle: Handle, tip: Snapshot) -> None:
    """A checkpoint, so that nobody needs the log of before, and the end of the notes. The table is converted already,
    so that a failure is only told."""
    try:
        known = Conversion.of(tip)
        if known is not None and (tip.checkpoint_version is None or tip.checkpoint_version < known.version):
            handle.log.checkpoint(tip)
        if paths := [file.path for file in handle.store.list(CONVERT_FOLDER)]:
            handle.store.delete(paths)
        handle.store.delete_empty_folders(CONVERT_FOLDER)
        if known is not None:
            own = [file.path for file in handle.store.list(FORMER_FOLDER) if file.path != known.former]
            handle.store.delete(own)
    except Exception as error:
        if not is_own_failure(error):
            raise
        _logger.warning("the table at %s is converted; convert it again to finish", handle.store.url, exc_info=True)
