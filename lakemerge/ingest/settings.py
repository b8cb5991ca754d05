"""What a caller said about a job, checked as a whole before anything is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compaction import compact_open, maintain_after_write, maintain_open, make_room
from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError
from lakemerge.events import observed
from lakemerge.format.config import TableConfig
from lakemerge.ingest.archiving import Afterwards
from lakemerge.ingest.discovery import Settling
from lakemerge.ingest.envelopes import Debezium
from lakemerge.ingest.formats.base import Format
from lakemerge.ingest.formats.choose import FILE_OPTIONS, chosen_format, file_columns
from lakemerge.ingest.formats.text_lines import TextLines
from lakemerge.ingest.options import After, Archive, BadRecords, Bins, Files, Fragments, Size
from lakemerge.ingest.packing import on_threads
from lakemerge.ingest.places import whole_path
from lakemerge.ingest.runner import Engine, Runner
from lakemerge.ingest.source import is_hidden
from lakemerge.ingest.window_columns import ColumnOptions, Envelope, rescued_problem
from lakemerge.ingest.windows import Gathering
from lakemerge.quantities import bytes_of
from lakemerge.table.describe import detail_of
from lakemerge.table.open_table import OpenTable
from lakemerge.write.upsert import load_in_process
from mergers.logs import logger
from mergers.wording import argument

__all__ = ["JobSettings"]

_logger = logger("lakemerge.ingest")

_ENVELOPES = {"debezium": ("json", "avro"), "dms": ("csv", "parquet", "json")}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """See :meth:`lakemerge.LakeTable.ingest`. Made by :meth:`checked`."""

    files: Files
    bins: Bins | None
    fragments: Fragments | None
    kind_column: str | None
    envelope: Envelope | None
    limit: int | None
    """How many records of a window may be set aside; ``None``: any number."""
    rescued_column: str | None
    merge_schema: bool
    blocks_per_window: int
    bytes_per_window: int
    archive: Archive | None
    deletes: bool
    max_read_amplification: float | None
    settling: Settling
    now_ms: Callable[[], int] | None = None
    """``None``: the clock of the table's store."""

    @staticmethod
    def checked(
        files: Files,
        *,
        bins: Bins | None,
        fragments: Fragments | None,
        kind_column: str | None,
        envelope: Envelope | None,
        bad_records: BadRecords,
        max_bad_records: int | None,
        rescued_column: str | None,
        merge_schema: bool,
        blocks_per_window: int,
        bytes_per_window: Size,
        after: After | Archive,
        max_read_amplification: float | None,
    ) -> JobSettings:
        """Raises an :class:`InputError` that lists everything that is wrong."""
        problems = [
            *_wrong_gathering(files, bins, fragments),
            *_wrong_envelope(files, envelope, kind_column),
            *_wrong_numbers(bad_records, max_bad_records, blocks_per_window, max_read_amplification),
        ]
        archive = after if isinstance(after, Archive) else Archive() if after == "archive" else None
        if archive is None and after not in ("keep", "delete"):
            problems.append(f"after must be 'keep', 'delete', 'archive' or an Archive, not {after!r}")
        problems += [] if archive is None else _wrong_archive(files, archive)
        if problems:
            raise InputError("the ingest job cannot be set up: " + "; ".join(problems), problems=tuple(problems))
        return JobSettings(
            files=files,
            bins=bins,
            fragments=fragments,
            kind_column=kind_column,
            envelope=envelope,
            limit=0 if bad_records == "fail" else max_bad_records,
            rescued_column=rescued_column,
            merge_schema=merge_schema,
            blocks_per_window=blocks_per_window,
            bytes_per_window=max(1, bytes_of(bytes_per_window, "bytes_per_window")),
            archive=archive,
            deletes=after == "delete",
            max_read_amplification=max_read_amplification,
            settling=Settling(files.settle_ms),
        )

    def shape(self, config: TableConfig) -> ColumnOptions:
        """The shape for the table as it is. Raises :class:`InputError` if the job does not fit it."""
        if self.rescued_column is not None:
            problem = rescued_problem(config, self.rescued_column)
            if problem is not None:
                raise problem
        chosen = self._format(config)
        return ColumnOptions(
            format=chosen,
            columns=self.files.columns,
            kind_column=self.kind_column,
            envelope=self.envelope,
            rescued=self.rescued_column,
            merge_schema=self.merge_schema,
            fixed=chosen.columns if isinstance(chosen, TextLines) else None,
            of_file=file_columns(self.files.format, self.files.options),
        )

    def runner(self, table: OpenTable, name: str, is_stopped: Callable[[], bool]) -> Runner:
        """The runner of the job. Raises :class:`InputError` if the job does not fit the table."""
        shape = self.shape(table.writable().config)
        archive = self.archive
        now_ms = self._clock(table)
        return Runner(
            handle=table.handle,
            latest=table.writable,
            name=name,
            gathering=Gathering(
                self.files,
                shape.format,
                self.blocks_per_window,
                self.bytes_per_window,
                self.bins,
                self.fragments,
                now_ms,
            ),
            shape_of=self.shape,
            engine=_engine(table),
            settling=replace(self.settling, now_ms=now_ms),
            limit=self.limit,
            afterwards=Afterwards(self.files, archive, now_ms) if archive or self.deletes else None,
            source={"locations": list(self.files.names), "format": self.files.format},
            pressure=partial(_pressure, table, self.max_read_amplification),
            committed=partial(maintain_after_write, table),
            is_stopped=is_stopped,
        )

    def _clock(self, table: OpenTable) -> Callable[[], int]:
        """The clock that ages are measured by: that of the table's store, since this host's may be wrong."""
        if self.now_ms is not None:
            return self.now_ms
        bounded = self.archive is not None and self.archive.max_age_ms is not None
        compares = self.bins is not None or self.fragments is not None or bounded or self.files.settle_ms
        return table.handle.store_now_ms if compares else table.handle.now_ms

    def _format(self, config: TableConfig) -> Format:
        unwrap = Debezium.of(config, self.files.options) if self.envelope == "debezium" else None
        of_file = {str(self.files.options.get(key)).lower() for key in FILE_OPTIONS}
        columns = self.files.columns or tuple(name for name in config.schema.names if name.lower() not in of_file)
        return chosen_format(self.files.format, self.files.options, columns=columns, unwrap=unwrap)


def _engine(table: OpenTable) -> Engine:
    spark = table.services_session
    if spark is None:
        threads = table.handle.settings.threads
        return Engine(partial(on_threads, threads=threads), load_in_process, lambda: threads)
    from lakemerge.ingest.spark import engine_on

    return engine_on(spark)


def _pressure(table: OpenTable, most: float | None) -> str | None:
    """Run maintenance if reads of the table cost too much. If that did not help, why the job has to wait."""
    make_room(table)
    if most is None or _read_amplification(table) <= most:
        return None
    _logger.info("read amplification is above %g: maintenance comes first", most)
    observed(maintain_open, "maintain")(table)
    if _read_amplification(table) > most:
        observed(compact_open, "compact")(table)
    amplification = _read_amplification(table)
    if amplification <= most:
        return None
    told = f"read amplification is {amplification:.2f}, above {most:g}, also after maintenance"
    _logger.warning("ingest waits: %s", told)
    return told


def _read_amplification(table: OpenTable) -> float:
    return detail_of(table.handle, table.view).read_amplification


def _wrong_gathering(files: Any, bins: Any, fragments: Any) -> Iterator[str]:
    if not isinstance(files, Files):
        yield f"the source must be Files(...), not {shown(files)}"
        return
    if not isinstance(bins, Bins | None) or not isinstance(fragments, Fragments | None):
        yield "bins must be Bins(...) and fragments Fragments(...)"
        return
    if fragments is None:
        return
    if bins is not None and bins.has_sizes:
        yield "sets are merged when they are whole: with fragments, bins may have only max_age and max_bins"
    groups = {} if files.pattern is None else files.pattern.groupindex
    needed = (fragments.identifier, fragments.index, fragments.count)
    for name in (name for name in needed if name not in groups):
        yield f"the pattern has no group (?P<{name}>...), which fragments need"


def _wrong_envelope(files: Any, envelope: Any, kind_column: Any) -> Iterator[str]:
    if envelope is None:
        return
    if envelope not in _ENVELOPES:
        yield f"envelope must be one of {', '.join(_ENVELOPES)}, not {envelope!r}"
    elif isinstance(files, Files) and files.format not in _ENVELOPES[envelope]:
        yield f"files of format {files.format!r} have no {envelope} envelope"
    if kind_column is not None:
        yield f"the envelope tells the kind of a record; {argument('kind_column')} is for files without one"


def _wrong_numbers(bad_records: Any, max_bad_records: Any, blocks: Any, amplification: Any) -> Iterator[str]:
    if bad_records not in ("fail", "quarantine"):
        yield f"{argument('bad_records')} must be 'fail' or 'quarantine', not {bad_records!r}"
    if max_bad_records is not None and (type(max_bad_records) is not int or max_bad_records < 0):
        name = argument("max_bad_records")
        yield f"{name} must be a number from 0 on, or None for any number, not {max_bad_records!r}"
    if type(blocks) is not int or blocks < 1:
        yield f"{argument('blocks_per_window')} must be a number from 1 on, not {blocks!r}"
    is_number = isinstance(amplification, int | float) and not isinstance(amplification, bool)
    if amplification is not None and not (is_number and amplification >= 1):
        yield f"{argument('max_read_amplification')} must be a number from 1 on, not {amplification!r}"


def _wrong_archive(files: Any, archive: Archive) -> Iterator[str]:
    if not isinstance(files, Files):
        return
    bounded = archive.max_age is not None or archive.max_bytes is not None
    if archive.folder is None:
        if bounded and not files.names:
            yield "an archive with bounds needs a folder where the locations are not named one by one"
        return
    folder = whole_path(archive.folder).rstrip("/") + "/"
    for root in (name.rstrip("/") + "/" for name in files.names):
        if folder.startswith(root) and not any(map(is_hidden, folder[len(root) :].rstrip("/").split("/"))):
            yield f"the archive {folder} would be listed with {root}: name its folder with an underscore"
