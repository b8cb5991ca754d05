"""Point look-ups: the rows of some keys. For each key, only its bucket and row groups that can hold it are read."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import FrameError, InputError, LakeMergeError
from lakemerge.format.config import TableConfig
from lakemerge.frames import as_reader, check_sound, collected
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.filter.prune import file_slices_of_keys
from lakemerge.read.merge import merge_file_slice
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.read.scan import asked_columns
from lakemerge.read.sources import MergeSpec
from lakemerge.schema.casts import castable, safe_cast
from lakemerge.storage import LocalStore
from mergers.keys import group_starts, key_columns, locate, sort_order
from mergers.portions import gather, together
from mergers.type_names import type_name

__all__ = ["find_rows", "footers_ahead", "look_up", "sorted_keys"]

_AHEAD_FILES: Final = 16
"""The footers of so many files are requested ahead, at most."""


def look_up(handle: Handle, view: TableView, keys: object, columns: Sequence[str] | None) -> pa.Table:
    """The rows whose key is among ``keys``; see :meth:`lakemerge.LakeTable.get`."""
    wanted = sorted_keys(keys, view.config)
    names = asked_columns(view, columns)
    if not names:
        raise InputError("a look-up asks for at least one column")
    return find_rows(handle, view, wanted, names)


@contextmanager
def footers_ahead(handle: Handle, view: TableView, keys: object) -> Iterator[None]:
    """Request the footers that a look-up in this version reads, while the block finds out whether there is a newer one.
    Mostly there is none, and the look-up has waited for one request less. In a local folder nothing is won.

    :param keys: as for :func:`look_up`. Those of frames are not looked at: some frames can be read only once.
    """
    if isinstance(handle.store, LocalStore) or not isinstance(keys, list):
        yield
        return
    try:
        file_slices = file_slices_of_keys(view, sorted_keys(keys, view.config), exact=True)
    except LakeMergeError:  # the look-up itself says so
        yield
        return
    stored = [StoredFile(each.base.add.path, each.base.add.size_bytes) for each in file_slices if each.base is not None]
    unknown = [file for file in stored if handle.footers.get(file.path) is None][:_AHEAD_FILES]
    with thread_pool(max(1, len(unknown))) as pool:
        for file in unknown:
            pool.submit(_keep_footer, handle, file)
        yield


def _keep_footer(handle: Handle, file: StoredFile) -> None:
    """If it fails, the look-up asks once more, and tells why."""
    with ParquetFiles(handle.store, handle.footers) as files:
        files.footer(file)


def find_rows(handle: Handle, view: TableView, wanted: pa.Table, names: Sequence[str]) -> pa.Table:
    """The named columns of the rows whose keys are wanted.

    :param wanted: the key columns in the table's types, sorted by key, each key once.
    """
    config = view.config
    spec = MergeSpec.of(handle, view)
    file_slices = file_slices_of_keys(view, wanted, exact=True)
    schema = pa.schema([config.schema.field(name) for name in names])

    def rows_of(file_slice: FileSlice) -> list[pa.Table]:
        return [found.select(names).cast(schema) for found in _matches(spec, handle, file_slice, wanted, names)]

    with thread_pool(handle.settings.threads) as pool:
        return pa.concat_tables(
            [schema.empty_table(), *(table for part in pool.map(rows_of, file_slices) for table in part)]
        )


def _matches(
    spec: MergeSpec, handle: Handle, file_slice: FileSlice, wanted: pa.Table, names: Sequence[str]
) -> Iterator[pa.Table]:
    key = spec.config.key
    sought = key_columns(wanted, key)
    with ParquetFiles(spec.store, handle.footers) as files:
        for part in merge_file_slice(spec, file_slice, columns={*names, *key}, sort=False, files=files):
            if part.rows.num_rows:
                _, found = locate(sought, key_columns(part.rows, key))
                yield part.rows.filter(pa.array(found))


def sorted_keys(keys: object, config: TableConfig) -> pa.Table:
    """The distinct keys in key order, in the table's types. Raises :class:`FrameError`."""
    given = _as_table(keys, config)
    unknown = [name for name in given.column_names if name not in config.key]
    missing = [name for name in config.key if name not in given.column_names]
    if unknown or missing:
        raise FrameError(
            f"a look-up needs the key column(s) {', '.join(config.key)} and no others"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; not in the key: {', '.join(unknown)}" if unknown else ""),
            columns=tuple(missing + unknown),
        )
    schema = pa.schema([config.schema.field(name) for name in config.key])
    for field in schema:
        column = given.column(field.name)
        if not castable(column.type, field.type):
            raise FrameError(
                f"key column {field.name!r} is {type_name(field.type)}, not {type_name(column.type)}", column=field.name
            )
        if column.null_count:
            raise FrameError(f"key column {field.name!r} is null in {column.null_count} key(s)", column=field.name)
    batches = together(given.select(list(config.key))).to_batches()
    table = pa.Table.from_batches([safe_cast(batch, schema) for batch in batches], schema=schema)
    ordered = gather(table, sort_order(key_columns(table, config.key)))
    return gather(ordered, group_starts(key_columns(ordered, config.key)))


def _as_table(keys: object, config: TableConfig) -> pa.Table:
    if isinstance(keys, Sequence) and all(isinstance(key, Mapping) for key in keys):
        rows = [dict(zip(_named(list(key), config), key.values(), strict=True)) for key in keys]
        names = list(dict.fromkeys([*config.key, *(name for row in rows for name in row)])) if rows else config.key
        fields = {name: config.schema.field(name).type for name in config.key}
        try:
            given = {
                n: pa.array([_plain(row[n], fields.get(n)) for row in rows if n in row], fields.get(n)) for n in names
            }
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise FrameError(f"the keys do not fit the table's key: {error}") from error
        for name in fields:
            _check_whole(name, [row[name] for row in rows if name in row], given[name])
        if any(len(column) not in (0, len(rows)) for column in given.values()):
            raise FrameError(f"every key needs the column(s) {', '.join(config.key)} and no others")
        return pa.table({n: column for n, column in given.items() if len(column) or not rows})
    keys = collected(keys)
    if hasattr(keys, "__arrow_c_stream__"):
        frame = as_reader(keys).read_all()
        check_sound(frame)
        return frame.rename_columns(_named(frame.column_names, config))
    raise FrameError(
        f"keys are a mapping of key columns to values, a list of such, or a pyarrow, pandas or polars frame, "
        f"not {type(keys).__name__}"
    )


def _plain(value: object, kind: pa.DataType | None) -> object:
    """A key's value, where a UUID is what a table holds of it: text, or its bytes."""
    if not isinstance(value, uuid.UUID):
        return value
    return value.bytes if kind == pa.binary() else str(value)


def _named(names: Sequence[object], config: TableConfig) -> list[str]:
    """Names in the table's spelling if they are key columns in any case. Others do not change. Raises
    :class:`FrameError`."""
    known = {name.lower(): name for name in config.key}
    found = [known.get(str(name).lower(), str(name)) for name in names]
    if twice := [name for place, name in enumerate(found) if name in found[:place]]:
        raise FrameError(f"a look-up names the column {twice[0]!r} twice", column=twice[0])
    return found


def _check_whole(name: str, values: Sequence[object], column: pa.Array) -> None:
    """Check that Arrow did not change a key: if an integer is needed, it turns 1.9 into 1, and it turns a time into a
    date.

    Raises :class:`FrameError`.
    """
    if not (pa.types.is_integer(column.type) or pa.types.is_date(column.type)):
        return
    for value, stored in zip(values, column.to_pylist(), strict=True):
        if value is not None and (value != stored or isinstance(value, dt.datetime)):
            raise FrameError(f"key column {name!r} is {type_name(column.type)}, and {value!r} is none", column=name)
