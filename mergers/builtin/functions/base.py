"""What an aggregate function is: a left fold of one column, over all groups at once.

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

__all__ = ["ColumnEvents", "Function"]


@dataclass(frozen=True, slots=True)
class ColumnEvents:
    """What records do to one column. Masks have one entry a record.

    The accumulator of a group starts as null. A stored row is an addition, newer than nothing.
    """

    groups: Groups
    segments: Segments
    column: str
    adds: Bools
    """Records that add their value: ``agg(acc, x)`` where newer, else ``agg(x, acc)``."""
    retracts: Bools
    """Records that take their value back."""
    newer: Bools
    first: Bools
    """Additions before which nothing was folded; the stored one is."""
    values: pa.Array

    @property
    def filled(self) -> Bools:
        """Records whose value is not null."""
        return self.values.is_valid().to_numpy(zero_copy_only=False)

    @property
    def front_to_back(self) -> Ints:
        """A rank a record, ascending in the order in which values stand: an older one goes in front of
        all that came before it, a newer one behind."""
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
                f"the {function} of column {self.column!r} for key {key} does not fit {kind}, so the row cannot be "
                "read or compacted. Nothing is lost: a record that brings the total back into range makes it readable.",
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
    """For people: the types it takes."""
    retractable: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    associative: ClassVar[bool] = True
    idempotent: ClassVar[bool] = False
    """Adding the same value again changes nothing, wherever it comes."""
    keeps_lone: ClassVar[bool] = True
    """Any single value added to nothing is the result, as it is; :meth:`check_additions` refuses none."""
    blanks: ClassVar[bool] = False
    """Values that are not null may come to null when they are added."""
    forgets: ClassVar[bool] = False
    """A retraction may leave null where there was a value."""

    kind: pa.DataType = field(default_factory=pa.null)

    @classmethod
    @abstractmethod
    def takes(cls, kind: pa.DataType) -> bool: ...

    @classmethod
    def build(cls, kind: pa.DataType, options: Mapping[str, object]) -> Function:
        """Raises :class:`ValueError` that says what is wrong with the options."""
        if options:
            raise ValueError(f"{cls.name} has no option {', '.join(map(repr, sorted(options)))}")
        return cls(kind)

    def check_additions(self, values: pa.Array) -> str | None:
        """Why values of a frame cannot be added; ``None`` where they can. Called before a commit."""
        return None

    def check_retractions(self, values: pa.Array) -> str | None:
        """Why values of a frame cannot be taken back; ``None`` where they can. Called before a commit."""
        return None

    @abstractmethod
    def fold(self, events: ColumnEvents) -> pa.Array:
        """The accumulator of every group. Raises :class:`MergeOverflowError`."""
