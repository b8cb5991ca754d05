"""The contract between a merger and everything that merges.

A merger folds the records of each key into that key's state. It never sees files, versions or buckets. It gets *groups*
(one for each key, with records in fold order), and returns one result for each group.
Source: docs/merge-semantics.md, sections 1 to 6.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mergers.errors import MergerConfigurationError
from mergers.laws import Laws
from mergers.option_fields import defaults_of, read_options, resolve_option_types, written_options
from mergers.traits import Traits

__all__ = ["Bools", "Groups", "Ints", "Kinds", "Merged", "Merger", "RowKind", "Status", "TableShape", "is_builtin"]

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Kinds = npt.NDArray[np.int8]


class RowKind(enum.IntEnum):
    """Row kinds with Flink's byte values; :attr:`symbol` is the short name users write."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def symbol(self) -> str:
        """As it stands in a kind column: ``+I``, ``-U``, ``+U`` or ``-D``."""
        return ("+I", "-U", "+U", "-D")[self]


class Status(enum.IntEnum):
    """The state of a key after its fold."""

    ABSENT = 0
    ROW = 1
    TOMBSTONE = 2
    """Deleted, and the ordering of the deleting record is remembered."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a merger may know about its table."""

    schema: pa.Schema
    key: tuple[str, ...]
    ordering: tuple[str, ...]
    remembers: tuple[str, ...] = ()
    """The columns that a tombstone has beside key and ordering; :meth:`Merger.remembers` names them."""
    values: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The columns that are not part of the key. Mergers ask for them once a column, so they are made once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(name for name in self.schema.names if name not in self.key))

    @property
    def standing(self) -> tuple[str, ...]:
        """The columns that every state has, also that of a deleted key: key, ordering and what is remembered."""
        return (*self.key, *self.ordering, *self.remembers)


@dataclass(frozen=True, slots=True)
class Groups:
    """Records of some keys, sorted by key and, within a key, in fold order.

    If a key has a stored state, it is the first record of its group: a row (kind ``UPDATE_AFTER``, every column set) or
    a tombstone (kind ``DELETE``, with the columns of :attr:`TableShape.standing`). All arrays except ``offsets`` have
    one entry for each record.
    """

    shape: TableShape
    offsets: Ints
    """Group ``i`` holds the records ``offsets[i]`` to ``offsets[i + 1]``, end excluded."""
    kinds: Kinds
    stored: Bools
    sources: npt.NDArray[np.int32]
    """Index into ``presence``."""
    presence: Sequence[frozenset[str]]
    """For each source, the columns that its records carry. Other columns are unset."""
    rows: pa.Table
    """The records in no particular order; use :meth:`column`."""
    order: Ints
    """Record ``i`` is row ``order[i]`` of ``rows``."""
    versions: Ints
    """The table version that committed each record; -1 if it is not committed yet; 0 for stored rows, which do not
    remember their version."""
    _taken: dict[str, pa.Array] = field(default_factory=dict)

    @property
    def sizes(self) -> Ints:
        """The number of records of each group."""
        return np.diff(self.offsets)

    def column(self, name: str) -> pa.Array:
        """The values of a column, one for each record; null if it is unset."""
        if name not in self._taken:
            values = self.rows.column(name)
            array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            self._taken[name] = array.take(pa.array(self.order))
        return self._taken[name]

    def values_at(self, names: Sequence[str], picks: Ints) -> dict[str, pa.Array]:
        """The values of the picked records in some columns. A value is null where the pick is -1."""
        rows = self.rows.select(names).take(pa.array(self.order[picks], mask=picks < 0))
        return {name: column.combine_chunks() for name, column in zip(names, rows.columns, strict=True)}

    def is_set(self, name: str) -> Bools | None:
        """Which records carry the column; ``None`` if all do. Tombstones carry :attr:`TableShape.standing`."""
        carried = np.array([name in columns for columns in self.presence], dtype=np.bool_)
        return None if carried.all() else carried[self.sources]

    @property
    def has_ordering(self) -> Bools:
        """Which records carry every ordering column."""
        needed = frozenset(self.shape.ordering)
        carried = np.array([needed <= columns for columns in self.presence], dtype=np.bool_)
        return carried[self.sources]


@dataclass(frozen=True, slots=True)
class Merged:
    """The state of each key after its group was folded. Arrays have one entry for each group."""

    status: Kinds
    """Values of :class:`Status`."""
    winner: Ints
    """For a row: the record that gives every column that is not in ``columns``. For a tombstone: the record whose
    ordering is remembered. For an absent key it is ignored."""
    columns: Mapping[str, pa.Array] = field(default_factory=dict)
    """The values, for all groups, of columns that do not come from ``winner``. A tombstone takes remembered columns
    from here, too."""
    setters: Ints | None = None
    """For a tombstone: the record that set it, which says when it is forgotten. ``None``: it is ``winner``."""


def is_builtin(merger: Merger) -> bool:
    """Whether the class is one of the library's own."""
    return type(merger).__module__.startswith("mergers.builtin.")


class Merger(ABC):
    """One meaning of "merge": a strategy id, typed options, and a fold over groups.

    ``id`` is a UUID that tables store. It never changes, and never changes its meaning. Instances are immutable and
    picklable. Options are the fields of a frozen dataclass, unless a class reads them in its own way.
    """

    id: ClassVar[str]
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        earlier = sorted({each.name for each in fields(Traits)} & vars(cls).keys())
        if earlier:
            raise TypeError(f"{cls.__name__} defines {', '.join(earlier)}: return Traits(...) from traits() instead")
        resolve_option_types(cls)

    @classmethod
    def from_options(cls, options: Mapping[str, object], shape: TableShape) -> Self:
        """Build a merger from the options in the table's configuration (JSON values).

        Raises a :class:`mergers.errors.MergerConfigurationError` that lists every problem.
        """
        merger, problems = read_options(cls, options)
        if merger is not None:
            problems = tuple(merger.problems(shape))
        if merger is None or problems:
            message = f"merger {cls.name!r} cannot be configured: {'; '.join(problems)}"
            raise MergerConfigurationError(message, merger=cls.name, problems=problems)
        return merger

    @classmethod
    def known_options(cls) -> Mapping[str, object]:
        """Every option that :meth:`from_options` takes, with its default as a JSON value, or
        :data:`mergers.option_fields.REQUIRED`. A class that reads its options in its own way names them here."""
        return defaults_of(cls)

    def options(self) -> Mapping[str, object]:
        """The options as JSON values; ``from_options(options())`` gives an equal merger."""
        return written_options(self)

    def shown_options(self) -> Mapping[str, object]:
        """The options as people gave them, for messages."""
        return self.options()

    @classmethod
    def renamed_options(cls, options: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
        """The options of the same merger, after columns got other names.

        Here they stay as they are. A table whose merger's class does not define this method itself refuses to rename or
        drop columns, because the code of the class may know their names.

        :param options: as :meth:`options` gives them.
        :param names: former name -> new name. A class changes these names wherever an option names a column.
        """
        return options

    def problems(self, shape: TableShape) -> Iterable[str]:
        """What is wrong with the options for such a table, a sentence for each problem. It is called after the types of
        the options are checked."""
        return ()

    def laws(self, shape: TableShape, *, full_frames: bool) -> Laws:
        """The laws of this configuration. ``full_frames``: all upsert frames carry all columns."""
        return Laws()

    def needs(self, shape: TableShape, columns: Collection[str]) -> frozenset[str]:
        """The columns that the fold must see to compute ``columns``. Key, ordering and remembered columns are always
        given. The answer for these columns is no more than they are: a fold may be continued from a state that has only
        them."""
        return frozenset(shape.schema.names)

    def remembers(self, shape: TableShape) -> tuple[str, ...]:
        """The columns that a deleted key must remember beside its ordering, so that late records stay out."""
        return ()

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:  # noqa: B027 - a hook
        """Refuse record kinds that this configuration does not accept. It is called before anything is committed.

        Raises :class:`mergers.errors.RecordRefusedError`.
        """

    def check_records(self, shape: TableShape, rows: pa.RecordBatch, kinds: Kinds | None) -> None:  # noqa: B027 - a hook
        """Refuse records whose values this configuration cannot fold. It is called before anything is committed.

        ``rows``: records of a frame, with the table's types; ``kinds``: ``None`` if all are upserts.
        Raises :class:`mergers.errors.RecordRefusedError`.
        """

    def traits(self, shape: TableShape) -> Traits:
        """What this configuration is, for plans."""
        return Traits()

    def delete_marks(self, shape: TableShape) -> Mapping[str, pa.Array]:
        """Column -> the values that turn an upsert into a delete. Such a record is not checked for NOT NULL."""
        return {}

    def may_delete(self, shape: TableShape, columns: Collection[str]) -> bool:
        """Whether an upsert that carries these columns may be taken for a delete, whatever row it meets."""
        return not self.delete_marks(shape).keys().isdisjoint(columns)

    def marks(self, shape: TableShape, rows: pa.RecordBatch) -> Bools | None:
        """Which upserts are taken for deletes, whatever row they meet; ``None`` if none is. They are not checked for
        NOT NULL.

        ``rows``: records of a frame, with the table's types.
        """
        found: Bools | None = None
        for name, values in self.delete_marks(shape).items():
            if name in rows.schema.names:
                own = pc.is_in(rows.column(name), value_set=values).to_numpy(zero_copy_only=False)
                found = own if found is None else found | own
        return found

    def bulk_load_vetoes(self, shape: TableShape) -> Mapping[str, pa.Array]:
        """Column -> values with which a lone upsert does not give its own row."""
        return self.delete_marks(shape)

    def describe_step(
        self, shape: TableShape, *, before: Mapping[str, object] | None, record: Mapping[str, object], kind: RowKind
    ) -> Mapping[str, str]:
        """Words for people about one record. They decide nothing. For each column they say what is computed from the
        stored value and the record's, such as ``total is sum 7 + 3``; under ``""`` there may be a remark.

        :param before: the row before the record, as ``pa.Table.to_pylist`` gives it.
        :param record: the columns that the record carries.
        """
        return {}

    @abstractmethod
    def merge_groups(self, groups: Groups) -> Merged:
        """Fold each group from its first record to its last."""

    def combine(self, groups: Groups) -> Bools | None:
        """Which records, all with one set of columns, to keep so that the fold over any stored state stays the same,
        also if the state has taken up a group's first few records already.

        It is called only if :meth:`laws` declares the fold associative. ``None`` keeps all.
        """
        return None

    def unites(self, shape: TableShape, columns: Collection[str]) -> bool:
        """Whether neighbours of one commit, upserts of one key with these columns, may become the one record that they
        make where the key has no row. It is used only if :meth:`laws` declares the fold associative. Source:
        docs/merge-semantics.md, 6.7."""
        return False
