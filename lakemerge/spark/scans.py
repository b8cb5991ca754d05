"""Merged file slices through Spark's own Parquet reader: no row passes through Python.

Base files without live logs are read as they are. For minor-compacted file slices one scan reads base and winner files,
and leaves out superseded rows by position: each row knows its file's ordinal and its place in the file, and a scalar
subquery gets a bitmap for each file from the positions files (docs/spark.md, "Superseded rows in Spark's own scan").
Premerged file slices are read in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions

from lakemerge._internal.pools import thread_pool
from lakemerge.format.minor import POSITIONS_SCHEMA, Minor, RowFile, packed_positions, superseded_table
from lakemerge.format.names import FILE_COLUMN
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.layout.xxhash64 import hash_columns
from lakemerge.schema.schema import to_ddl
from lakemerge.spark.access import parquet_files
from lakemerge.spark.names import selected
from lakemerge.spark.sessions import jvm_session, session_id, session_settings
from lakemerge.spark.transport.local import local_frame
from lakemerge.storage.local import LocalStore
from lakemerge.write.parquet.encoding import leaves
from mergers.contract import Bools

__all__ = ["scan_clean", "scan_minor", "scan_records", "scan_without", "selected_kept"]

_LISTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_OPEN_COST_BYTES = 4 * 2**20
_WINNERS_SHARE = 0.5
_SECOND_SCAN_BYTES = 8 * 2**20
_READER = {
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # Without a file that is missing or damaged there would be fewer rows, and no error.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
"""Options of a read, which say what settings of the session would say otherwise."""
_LISTED_FILE_BYTES = 512
"""About how many bytes the driver needs for each file that a scan names."""


def scan_clean(
    spark: SparkSession, handle: Handle, view: TableView, file_slices: Sequence[FileSlice], columns: Sequence[str]
) -> DataFrame:
    """Base files of clean file slices, as if they were a plain folder of files."""
    adds = [file_slice.base.add for file_slice in file_slices if file_slice.base is not None]
    if not adds:
        return spark.createDataFrame([], schema=to_ddl(_schema(view, columns)))
    sizes = [add.size_bytes for add in adds]
    rows = _stored(spark, handle, view, _stored_schema(view), [add.path for add in adds], sizes)
    return selected(rows, columns)


def scan_minor(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    condition: str | None = None,
) -> list[DataFrame]:
    """Base and winner files of file slices with a minor entry and no later logs, without superseded rows, in as few
    scans as their bitmaps allow. The frames are kept, so two reads get the same columns.

    :param condition: a condition on the wanted rows. It is evaluated before the bitmaps, so also on superseded rows. It
        must not fail for any row.
    """
    scans = []
    policy = handle.settings.reads
    # Spark itself reads positions files. Deletion vectors are read by the driver, so their scans have fewer rows.
    published = [each for each in file_slices if each.minor is not None and each.minor.published]
    others = [each for each in file_slices if each.minor is None or not each.minor.published]
    few_rows = min(policy.scan_rows, policy.driver_rows)
    for group in (*_groups(others, policy.scan_rows), *_groups(published, few_rows)):
        minors = [each.minor for each in group if each.minor is not None and each.minor.superseded_key]
        paths = [minor.positions for minor in minors if minor.positions is not None]
        few = _rows(group) <= policy.driver_rows and len(paths) <= policy.driver_files
        bits = partial(_bits_here, spark, handle, minors, *_ordinals(group))
        if not few and len(paths) == len(minors):
            bits = partial(_bits_there, spark, handle, paths, *_ordinals(group))
        of = [text for minor in minors for text in minor.superseded_key]
        scans.append(_scan(spark, handle, view, group, columns, bits if minors else None, of, condition))
    return scans


def scan_without(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    positions: pa.Table,
    of: Sequence[Hashable],
    condition: str | None,
) -> DataFrame:
    """Base and winner files of file slices without the rows that ``positions`` names, a table of
    :data:`lakemerge.format.minor.POSITIONS_SCHEMA`. ``of`` is its cache key. For ``condition`` see
    :func:`scan_minor`."""
    bits = partial(_bits, spark, positions, *_ordinals(file_slices)) if positions.num_rows else None
    return _scan(spark, handle, view, file_slices, columns, bits, of, condition)


def scan_records(spark: SparkSession, handle: Handle, view: TableView, records: Mapping[str, Bools]) -> DataFrame:
    """Records of log files. Each of the files has all columns.

    :param records: path of a log file -> the wanted records. The file names differ, and Spark's ``_metadata`` gives
        them as they are.
    """
    paths = list(records)
    slots, count = _slots([path.rpartition("/")[2] for path in paths])
    positions = packed_positions(dict(zip(slots, records.values(), strict=True)))
    bits = _bits(spark, positions, 0, count - 1)
    rows = _stored(spark, handle, view, _schema(view, view.config.schema.names), paths)
    name = functions.xxhash64(rows.metadataColumn("_metadata")["file_name"])
    slot = functions.pmod(name, functions.lit(count).cast("bigint")).cast("int")
    return rows.where(_is_set(rows, functions.get(bits.scalar(), slot)))


def _slots(names: Sequence[str]) -> tuple[list[int], int]:
    """For each name a number by which Spark finds it: its hash modulo a count. Also returns the count."""
    hashes = hash_columns([pa.array(names, pa.string())])
    count = len(names)
    while len(np.unique(hashes % count)) < len(names):
        count += 1 + count // 8
    return (hashes % count).tolist(), count


def _scan(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    file_slices: Sequence[FileSlice],
    columns: Sequence[str],
    bits: Callable[[], DataFrame] | None,
    of: Sequence[Hashable],
    condition: str | None,
) -> DataFrame:
    """Base and winner files without the rows whose bits are set. The result is kept for later reads. The bits are kept,
    too, for scans with other conditions.

    :param bits: gives the same as :func:`_bits`.
    :param of: the cache key of the bits, beside the files.
    """
    schema, scans = _stored_schema(view), _packed(file_slices, len(columns) / len(view.config.schema))
    paths = [file.path for files in scans for file in files]

    def stored() -> Iterator[DataFrame]:
        for files in scans:
            sizes = [file.size_bytes for file in files]
            yield _stored(spark, handle, view, schema, [file.path for file in files], sizes)

    if bits is None:
        return selected(reduce(DataFrame.union, stored()), columns)
    low, high = _ordinals(file_slices)

    def left() -> DataFrame:
        size = _rows(file_slices) // 8 if _rows(file_slices) <= handle.settings.reads.driver_rows else 0
        superseded = _kept(spark, handle, ("bits", low, high, *of), bits, size)
        wanted = (rows if condition is None else rows.where(condition) for rows in stored())
        return reduce(DataFrame.union, (_without(rows, superseded, low) for rows in wanted))

    key = ("left", schema, view.config.names.all_of(schema.names), len(scans), tuple(paths), tuple(of), condition)
    found = _kept(spark, handle, key, left, len(paths) * _LISTED_FILE_BYTES)
    return selected_kept(spark, handle, key, found, columns)


def selected_kept(
    spark: SparkSession, handle: Handle, key: Sequence[Hashable], frame: DataFrame, columns: Sequence[str]
) -> DataFrame:
    """The named columns of a kept frame, kept too: each column of a list is a call from Python to Spark.

    :param key: the cache key of the frame.
    """
    return _kept(spark, handle, (*key, "columns", *columns), lambda: selected(frame, columns), _LISTED_FILE_BYTES)


def _packed(file_slices: Sequence[FileSlice], asked: float) -> list[list[RowFile]]:
    """The files with rows, as one scan, or base files and winner files as two, if that takes less time.

    Spark divides the bytes of a scan evenly between its cores, and takes each file for 4 MiB longer than it is. To open
    a file costs far less. So many winner files make tasks of nothing but such files, and the base files are in fewer
    tasks than there are cores. A second scan costs as much time as some MiB of base files.

    :param asked: the share of the table's columns that are read.
    """
    bases = [file for file_slice in file_slices for file in file_slice.row_files[:1] if file.rows]
    winners = [file for file_slice in file_slices for file in file_slice.row_files[1:] if file.rows]
    crowded = len(bases) > 1 and _weight(winners) > _WINNERS_SHARE * _weight(bases)
    if crowded and asked * sum(file.size_bytes for file in bases) >= _SECOND_SCAN_BYTES:
        return [bases, winners]
    return [[file for file in _row_files(file_slices) if file.rows]]


def _weight(files: Sequence[RowFile]) -> int:
    """The bytes of files as Spark counts them (``spark.sql.files.openCostInBytes``)."""
    return sum(file.size_bytes + _OPEN_COST_BYTES for file in files)


def _kept(
    spark: SparkSession, handle: Handle, key: tuple[Hashable, ...], make: Callable[[], DataFrame], size_bytes: int
) -> DataFrame:
    """The kept result of ``make`` for the key. With Connect, whose plans can be used only once, ``make`` is called each
    time."""
    if jvm_session(spark) is None:
        return make()
    key = (*key, session_id(spark))
    known = cast("DataFrame | None", handle.scans.get(key))
    if known is None:
        known = make()
        handle.scans.keep(key, known, size_bytes)
    return known


def _without(rows: DataFrame, bits: DataFrame, low: int) -> DataFrame:
    """Stored rows without those whose bits are set. ``low`` is the ordinal of the first bitmap."""
    return rows.where(~_is_set(rows, functions.get(bits.scalar(), functions.col(FILE_COLUMN) - low)))


def _is_set(rows: DataFrame, words: Column) -> Column:
    """Whether the bit of a row is set in the bitmap of its file. A missing word or bitmap has no bit set."""
    row = rows.metadataColumn("_metadata")["row_index"].cast("int")
    # Spark shifts a long by the last six bits of the given number, here of the row's number.
    shifted = functions.call_function("shiftright", functions.get(words, functions.shiftright(row, 6)), row)
    one = functions.lit(1).cast("bigint")
    return shifted.bitwiseAND(one).eqNullSafe(one)


def _bits_here(spark: SparkSession, handle: Handle, minors: Sequence[Minor], low: int, high: int) -> DataFrame:
    """As :func:`_bits`, from positions files or deletion vectors. The driver reads them and sends them with the plan,
    which saves a job."""
    with thread_pool(handle.settings.threads) as pool:
        table = pa.concat_tables(pool.map(partial(superseded_table, handle.store), minors))
    return _bits(spark, table, low, high)


def _bits(spark: SparkSession, positions: pa.Table, low: int, high: int) -> DataFrame:
    """One row: the bitmaps of the files from ``low`` to ``high``, in order; null if a file has none."""
    table = positions.combine_chunks()
    at = pc.index_in(pa.array(range(low, high + 1), pa.int32()), table.column("file"))
    values = table.column("bits").combine_chunks().take(at)
    one = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return local_frame(spark, pa.table({"bits": one}))


def _bits_there(spark: SparkSession, handle: Handle, paths: Sequence[str], low: int, high: int) -> DataFrame:
    """As :func:`_bits`, from positions files, which Spark reads when the query runs."""
    entry = functions.struct("file", "bits")
    by_file = functions.map_from_entries(functions.collect_list(entry))
    numbers = functions.sequence(functions.lit(low), functions.lit(high))
    rows = _parquet(spark, handle, POSITIONS_SCHEMA, paths).agg(by_file.alias("bits"))
    return rows.select(functions.transform(numbers, lambda number: functions.col("bits")[number]))


def _groups(file_slices: Sequence[FileSlice], most_rows: int) -> Iterator[list[FileSlice]]:
    """File slices in groups of a bounded number of rows. They are sorted by ordinal, so those of a group are close."""
    group: list[FileSlice] = []
    held = 0
    for file_slice in sorted(
        file_slices, key=lambda file_slice: -1 if file_slice.base is None else file_slice.base.ordinal
    ):
        rows = _rows([file_slice])
        if group and held + rows > most_rows:
            yield group
            group, held = [], 0
        group.append(file_slice)
        held += rows
    if group:
        yield group


def _row_files(file_slices: Sequence[FileSlice]) -> list[RowFile]:
    return [file for file_slice in file_slices for file in file_slice.row_files]


def _rows(file_slices: Sequence[FileSlice]) -> int:
    return sum(file_slice.stored_rows for file_slice in file_slices)


def _ordinals(file_slices: Sequence[FileSlice]) -> tuple[int, int]:
    """The lowest and the highest of the file slices' files."""
    ordinals = [file.ordinal for file in _row_files(file_slices)]
    return min(ordinals), max(ordinals)


def _schema(view: TableView, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([view.config.schema.field(name).with_nullable(True) for name in columns])


def _stored_schema(view: TableView) -> pa.Schema:
    """The schema of base and winner files. All scans have it, and Spark reads only the columns that the query uses."""
    return pa.schema([*_schema(view, view.config.schema.names), pa.field(FILE_COLUMN, pa.int32())])


def _stored(
    spark: SparkSession,
    handle: Handle,
    view: TableView,
    schema: pa.Schema,
    paths: Sequence[str],
    sizes: Sequence[int] | None = None,
) -> DataFrame:
    """A scan of files of the table, under the names that its columns have now."""
    names = view.config.names
    rows = _parquet(spark, handle, names.schema(schema), paths, sizes)
    if names.all_of(schema.names) == tuple(schema.names):
        return rows
    # A projection, through which Spark finds the metadata column of the files as before.
    return rows.toDF(*schema.names)


def _parquet(
    spark: SparkSession, handle: Handle, schema: pa.Schema, paths: Sequence[str], sizes: Sequence[int] | None = None
) -> DataFrame:
    """A new scan of the files. Spark asks the store for each file at most once: a later scan of the same files reuses
    the answers."""
    session = jvm_session(spark)
    if session is None:
        return _listed(spark, handle, schema, paths, sizes)
    key = ("files", session_id(spark), schema, *paths)
    known = handle.scans.get(key)
    if known is not None:
        return DataFrame(session.baseRelationToDataFrame(known), spark)
    frame = _listed(spark, handle, schema, paths, sizes)
    relation = frame._jdf.queryExecution().analyzed().relation()
    handle.scans.keep(key, relation, len(paths) * _LISTED_FILE_BYTES)
    return frame


def _listed(
    spark: SparkSession, handle: Handle, schema: pa.Schema, paths: Sequence[str], sizes: Sequence[int] | None
) -> DataFrame:
    reader = spark.read.schema(to_ddl(schema)).options(**_READER)
    if any(pa.types.is_floating(kind) for field in schema for _, kind in leaves(field.name, field.type)):
        # Parquet's Java reader looks for 0.0 in a chunk's dictionary, finds only -0.0 and wrongly skips the row group.
        reader = reader.option("parquet.filter.dictionary.enabled", "false")
    local = isinstance(handle.store, LocalStore)
    with _listed_by_the_driver(spark) if local else contextlib.nullcontext():
        return parquet_files(reader, handle.store, paths, sizes)


def _listed_by_the_driver(spark: SparkSession) -> AbstractContextManager[None]:
    """The driver asks for the size of each file that a scan names. For more than 32 files Spark would run a job of up
    to 10,000 tasks, which takes ten times as long for files of a local disk. If the session has its own setting, it
    stays."""
    return session_settings(spark, {_LISTING: str(2**31 - 1)}, only_unset=True)
