"""The calls that make a merge, with Delta's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakemerge._internal.arguments import checked
from lakemerge.errors import InputError
from lakemerge.results.results import UpsertResult
from lakemerge.transactions.clauses import Clause, Side

__all__ = ["MergeBuilder"]

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MergeBuilder:
    """A merge that is being put together. Each call gives a builder with one more clause; :meth:`execute` runs it.

    Clauses are tried in the order of the calls: the first one of its kind whose condition is true acts on a row. In
    conditions and values, ``target`` is the table's row and ``source`` the source's. Names are those of Delta's
    ``DeltaMergeBuilder``.
    """

    run: Callable[[Sequence[Clause]], UpsertResult]
    clauses: tuple[Clause, ...] = ()

    @checked
    def whenMatchedUpdate(self, condition: str | None = None, set: Values | None = None) -> MergeBuilder:  # noqa: A002, N802
        """Set columns of rows that a source row matches. ``set``: column -> SQL expression, or a plain value."""
        return self._with("matched", "update", condition, _needed(set, "set"))

    @checked
    def whenMatchedUpdateAll(self, condition: str | None = None) -> MergeBuilder:  # noqa: N802
        """Set all columns of rows that a source row matches, from the source's columns of the same names."""
        return self._with("matched", "update", condition, None)

    @checked
    def whenMatchedDelete(self, condition: str | None = None) -> MergeBuilder:  # noqa: N802
        """Delete rows that a source row matches."""
        return self._with("matched", "delete", condition, None)

    @checked
    def whenNotMatchedInsert(self, condition: str | None = None, values: Values | None = None) -> MergeBuilder:  # noqa: N802
        """Insert a row for each source row that matches none. Columns without a value are null."""
        if values is None:
            raise InputError("the clause needs values={column: value, ...}; those of the key may be left out")
        return self._with("not matched", "insert", condition, values)

    @checked
    def whenNotMatchedInsertAll(self, condition: str | None = None) -> MergeBuilder:  # noqa: N802
        """Insert a row for each source row that matches none, from the source's columns of the same names."""
        return self._with("not matched", "insert", condition, None)

    @checked
    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: str | None = None,
        set: Values | None = None,  # noqa: A002
    ) -> MergeBuilder:
        """Set columns of the table's rows that no source row matches. All of the table is read."""
        return self._with("not matched by source", "update", condition, _needed(set, "set"))

    @checked
    def whenNotMatchedBySourceDelete(self, condition: str | None = None) -> MergeBuilder:  # noqa: N802
        """Delete the table's rows that no source row matches. All of the table is read."""
        return self._with("not matched by source", "delete", condition, None)

    def execute(self) -> UpsertResult:
        """Run the merge as one transaction.

        :raises lakemerge.FilterError: a condition or value is not understood, or the condition of the merge does not
            compare the whole key.
        :raises lakemerge.InputError: several source rows match one row, or would be inserted under one key.
        :raises lakemerge.CommitConflictError: other writers kept changing the same keys.
        """
        if not self.clauses:
            raise InputError("a merge needs at least one clause, such as .whenMatchedUpdateAll()")
        return self.run(self.clauses)

    def _with(self, side: Side, action: Any, condition: str | None, values: Values | None) -> MergeBuilder:
        return replace(self, clauses=(*self.clauses, Clause(side, action, condition, values)))


def _needed(values: Values | None, name: str) -> Values:
    if not values:
        raise InputError(f"the clause needs {name}={{column: value, ...}}")
    return values
