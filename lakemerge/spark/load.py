"""Bulk load inside the JVM: shuffle by bucket, sort by key, Spark's own Parquet writer.

It skips the kernel, so it must prove that the kernel would give the same rows: each key is there once and in its
bucket, no value is null that may not be, the merger takes no value for a delete, and the kernel would refuse no value.
The last is checked for each row as it passes. The rest of the proof reads the key columns and footers of the written
files before they are committed. If the proof fails for another reason than nulls, the load starts over through the
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions

from lakemerge._internal.parquet import ParquetFile
from lakemerge._internal.pools import thread_pool
from lakemerge.commits.appends import NotEmptyError, commit_load
from lakemerge.delta import AddFile, AlreadyDone
from lakemerge.errors import FrameError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.names import BASE_FOLDER, FILE_COLUMN, SLICE_TAG
from lakemerge.format.operations import Operation
from lakemerge.layout.xxhash64 import buckets as bucket_numbers
from lakemerge.results.writes import UpsertResult
from lakemerge.schema.lengths import lengths_of
from lakemerge.schema.schema import type_ddl
from lakemerge.spark.names import quoted, sql_names
from lakemerge.spark.sessions import session_settings
from lakemerge.spark.transport.jobs import map_in_tasks
from lakemerge.storage.local import LocalStore
from lakemerge.write.discard import ROWS_FOLDERS
from lakemerge.write.frame import FramePlan
from lakemerge.write.pack import PackSpec
from lakemerge.write.parquet.stats import file_statistics, text_bounds, texts_without_bounds
from lakemerge.write.start import Write
from mergers import Merger
from mergers.keys import group_starts, key_columns
from mergers.logs import logger
from mergers.portions import VALUE_BYTES

__all__ = ["bulk_load"]

_WRITER = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.page.row.count.limit": "32768",  # eight of Spark's batches; a scan of 20,000 takes 3 % more
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_logger = logger(__name__)
_FILES = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no statistics
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.files.maxRecordsPerFile": "0",
}
"""Settings that the files of a table need. Spark has no options of a single write for them."""
_LEAST_DICTIONARY_BYTES = 64 * 2**10
_MOST_DICTIONARY_BYTES = 2**20  # parquet-mr's default
_ROWS_TO_DICTIONARY = 512
"""A column's dictionary may have one byte for so many Arrow bytes of the file's rows."""
_NO_BUCKET = -1
"""The bucket of rows that may not fit the table."""
_TEXT_ROWS = 4096
"""How many rows are read at a time for the bounds of long texts."""
_CHECK_HERE_BYTES = 2**30
"""Up to this many bytes of key columns and footers are checked by the driver's threads."""
_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_MANTISSA_BITS = {pa.float32(): 24, pa.float64(): 53}
_MOST_DIGITS = 38
_BIGINT_DIGITS = 19
_FIXED_BYTES = 17
"""The most bytes that a number, or what stands beside a value of any size, takes."""


def bulk_load(write: Write, frame: DataFrame) -> UpsertResult | None:
    """Load the first rows of a table; ``None`` if this path does not apply or its proof fails.

    :param write: one that may load (:attr:`lakemerge.write.start.Write.may_load`).

    Raises :class:`FrameError` for null keys and nulls in NOT NULL columns.
    """
    config, merger, begin = write.pack.config, write.pack.merger, write.begin
    applies = (
        begin.state.next_ordinal == 0  # Spark computes the ordinals, and gives them the buckets' numbers
        and write.frame.kind_column is None
        and write.provenance.operation == Operation.UPSERT
        and write.frame.full
        and _casts_alike(write.frame)
        and not config.partition_by
        and not config.constraints
        and not lengths_of(config.schema)
        and not config.names.is_on  # Spark writes the names that people use
        and merger.traits(config.shape).lone_upsert_is_row
        and not _checks_more(merger)
        and isinstance(write.handle.store, LocalStore)
    )
    if not applies:
        return None
    folder = f"{BASE_FOLDER}/{write.pack.name}"
    spark = frame.sparkSession
    try:
        with session_settings(spark, _FILES):
            writer = _shaped(frame, write).write.options(**_WRITER)
            writer = writer.option(
                "parquet.dictionary.page.size", _dictionary_bytes(write.estimated_bytes, write.pack.buckets)
            )
            writer.parquet(write.handle.store.spark_url(folder))
        checked = _check(write, spark, folder)
        if checked is not None:
            # Spark syncs nothing.
            write.handle.store.sync([file.add.path for file in checked if file.add is not None])
        loaded = None if checked is None else _commit(write, checked)
    except NotEmptyError:
        loaded = None  # another writer was first, so these rows become a log append
    except BaseException:
        write.discard(ROWS_FOLDERS)
        raise
    if loaded is None:
        write.discard(ROWS_FOLDERS)
    return loaded


def _casts_alike(plan: FramePlan) -> bool:
    """Whether Spark's cast gives the same as the kernel's. Spark matches the fields of structs by position, and does
    not check nulls inside; the kernel matches them by name, and refuses nulls where none may be."""
    return all(_nests_alike(given, field.type) for given, field in zip(plan.types, plan.schema, strict=True))


def _checks_more(merger: Merger) -> bool:
    """Whether a subclass checks records, although its base class says that there is nothing to check
    (:attr:`mergers.Traits.lone_upsert_is_row`)."""
    checking, saying = (
        next(cls for cls in type(merger).__mro__ if method in vars(cls)) for method in ("check_records", "traits")
    )
    return checking is not saying and issubclass(checking, saying)


def _nests_alike(given: Any, wanted: Any) -> bool:
    if given.num_fields != wanted.num_fields or pa.types.is_map(given) != pa.types.is_map(wanted):
        return False
    inner = [(given.field(i), wanted.field(i)) for i in range(wanted.num_fields)]
    by_name = pa.types.is_struct(wanted)
    return all(
        (not by_name or from_field.name.lower() == to_field.name.lower())
        and (to_field.nullable or not from_field.nullable)
        and _nests_alike(from_field.type, to_field.type)
        for from_field, to_field in inner
    )


def _shaped(frame: DataFrame, write: Write) -> DataFrame:
    """Rows by bucket, sorted by key. Each bucket has one task, and so one file; its number is the file's ordinal. Rows
    that may not fit the table, which only the kernel can decide, are in a bucket of their own."""
    plan = write.frame
    frame, text = sql_names(frame, plan.sources)
    names = {name: quoted(name) for name in (*plan.schema.names, FILE_COLUMN)}
    ddl = [type_ddl(field.type) for field in plan.schema]
    columns: dict[str, str] = {}
    conditions: list[str] = []
    for source, kind, field, wanted in zip(plan.sources, plan.types, plan.schema, ddl, strict=True):
        value = text[source]
        # A value that does not fit is null, and its row is in no bucket.
        cast = "CAST" if kind == field.type else "TRY_CAST"
        columns[field.name] = f"{cast}({value} AS {wanted})"
        conditions += (f"({condition}) IS NOT FALSE" for condition in _fitting(value, kind, field.type))
        conditions += _small(value, kind)
    keys = ", ".join(columns[name] for name in write.pack.config.key)
    bucket = f"pmod(xxhash64({keys}), {write.pack.buckets})"
    if conditions:
        bucket = f"IF({' AND '.join(conditions)}, {bucket}, {_NO_BUCKET})"
    # The bucket is computed before the shuffle and sent along. That costs less than another pass after the sort.
    columns[FILE_COLUMN] = f"CAST({bucket} AS INT)"
    rows = frame.selectExpr(*(f"{expression} AS {names[name]}" for name, expression in columns.items()))
    by_key = [functions.col(names[name]) for name in write.pack.config.key]
    return rows.repartitionById(write.pack.buckets, functions.col(FILE_COLUMN)).sortWithinPartitions(*by_key)


# Conditions, evaluated in the JVM, that the rows of a frame surely fit a table. If one is true for a row, the kernel
# would take the row as it is (lakemerge.frames, lakemerge.schema.casts). If it is false, nothing is known: the kernel
# has to look at the row, and names the value that it refuses.


def _fitting(value: str, given: Any, wanted: Any, depth: int = 0) -> Iterator[str]:
    """Conditions on a value, as SQL. They are null or true if the value or a part of it is null.

    :param value: an SQL expression.
    :param given: its type. It must be castable to ``wanted``, and have the same fields in the same order.
    :param depth: how deeply the value is nested inside element functions.
    """
    if pa.types.is_string(given):
        yield f"is_valid_utf8({value})"
    elif pa.types.is_struct(given):
        for field, target in zip(given, wanted, strict=True):
            yield from _fitting(f"{value}.{quoted(field.name)}", field.type, target.type, depth)
    elif pa.types.is_map(given):
        # Spark makes no map that has a key twice, but it can read such maps from files.
        yield f"size(array_distinct(map_keys({value}))) = size({value})"
        yield from _of_each(f"map_keys({value})", given.key_type, wanted.key_type, depth)
        yield from _of_each(f"map_values({value})", given.item_type, wanted.item_type, depth)
    elif pa.types.is_list(given):
        yield from _of_each(value, given.value_type, wanted.value_type, depth)
    elif given != wanted:
        yield from _equal(value, given, wanted)


def _small(value: str, kind: Any) -> Iterator[str]:
    """The condition that a value has fewer bytes as Arrow data than a table takes, if values of its type may have more.

    :param value: an SQL expression.
    :param kind: its type.
    """
    if pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield f"{_bytes(value, kind)} < {VALUE_BYTES}"


def _bytes(value: str, kind: Any, depth: int = 0) -> str:
    """At least as many bytes as the value has as Arrow data, as an SQL expression that is never null."""
    if pa.types.is_struct(kind):
        return " + ".join([f"{_FIXED_BYTES}L", *(_bytes(f"{value}.{quoted(f.name)}", f.type, depth) for f in kind)])
    if pa.types.is_map(kind):
        keys = _bytes(f"map_keys({value})", pa.list_(kind.key_type), depth)
        return f"{keys} + {_bytes(f'map_values({value})', pa.list_(kind.item_type), depth)}"
    if pa.types.is_list(kind):
        element, total = f"e{depth}", f"t{depth}"
        each = _bytes(element, kind.value_type, depth + 1)
        if element not in each:  # all elements have the same size
            return f"{_FIXED_BYTES}L + coalesce(size({value}), 0) * ({each})"
        return f"{_FIXED_BYTES}L + coalesce(aggregate({value}, 0L, ({total}, {element}) -> {total} + {each}), 0L)"
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return f"{_FIXED_BYTES}L + coalesce(octet_length({value}), 0)"
    return f"{_FIXED_BYTES}L"


def _of_each(values: str, given: Any, wanted: Any, depth: int) -> Iterator[str]:
    element = f"e{depth}"
    for condition in _fitting(element, given, wanted, depth + 1):
        yield f"forall({values}, {element} -> ({condition}) IS NOT FALSE)"


def _equal(value: str, given: Any, wanted: Any) -> Iterator[str]:
    """The condition that a number has an equal one of another type."""
    if given in _INTEGER_BITS:
        yield from _within(value, _INTEGER_BITS[given], wanted)
    elif pa.types.is_floating(given) and wanted == pa.float32():
        yield f"CAST(CAST({value} AS FLOAT) AS DOUBLE) <=> {value}"
    elif pa.types.is_decimal(given):
        whole, scale = given.precision - given.scale, given.scale
        if whole > wanted.precision - wanted.scale or scale > wanted.scale:
            digits = max(whole, wanted.precision - wanted.scale) + max(scale, wanted.scale)
            # Spark rounds two decimals before it compares them, if together they have too many digits.
            exact = digits <= _MOST_DIGITS
            yield f"TRY_CAST({value} AS {type_ddl(wanted)}) <=> {value}" if exact else f"{value} IS NULL"


def _within(value: str, bits: int, wanted: Any) -> Iterator[str]:
    """The condition that an integer of so many bits is in the range that the type holds without gaps."""
    if wanted in _INTEGER_BITS:
        if _INTEGER_BITS[wanted] < bits:
            limit = 2 ** (_INTEGER_BITS[wanted] - 1)
            yield f"{value} BETWEEN {-limit} AND {limit - 1}"
    elif wanted in _MANTISSA_BITS:
        if _MANTISSA_BITS[wanted] < bits:
            limit = 2 ** _MANTISSA_BITS[wanted]
            yield f"{value} BETWEEN {-limit} AND {limit}"
    elif wanted.precision - wanted.scale < _BIGINT_DIGITS:
        limit = 10 ** (wanted.precision - wanted.scale) - 1
        yield f"{value} BETWEEN {-limit} AND {limit}"


def _dictionary_bytes(estimated_bytes: int | None, buckets: int) -> int:
    """The size from which on a column's dictionary does not pay, because it is not small in comparison with its file.

    If a dictionary turns out not to pay, parquet-mr writes the column's first page twice. For a small file that is much
    of the work. With this limit parquet-mr gives up as soon as the dictionary is larger.
    """
    if estimated_bytes is None:
        return _MOST_DICTIONARY_BYTES
    wanted = estimated_bytes // buckets // _ROWS_TO_DICTIONARY
    return min(max(wanted, _LEAST_DICTIONARY_BYTES), _MOST_DICTIONARY_BYTES)


@dataclass(frozen=True, slots=True)
class _Checked:
    """One file that holds a bucket's rows, sorted, each key once; or why it does not."""

    add: AddFile | None
    bucket: int
    rows: int
    problem: str | None


def _check(write: Write, spark: SparkSession, folder: str) -> list[_Checked] | None:
    """Prove each file; ``None`` if the kernel is needed. Raises :class:`FrameError` for bad rows."""
    store = write.handle.store
    # Lost attempts of tasks may still write files below the folder.
    found = [stat for stat in store.list(folder) if stat.path.rpartition("/")[0] == folder]
    files = [stat for stat in found if stat.path.endswith(".parquet")]
    spec = write.pack
    begin_version, now = write.begin.version, write.handle.now_ms()

    def check(file: tuple[str, int]) -> _Checked | None:
        return _check_file(file[0], file[1], spec, begin_version, now)

    items = [(stat.path, stat.size_bytes) for stat in files]
    if sum(size for _, size in items) <= _CHECK_HERE_BYTES:
        with thread_pool(spec.settings.threads) as pool:
            checked = list(pool.map(check, items))
    else:
        sizes, target = [size for _, size in items], spec.settings.target_task_bytes
        checked = map_in_tasks(spark, check, items, sizes=sizes, target_bytes=target)
    proven = [file for file in checked if file is not None]
    for file in proven:
        if file.problem is not None:
            raise FrameError(file.problem)
    buckets = [file.bucket for file in proven if file.add is not None]
    if len(set(buckets)) < len(buckets):
        _logger.warning("Spark wrote several files of one bucket; the rows are loaded through the kernel")
        return None
    return proven if len(proven) == len(checked) else None


def _check_file(path: str, size: int, spec: PackSpec, begin_version: int, now_ms: int) -> _Checked | None:
    config = spec.config
    with spec.store.open_input(path, size_bytes=size) as source:
        file = ParquetFile(source)
        footer = file.metadata
        vetoes = spec.merger.bulk_load_vetoes(config.shape)
        required = [field.name for field in config.schema if not field.nullable]
        columns = list(dict.fromkeys([*config.key, *required, *vetoes, FILE_COLUMN]))
        table = file.read(columns)
        texts = _long_texts(file, config.schema)
    buckets = pc.unique(table.column(FILE_COLUMN)).to_pylist()
    if _NO_BUCKET in buckets:
        return None
    nulls = {name: count for name in (*config.key, *required) if (count := table.column(name).null_count)}
    # A row that the merger takes for a delete may lack values. The kernel knows which rows these are.
    keyed = not any(name in nulls for name in config.key)
    if keyed and any(pc.any(pc.is_in(table.column(n), value_set=values)).as_py() for n, values in vetoes.items()):
        return None
    for name, count in nulls.items():
        role = "key column" if name in config.key else "NOT NULL column"
        return _Checked(None, -1, 0, f"{role} {name!r} is null in {count} row(s)")
    if len(group_starts(key_columns(table, config.key))) != table.num_rows:
        return None
    if not table.num_rows:
        return _Checked(None, -1, 0, None)
    # Spark's partition must be the bucket of its rows. That depends on Spark's planner, so it is checked.
    first = bucket_numbers([table.column(name).slice(0, 1) for name in config.key], spec.buckets).tolist()
    if buckets != first:
        _logger.warning("%s has rows of bucket %s, not of %s; they are loaded through the kernel", path, first, buckets)
        return None
    tag = BaseFile.tag(
        bucket=buckets[0],
        buckets=spec.buckets,
        lower=None,
        through=begin_version,
        ordinal=buckets[0],
        rows=table.num_rows,
        tombstones=None,
    )
    add = AddFile(
        path=path,
        partition_values={},
        size_bytes=size,
        modification_time_ms=now_ms,
        data_change=True,
        stats=file_statistics(footer, config.schema, partition_by=config.partition_by, texts=texts),
        tags={SLICE_TAG: tag},
    )
    return _Checked(add, buckets[0], table.num_rows, None)


def _long_texts(file: ParquetFile, schema: pa.Schema) -> dict[str, tuple[str, str]]:
    """The least and the greatest text of columns of whose bounds the footer lacks some."""
    found: dict[str, tuple[str, str]] = {}
    for name in texts_without_bounds(file.metadata, schema):
        for batch in file.iter_batches(_TEXT_ROWS, columns=[name]):
            if (part := text_bounds(batch.column(0), longer_than=-1)) is not None:
                low, high = found.get(name, part)
                found[name] = min(low, part[0]), max(high, part[1])
    return found


def _commit(write: Write, checked: Sequence[_Checked]) -> UpsertResult | None:
    adds = [file.add for file in checked if file.add is not None]
    if not adds:
        return None  # an empty frame: a version without files, made by the append path
    rows, size = sum(file.rows for file in checked), sum(add.size_bytes for add in adds)
    metrics = {"numSourceRows": rows, "numFiles": len(adds), "numOutputBytes": size}
    provenance = write.provenance.with_parameters(mode="load")
    outcome = commit_load(
        write.handle, write.begin, adds, provenance, metrics, buckets=write.pack.buckets, ordinals=write.pack.buckets
    )
    if isinstance(outcome, AlreadyDone):
        write.discard(ROWS_FOLDERS)
        return write.result(outcome.version, mode="repeated")
    return write.result(outcome.version, rows=rows, files=len(adds) + 1, size=size, mode="load")
