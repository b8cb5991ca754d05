"""The contract of an aggregate function: a left fold of one column, over all groups at once.

Source: the table in docs/merge-semantics.md, section 5, ``aggregate``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa

from mergers.builtin.segments import Segments
from mergers.contract import Bools, Groups, Ints
from mergers.errors import MergeOverflowError, MergeValueError
from mergers.type_names import type_name

__all__ = ["ColumnEvents", "Function", "list_offsets"]

_MOST_ELEMENTS = 2**31 - 1


def list_offsets(counts: Ints) -> pa.Array:
    """The offsets of lists or maps with so many elements each.

    Raises ``pa.ArrowCapacityError``, as Arrow does, if one array cannot hold all of them. The kernel then folds fewer
    keys at a time.
    """
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if ends[-1] > _MOST_ELEMENTS:
        raise pa.ArrowCapacityError(f"array cannot contain more than {_MOST_ELEMENTS} elements, have {ends[-1]}")
    return pa.array(ends.astype(np.int32))


@dataclass(frozen=True, slots=True)
class ColumnEvents:
    """What records do to one column. Masks have one entry for each record.

    The accumulator of a group starts as null. A stored row counts as an addition that is newer than nothing.
    """

    groups: Groups
    segments: Segments
    column: str
    adds: Bools
    """Records that add their value: ``agg(acc, x)`` if newer, else ``agg(x, acc)``."""
    retracts: Bools
    """Records that take their value back."""
    newer: Bools
    first: Bools
    """Additions before which nothing was folded. A stored row is one."""
    values: pa.Array

    @property
    def filled(self) -> Bools:
        """Records whose value is not null."""
        return self.values.is_valid().to_numpy(zero_copy_only=False)

    @property
    def front_to_back(self) -> Ints:
        """A rank for each record, in the order in which values stand. An older record goes in front of all records
        before it, a newer one behind them."""
        return np.where(self.newer, self.segments.index, ~self.segments.index)

    def key_of(self, group: int) -> dict[str, object]:
        row = pa.array([self.groups.order[self.segments.starts[group]]])
        return {name: self.groups.rows.column(name).take(row)[0].as_py() for name in self.groups.shape.key}

    def overflow(self, outside: Bools, function: str) -> None:
        """Raise :class:`MergeOverflowError` for the first group in the mask, if there is one."""
        if outside.any():
            key = self.key_of(int(np.argmax(outside)))
            kind = self.groups.shape.schema.field(self.column).type
            raise MergeOverflowError(
                f"the {function} of column {self.column!r} for key {key} does not fit {type_name(kind)}, so the row "
                "cannot be read or compacted. Nothing is lost: a record that brings the total back into range makes it "
                "readable.",
                key=key,
                column=self.column,
                keys=int(outside.sum()),
            )

    def unusable(self, record: int, problem: str) -> MergeValueError:
        """The error for a value that its function cannot fold."""
        key = self.key_of(int(self.segments.group[record]))
        return MergeValueError(
            f"column {self.column!r} holds a value for key {key} that cannot be merged: {problem}",
            key=key,
            column=self.column,
        )


@dataclass(frozen=True, slots=True)
class Function(ABC):
    """One function on one column."""

    name: ClassVar[str]
    types: ClassVar[str]
    """The types that it takes, for people."""
    retractable: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    associative: ClassVar[bool] = True
    unites: ClassVar[bool] = False
    """Whether neighbours of one commit may become the one value that they make (docs/merge-semantics.md, 6.7)."""
    idempotent: ClassVar[bool] = False
    """Whether adding the same value again changes nothing, wherever it comes."""
    keeps_lone: ClassVar[bool] = True
    """Whether a single value added to nothing is the result unchanged, and :meth:`check_additions` refuses no value."""
    blanks: ClassVar[bool] = False
    """Whether adding values that are not null may give null."""
    waits: ClassVar[bool] = False
    """Whether an older value leaves null where nothing was folded."""
    forgets: ClassVar[bool] = False
    """Whether a retraction may turn a value into null."""

    kind: pa.DataType = field(default_factory=pa.null)

    @classmethod
    @abstractmethod
    def takes(cls, kind: pa.DataType) -> bool: ...

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Function:
        """The function. Raises a :class:`ValueError` that says what is wrong with the options."""
        if options:
            raise ValueError(f"{cls.name} has no option {', '.join(map(repr, sorted(options)))}")
        return cls(kind)

    def check_additions(self, values: pa.Array) -> str | None:
        """Why values of a frame cannot be added; ``None`` if they can. Called before a commit."""
        return None

    def check_retractions(self, values: pa.Array) -> str | None:
        """Why values of a frame cannot be taken back; ``None`` if they can. Called before a commit."""
        return None

    @abstractmethod
    def fold(self, events: ColumnEvents) -> pa.Array:
        """The accumulator of every group. Raises :class:`MergeOverflowError`."""
