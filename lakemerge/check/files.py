"""Checks the contents of a table's files: rows are where they belong, in order, with unique keys; statistics are true;
text is UTF-8.

Files are read in portions of ``Settings.merge_budget_bytes``. Only key columns and columns with text or decimals are
read, except in file slices that have to be merged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from lakemerge.check.kinds import FILE_CHANGED, MERGE_FAILS, VALUE_UNSOUND, Kind
from lakemerge.check.salvage import told
from lakemerge.errors import LakeMergeError
from lakemerge.format.keys import BucketId, Key, keys_at
from lakemerge.format.log_block import LogBlock
from lakemerge.format.minor import read_superseded
from lakemerge.format.names import FILE_COLUMN, KIND_COLUMN
from lakemerge.layout.placement import place_rows
from lakemerge.layout.view import FileSlice
from lakemerge.read.merge import MergeSpec, merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.sources import check_kinds, tombstone_stream
from lakemerge.results.findings import FailedKey, Finding
from lakemerge.schema.soundness import Flaw, find_flaw, needs_look
from lakemerge.write.parquet.stats import footer_statistics
from mergers.interrupts import is_foreign
from mergers.keys import group_starts, key_columns, sort_order

__all__ = [
    "Checked",
    "StoredPart",
    "check_beside",
    "check_block",
    "check_merge",
    "check_stored",
    "file_slice_paths",
    "stored_parts",
]


@dataclass(frozen=True, slots=True)
class Checked:
    """What one job checked and found."""

    rows: int = 0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A base or winner file of a file slice."""

    path: str
    size_bytes: int
    ordinal: int
    rows: int
    statistics: str | None
    """The statistics of the ``add``; winner files that are not published have none."""
    has_vector: bool = False


def stored_parts(file_slice: FileSlice, statistics: Mapping[str, str | None]) -> list[StoredPart]:
    """The files with the file slice's merged rows.

    :param statistics: those of all adds, by path.
    """
    vectors = set() if file_slice.minor is None else {ordinal for ordinal, _ in file_slice.minor.vectors}
    base, parts = file_slice.base, []
    if base is not None:
        has_vector = base.ordinal in vectors
        parts.append(
            StoredPart(base.add.path, base.add.size_bytes, base.ordinal, base.rows, base.add.stats, has_vector)
        )
    for winner in () if file_slice.minor is None else file_slice.minor.winners:
        stats = statistics.get(winner.path)
        has_vector = winner.ordinal in vectors
        parts.append(StoredPart(winner.path, winner.size_bytes, winner.ordinal, winner.rows, stats, has_vector))
    return parts


def file_slice_paths(file_slice: FileSlice) -> set[str]:
    """Every file that a merge of the file slice reads."""
    named = {part.path for part in stored_parts(file_slice, {})} | {block.file.path for block in file_slice.blocks}
    if file_slice.minor is not None:
        named |= file_slice.minor.paths
    return named if file_slice.tombstones is None else named | {file_slice.tombstones}


def check_stored(spec: MergeSpec, file_slice: FileSlice, part: StoredPart, *, without: Collection[str]) -> Checked:
    """Check a base or winner file: its rows, ordinal and statistics, and that its keys are sorted, unique and in the
    file slice."""
    if part.path in without:
        return Checked()
    findings: list[str] = []
    keys = _KeyCheck(spec, file_slice.bucket_id, file_slice.buckets, unique=True)
    file = StoredFile(part.path, part.size_bytes)
    schema = pa.schema([*_schema(spec), pa.field(FILE_COLUMN, pa.int32())])
    try:
        with ParquetFiles(spec.store) as files:
            footer = files.column_footer(file)
            if footer.num_rows != part.rows:
                findings.append(f"it has {footer.num_rows} rows; the log says {part.rows}")
            findings += _statistics_problems(
                part, footer_statistics(footer, spec.config.names.schema(spec.config.schema))[0]
            )
            budget, names = spec.settings.merge_budget_bytes, spec.config.names
            for table, first, _ in files.stream(file, schema=schema, names=names, budget_bytes=budget):
                ordinals = set(table.column(FILE_COLUMN).unique().to_pylist())
                if ordinals - {part.ordinal}:
                    findings.append(f"column {FILE_COLUMN} holds {sorted(ordinals, key=str)}, not {part.ordinal}")
                findings += keys.problems(table, first)
        findings += keys.outside(file_slice.lower, file_slice.upper)
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        findings.append(told(error))
    return Checked(keys.rows, _findings(part.path, findings) + keys.flaws(part.path))


def check_block(spec: MergeSpec, block: LogBlock, *, without: Collection[str]) -> Checked:
    """Check a log block: its number of rows, and that its keys are sorted and in the block's bucket and bounds."""
    path = block.file.path
    if path in without:
        return Checked()
    findings: list[str] = []
    keys = _KeyCheck(spec, block.bucket_id, block.buckets, unique=False)
    try:
        with ParquetFiles(spec.store) as files:
            file = StoredFile(path, block.file.size_bytes)
            budget, groups = spec.settings.merge_budget_bytes, block.groups
            schema = pa.schema([*_schema(spec), pa.field(KIND_COLUMN, pa.int8())])
            stream = files.stream(file, schema=schema, names=spec.config.names, budget_bytes=budget, row_groups=groups)
            for table, first, _ in stream:
                check_kinds(table, path)
                findings += keys.problems(table, first)
        if keys.rows != block.rows:
            findings.append(f"a block of it has {keys.rows} rows; the log says {block.rows}")
        if block.key_min is not None and block.key_max is not None and (keys.first, keys.last) != _bounds(block):
            findings.append(f"a block holds keys {keys.first} to {keys.last}; the log says {_bounds(block)}")
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        findings.append(told(error))
    return Checked(keys.rows, _findings(path, findings) + keys.flaws(path))


def check_beside(spec: MergeSpec, file_slice: FileSlice, *, without: Collection[str]) -> Checked:
    """Check that the positions and tombstones of a file slice can be read, each by itself: a merge would stop at the
    first that cannot."""
    minor = file_slice.minor
    findings: list[Finding] = []
    if minor is not None and minor.superseded_key and not minor.paths & set(without):
        told_by = minor.positions or minor.vectors[0][1].path
        try:
            rows = {file.ordinal: file.rows for file in file_slice.row_files}
            found = read_superseded(spec.store, minor)
            if strange := found.keys() - rows.keys():
                findings += _findings(told_by, [f"it names files {sorted(strange)}, which the file slice lacks"])
            beyond = [n for n, bits in found.items() if np.flatnonzero(bits).max(initial=-1) >= rows.get(n, len(bits))]
            if beyond:
                findings += _findings(told_by, [f"it names rows beyond the end of files {beyond}"])
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
            path = error.facts.get("path") if isinstance(error, LakeMergeError) else None
            findings += _findings(path if isinstance(path, str) else told_by, [told(error)])
    tombstones = file_slice.tombstones
    if tombstones is not None and tombstones not in without:
        try:
            with ParquetFiles(spec.store) as files:
                for _ in tombstone_stream(spec, file_slice, files):
                    pass
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
            findings += _findings(tombstones, [told(error)])
    return Checked(0, tuple(findings))


def check_merge(spec: MergeSpec, file_slice: FileSlice) -> Checked:
    """Check that a file slice with logs or winner files can be merged, and that no key then comes twice."""
    keys = _KeyCheck(spec, file_slice.bucket_id, file_slice.buckets, unique=True)
    findings: list[str] = []
    failed: list[FailedKey] = []
    told_of = replace(spec, leave_out=failed.extend)
    try:
        with ParquetFiles(spec.store) as files:
            for part in merge_file_slice(told_of, file_slice, columns=spec.config.schema.names, sort=True, files=files):
                findings += keys.problems(part.rows)
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        return Checked(0, (MERGE_FAILS.found(None, told(error)),))
    found = _findings(file_slice.base.add.path if file_slice.base is not None else None, findings)
    return Checked(0, (*(MERGE_FAILS.found(None, key.reason) for key in failed), *found))


class _KeyCheck:
    """Checks rows of a bucket in the order of the file: their keys, and values that Arrow calls unsound."""

    def __init__(self, spec: MergeSpec, bucket_id: BucketId, buckets: int, *, unique: bool) -> None:
        self._spec, self._bucket_id, self._buckets, self._unique = spec, bucket_id, buckets, unique
        self.rows = 0
        self.first: Key | None = None
        self.last: Key | None = None
        self._flaw: Flaw | None = None
        """The first flaw in the file."""

    def problems(self, table: pa.Table, first_row: int | None = None) -> Iterator[str]:
        """What is wrong with the keys.

        :param first_row: the position of the first row in its file; ``None`` for merged rows, whose files were checked
            before.
        """
        config = self._spec.config
        flaw = None if first_row is None else find_flaw(table, first_row)
        self._flaw = self._flaw or flaw
        rows = table.num_rows
        self.rows += rows
        nulls = [name for name in config.key if table.column(name).null_count]
        if nulls:
            yield f"key column {nulls[0]!r} holds nulls"
        if not rows or nulls or (flaw is not None and flaw.column in config.key):
            return
        keys = key_columns(table, config.key)
        first, last = keys_at(keys, [0, rows - 1])
        order = sort_order(keys)
        before = self.last
        if (order[1:] < order[:-1]).any() or (before is not None and first < before):
            yield "its rows are not sorted by key"
        elif self._unique and (len(group_starts(keys)) < rows or first == before):
            yield "a key is in it more than once"
        self.first, self.last = first if self.first is None else self.first, last
        placed = place_rows(table, config, self._buckets)
        strange = set(map(placed.bucket, np.unique(placed.slots).tolist())) - {self._bucket_id}
        if strange:
            yield f"it holds keys of other buckets than {self._bucket_id}, such as {tuple(min(strange))}"

    def flaws(self, path: str) -> tuple[Finding, ...]:
        """The file's unsound values."""
        return () if self._flaw is None else _findings(path, [self._flaw.problem], VALUE_UNSOUND)

    def outside(self, lower: Key | None, upper: Key | None) -> Iterator[str]:
        if self.first is None or self.last is None:
            return
        if (lower is not None and self.first < lower) or (upper is not None and self.last >= upper):
            yield f"it holds keys {self.first} to {self.last}, beyond its range from {lower} to below {upper}"


def _statistics_problems(part: StoredPart, found: Mapping[str, Any]) -> Iterator[str]:
    """Compare the statistics in the log with those of the footer, for columns that both have."""
    if part.statistics is None:
        if part.has_vector:
            yield "it has a deletion vector, and no statistics, which a vector needs"
        return
    try:
        told = orjson.loads(part.statistics)
        for kind in ("minValues", "maxValues", "nullCount"):
            for name, value in told.get(kind, {}).items():
                if name in found[kind] and found[kind][name] != value:
                    yield f"{kind} of {name!r} is {found[kind][name]!r}; the log says {value!r}"
        if told.get("numRecords", part.rows) != found["numRecords"]:
            yield f"the log's numRecords is {told['numRecords']}"
        if part.has_vector and ("numRecords" not in told or told.get("tightBounds", True) is not False):
            yield "it has a deletion vector, and its statistics lack the number of records, or call its bounds tight"
    except (ValueError, TypeError, AttributeError):
        yield "its statistics in the log cannot be read"


def _schema(spec: MergeSpec) -> pa.Schema:
    """The columns to read: the key, and columns that can be unsound."""
    schema, key = spec.config.schema, spec.config.key
    others = [field for field in schema if field.name not in key and needs_look(field.type)]
    return pa.schema([field.with_nullable(True) for field in [*map(schema.field, key), *others]])


def _bounds(block: LogBlock) -> tuple[Key | None, Key | None]:
    return block.key_min, block.key_max


def _findings(path: str | None, problems: Iterable[str], kind: Kind = FILE_CHANGED) -> tuple[Finding, ...]:
    return tuple(kind.found(path, problem) for problem in dict.fromkeys(problems))
