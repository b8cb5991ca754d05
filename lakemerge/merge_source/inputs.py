"""The datasets of a merge source, each at one version: their columns, and how to read their rows.

A plain Delta table can only be read whole: what changed in it is not known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemerge.delta import AddFile, Snapshot, read_vector
from lakemerge.errors import (
    FullRunNeededError,
    InputError,
    LakeMergeError,
    MergerContractError,
    NotATableError,
    VersionNotFoundError,
)
from lakemerge.format.operations import REPLACING, WRITING, Operation
from lakemerge.handle import Handle
from lakemerge.layout.partition import parse_partition_value
from lakemerge.merge_source.datasets import Dataset
from lakemerge.merge_source.ids import ids_of, keys_of
from lakemerge.merge_source.nested_arrays import Bools, contiguous
from lakemerge.options import Settings
from lakemerge.read.parquet.files import ParquetFiles, StoredFile
from lakemerge.schema.names import ColumnNames
from lakemerge.schema.schema import from_delta_json
from lakemerge.table.opening import open_handle
from lakemerge.table.table import LakeTable
from mergers import Merger

__all__ = ["RESERVED", "Access", "Input", "PlainTable", "Shape", "is_of_a_dataset", "open_input", "shape_of"]


RESERVED = frozenset({"_id", "$ids", "_deleted", "$replaced", "_updated", "_members", "$replaced_by", "$split_into"})
"""Columns that say something about an entity and are no properties."""

_KIND = "_row_kind"
_READING = "raised while rows of dataset "
_GET_KEYS = 100_000


@dataclass(frozen=True, slots=True)
class Access:
    """How to open tables that are given by path."""

    storage_options: Mapping[str, object] | None = field(default=None, repr=False)
    mergers: tuple[type[Merger], ...] = ()
    settings: Settings | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The roles of a dataset's columns."""

    schema: pa.Schema
    id_columns: tuple[str, ...]
    deleted: str | None
    """The column that marks deleted entities."""
    properties: tuple[str, ...]
    """Columns that go into the output, in order."""

    @property
    def ids(self) -> str | None:
        return next((name for name in self.schema.names if name.lower() == "$ids"), None)

    @property
    def replaced(self) -> str | None:
        """The column of another source's output that marks ids whose entities live on under another id."""
        for column in self.schema:
            if column.name.lower() == "$replaced" and pa.types.is_boolean(column.type):
                return str(column.name)
        return None

    def replaced_flags(self, rows: pa.Table) -> Bools:
        """Which rows are ids that have a successor in the same table: they are no entities."""
        if self.replaced is None:
            return np.zeros(rows.num_rows, dtype=np.bool_)
        return contiguous(rows.column(self.replaced)).fill_null(False).to_numpy(zero_copy_only=False)

    @property
    def kept(self) -> list[str]:
        """The columns that an entity adds to the output."""
        return [*([] if self.ids is None else [self.ids]), *self.properties]

    def deleted_flags(self, rows: pa.Table) -> Bools:
        """Which rows are marked as deleted."""
        if self.deleted is None:
            return np.zeros(rows.num_rows, dtype=np.bool_)
        return contiguous(rows.column(self.deleted)).fill_null(False).to_numpy(zero_copy_only=False)


def shape_of(dataset: Dataset, schema: pa.Schema, key: Sequence[str]) -> Shape:
    """The shape of a dataset. Raises :class:`InputError` if its rows cannot be entities."""
    names = {name.lower(): name for name in schema.names}
    wanted = dataset.id_columns or tuple(key) or tuple(name for name in ("_id",) if name in names)
    if unknown := [name for name in wanted if name.lower() not in names]:
        raise InputError(f"dataset {dataset.name!r} has no column {unknown[0]!r} for its id", dataset=dataset.name)
    id_columns = tuple(names[name.lower()] for name in wanted)
    if not id_columns:
        raise InputError(
            f"dataset {dataset.name!r} is a plain Delta table, which has no key: say Dataset(..., id=...)",
            dataset=dataset.name,
        )
    if key and sorted(id_columns) != sorted(key):
        raise InputError(
            f"the id of dataset {dataset.name!r} must be its key: {', '.join(key)}; rows are found by it",
            dataset=dataset.name,
        )
    if "_id" in names and id_columns != (names["_id"],):
        raise InputError(
            f"dataset {dataset.name!r} has a column _id that is not its id; rename it, or make it the key",
            dataset=dataset.name,
        )
    deleted = _deleted_column(dataset, schema, names)
    hidden = {*RESERVED, *([] if deleted is None else [deleted.lower()])}
    properties = tuple(name for name in schema.names if name.lower() not in hidden)
    return Shape(schema, id_columns, deleted, properties)


def _deleted_column(dataset: Dataset, schema: pa.Schema, names: Mapping[str, str]) -> str | None:
    found = names.get((dataset.deleted or "_deleted").lower())
    if found is None and dataset.deleted is None:
        return None
    if found is None or not pa.types.is_boolean(schema.field(found).type):
        raise InputError(
            f"dataset {dataset.name!r} has no BOOLEAN column {dataset.deleted or '_deleted'!r} for what is deleted",
            dataset=dataset.name,
        )
    return found


@contextlib.contextmanager
def _reading(one: Input) -> Iterator[None]:
    """Names the dataset in whatever a user's merger raises. The exception passes, as from any read of a table."""
    try:
        yield
    except MergerContractError as error:
        error.add_note(f"{_READING}{one.name!r} were read")
        raise
    except LakeMergeError:
        raise
    except Exception as error:
        merger = one.table.opened.view.config.merger_name if isinstance(one.table, LakeTable) else None
        folds = "" if merger is None else f", which the merger {merger!r} folds,"
        error.add_note(f"{_READING}{one.name!r}{folds} were read")
        raise


def is_of_a_dataset(error: BaseException) -> bool:
    """Whether the exception was raised while rows of a dataset were read, such as by its merger."""
    return any(note.startswith(_READING) for note in getattr(error, "__notes__", ()))


@dataclass(frozen=True, slots=True)
class Input:
    """A dataset at one version. A dataset that does not exist is empty."""

    offset: int
    dataset: Dataset
    table: LakeTable | PlainTable | None
    """The table at the version; ``None``: there is none."""
    shape: Shape | None

    @property
    def name(self) -> str:
        return str(self.dataset.name)

    @property
    def snapshot(self) -> Snapshot | None:
        if isinstance(self.table, PlainTable):
            return self.table.snapshot
        return None if self.table is None else self.table.opened.view.snapshot

    @property
    def version(self) -> int | None:
        return None if self.table is None else self.table.version

    @property
    def table_id(self) -> str | None:
        return None if self.snapshot is None else self.snapshot.metadata.id

    @property
    def restore_epoch(self) -> int:
        return self.table.opened.view.state.restore_epoch if isinstance(self.table, LakeTable) else 0

    @property
    def key(self) -> tuple[str, ...]:
        return self.table.key if isinstance(self.table, LakeTable) else ()

    @property
    def ids_are_key(self) -> bool:
        """Whether the ids are the key of a table that has each key once, in types whose values differ as texts do."""
        if self.shape is None:
            return True
        kinds = [self.shape.schema.field(name).type for name in self.shape.id_columns]
        plain = all(pa.types.is_string(kind) or pa.types.is_integer(kind) for kind in kinds)
        return plain and set(self.key) == set(self.shape.id_columns)

    @property
    def stored_bytes(self) -> int:
        """About how many bytes a reading of all rows takes from the store."""
        if isinstance(self.table, LakeTable):
            return sum(file_slice.stored_bytes for file_slice in self.table.opened.view.file_slices)
        return 0 if self.table is None else sum(add.size_bytes for add in self.table.snapshot.files.values())

    @property
    def is_filled(self) -> bool:
        """Whether anybody has ever written to it, even if it was no rows."""
        if isinstance(self.table, PlainTable):
            return bool(self.table.version or self.table.snapshot.files)
        if self.table is None:
            return False
        if not self.table.opened.view.is_empty:
            return True
        # It has no rows now, but it counts as filled if it was written to before. Commits that were cleaned up count as
        # writes. Notes of jobs on their files, and what was written before the table was replaced, do not.
        for entry in self.table.history():
            is_note = entry.operation == Operation.INGEST and "numSourceRows" not in entry.metrics
            if entry.operation in WRITING and not is_note:
                return True
            if entry.operation == Operation.CONVERT:
                return entry.version > 1  # as of a plain table
            if entry.version == 0 or entry.operation in REPLACING:
                return False
        return True

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows in tables of bounded size. The named columns must include those of the id."""
        if self.table is None or self.shape is None:
            return
        names = list(dict.fromkeys([*self.shape.id_columns, *columns]))
        if isinstance(self.table, PlainTable):
            for table in self.table.scan(names):
                self._check_ids(table, self.shape)
                yield table
            return
        with _reading(self):
            batches = iter(self.table.scan(columns=names))
        while True:
            with _reading(self):
                batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def _check_ids(self, rows: pa.Table, shape: Shape) -> None:
        for name in shape.id_columns:
            if nulls := rows.column(name).null_count:
                raise InputError(
                    f"column {name!r} of dataset {self.name!r} is null in {nulls} row(s); an id must not be",
                    dataset=self.name,
                )

    def find(self, ids: pa.Array, columns: Sequence[str]) -> tuple[pa.Array, pa.Table]:
        """The rows of some entities, in no particular order, and their ids."""
        if self.table is None or self.shape is None or not len(ids):
            return pa.array([], pa.string()), pa.table({})
        names = list(dict.fromkeys([*self.shape.id_columns, *columns]))
        if isinstance(self.table, PlainTable):
            return _sought(self.table.scan(names), ids, self.shape)
        found = []
        for start in range(0, len(ids), _GET_KEYS):
            keys = keys_of(ids.slice(start, _GET_KEYS), self.shape.id_columns, self.shape.schema)
            with _reading(self):
                found.append(self.table.get(keys, columns=names))
        rows = pa.concat_tables(found).combine_chunks()
        return ids_of(rows, self.shape.id_columns), rows

    def earlier(self, version: int) -> Input:
        """The dataset at an earlier version. Raises :class:`VersionNotFoundError`."""
        if self.table is None:
            raise InputError(f"dataset {self.name!r} is not there")
        if isinstance(self.table, PlainTable):
            plain = self.table.at(version)
            return Input(self.offset, self.dataset, plain, shape_of(self.dataset, plain.schema, ()))
        handle = self.table.opened.handle
        before = LakeTable(handle, handle.log.snapshot(version=version), pinned=True, spark=None)
        return Input(self.offset, self.dataset, before, shape_of(self.dataset, before.schema, before.key))

    def changes(self, since: int) -> Iterator[tuple[pa.Table, pa.Array]]:
        """The rows that commits after a version changed, as each left them, and whether the row was deleted; in order.

        :raises lakemerge.FullRunNeededError: that version cannot be read any more.
        """
        if self.table is None or self.version == since:
            return
        if isinstance(self.table, PlainTable):
            raise FullRunNeededError(
                f"dataset {self.name!r} is a plain Delta table, which does not tell what changed. Run with full=True",
                dataset=self.name,
            )
        for batch in self._changed(self.table, since):
            kinds = batch.column(batch.schema.get_field_index(_KIND))
            kept = pc.not_equal(kinds, "-U")
            rows = pa.Table.from_batches([batch]).filter(kept)
            if rows.num_rows:
                yield rows, pc.equal(contiguous(rows.column(_KIND)), "-D")

    def _changed(self, table: LakeTable, since: int) -> Iterator[pa.RecordBatch]:
        try:
            with _reading(self):
                batches = iter(table.changes(since))
            while True:
                with _reading(self):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch
        except VersionNotFoundError as error:
            raise FullRunNeededError(
                f"what changed in dataset {self.name!r} since version {since} is no longer known: "
                f"{error.message}. Run with full=True",
                dataset=self.name,
                version=since,
            ) from error


def _sought(tables: Iterator[pa.Table], ids: pa.Array, shape: Shape) -> tuple[pa.Array, pa.Table]:
    found = []
    for table in tables:
        there = pc.is_in(ids_of(table, shape.id_columns), value_set=ids)
        found.append(table.filter(there))
    rows = pa.concat_tables(found).combine_chunks() if found else pa.table({})
    return (ids_of(rows, shape.id_columns), rows) if found else (pa.array([], pa.string()), rows)


def open_input(offset: int, dataset: Dataset, access: Access) -> Input:
    """The dataset at its latest version."""
    table = dataset.table if isinstance(dataset.table, LakeTable) else _opened(dataset, access)
    if table is None:
        return Input(offset, dataset, None, None)
    if isinstance(table, PlainTable):
        return Input(offset, dataset, table, shape_of(dataset, table.schema, ()))
    # A table that follows the tip is pinned while a run reads it.
    pinned = LakeTable(table.opened.handle, table.opened.view.snapshot, pinned=True, spark=None)
    return Input(offset, dataset, pinned, shape_of(dataset, pinned.schema, pinned.key))


def _opened(dataset: Dataset, access: Access) -> LakeTable | PlainTable | None:
    options = access.storage_options if dataset.storage_options is None else dataset.storage_options
    try:
        return LakeTable.open(dataset.url, storage_options=options, mergers=access.mergers, settings=access.settings)
    except NotATableError:
        handle = open_handle(dataset.url, options, (), access.settings)
        return PlainTable.latest(handle) if handle.log.exists() else None


@dataclass(frozen=True, slots=True)
class PlainTable:
    """A plain Delta table at one version. Features that this library cannot read are refused by name."""

    handle: Handle
    snapshot: Snapshot

    @staticmethod
    def latest(handle: Handle) -> PlainTable:
        return PlainTable(handle, handle.log.snapshot())

    def at(self, version: int) -> PlainTable:
        return PlainTable(self.handle, self.handle.log.snapshot(version=version))

    @property
    def url(self) -> str:
        return self.handle.store.url

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def schema(self) -> pa.Schema:
        return self._read[0]

    @property
    def _read(self) -> tuple[pa.Schema, ColumnNames]:
        metadata = self.snapshot.metadata
        return ColumnNames.read(from_delta_json(metadata.schema_string), metadata.configuration, metadata.id)

    def scan(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The named columns of all rows, in tables of bounded size."""
        schema = pa.schema([self.schema.field(name).with_nullable(True) for name in columns])
        partition, names = self.snapshot.metadata.partition_columns, self._read[1]
        stored = pa.schema([field for field in schema if field.name not in partition])
        for add in self.snapshot.files.values():
            # Files lack the partition columns, but a file has to be read to know how many rows it has.
            asked = stored if len(stored) else self._any_column(partition)
            with ParquetFiles(self.handle.store) as files:
                file = StoredFile(add.path, add.size_bytes)
                budget = self.handle.settings.merge_budget_bytes
                gone = None if add.vector is None else ~read_vector(self.handle.store, add.vector)
                for table, first, _ in files.stream(file, schema=asked, names=names, budget_bytes=budget):
                    left = table if gone is None else _left(table, gone[first : first + table.num_rows])
                    yield _with_partition(left, schema, add, names)

    def _any_column(self, partition: Sequence[str]) -> pa.Schema:
        return pa.schema([next(field for field in self.schema if field.name not in partition)])


def _left(table: pa.Table, kept: Bools) -> pa.Table:
    """The rows that a deletion vector leaves. It may end before the table's rows do."""
    if kept.all():
        return table
    mask = np.ones(table.num_rows, dtype=np.bool_)
    mask[: len(kept)] = kept
    return table.filter(pa.array(mask))


def _with_partition(table: pa.Table, schema: pa.Schema, add: AddFile, names: ColumnNames) -> pa.Table:
    columns = []
    for column in schema:
        if names.of(column.name) in add.partition_values:
            text = add.partition_values[names.of(column.name)]
            value = None if text is None else parse_partition_value(text, column.type)
            columns.append(pa.array([value], column.type).take(pa.array(np.zeros(table.num_rows, dtype=np.int64))))
        else:
            columns.append(table.column(column.name))
    return pa.table(columns, schema=schema)
