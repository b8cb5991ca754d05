"""The calls that make a merge, with Delta's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from lakemerge._internal.arguments import checked, mapping, shown
from lakemerge.errors import InputError
from lakemerge.events import observed
from lakemerge.frames import is_spark_column
from lakemerge.results.writes import TransactionPlan, UpsertResult
from lakemerge.transactions.clauses import Clause, Side, check_order
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["MergeBuilder"]

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MergeBuilder:
    """A merge that is being put together. Each call gives a builder with one more clause; :meth:`execute` runs it.

    There are clauses of three kinds: for rows of the table that a source row matches, for source rows that match none,
    and for rows of the table that no source row matches. Within a kind they are tried in the order of the calls, and
    the first one whose condition is true acts on a row. Only the last one of a kind may leave the condition out. Names
    and parameters are those of Delta's ``DeltaMergeBuilder``.

    In conditions and values, ``target`` is the table's row and ``source`` the source's, unless the merge has other
    aliases. They are SQL text; with a source on Spark, a ``Column``, too. A value that is neither is taken as it is.
    """

    url: str
    """The URL of the table."""
    run: Callable[[Sequence[Clause], bool, bool], UpsertResult | TransactionPlan]
    evolves: bool = False
    clauses: tuple[Clause, ...] = ()

    @checked
    def whenMatchedUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Values | None = None,  # noqa: A002
    ) -> MergeBuilder:
        """Set columns of rows that a source row matches. ``set``: column -> SQL expression, or a plain value."""
        return self._with("matched", "update", condition, _needed(set, "set"))

    @checked
    def whenMatchedUpdateAll(self, condition: str | Column | None = None) -> MergeBuilder:  # noqa: N802
        """Set all columns of rows that a source row matches, from the source's columns of the same names."""
        return self._with("matched", "update", condition, None)

    @checked
    def whenMatchedDelete(self, condition: str | Column | None = None) -> MergeBuilder:  # noqa: N802
        """Delete rows that a source row matches."""
        return self._with("matched", "delete", condition, None)

    @checked
    def whenNotMatchedInsert(  # noqa: N802
        self, condition: str | Column | None = None, values: Values | None = None
    ) -> MergeBuilder:
        """Insert a row for each source row that matches none. Columns without a value are null, those of the key have
        the values that the merge compares."""
        if values is None:
            raise InputError(
                f"the clause needs {argument('values', '{column: value, ...}')}; those of the key may be left out"
            )
        return self._with("not matched", "insert", condition, values)

    @checked
    def whenNotMatchedInsertAll(self, condition: str | Column | None = None) -> MergeBuilder:  # noqa: N802
        """Insert a row for each source row that matches none, from the source's columns of the same names."""
        return self._with("not matched", "insert", condition, None)

    @checked
    def whenNotMatchedBySourceUpdate(  # noqa: N802
        self,
        condition: str | Column | None = None,
        set: Values | None = None,  # noqa: A002
    ) -> MergeBuilder:
        """Set columns of the table's rows that no source row matches. All of the table is read."""
        return self._with("not matched by source", "update", condition, _needed(set, "set"))

    @checked
    def whenNotMatchedBySourceDelete(self, condition: str | Column | None = None) -> MergeBuilder:  # noqa: N802
        """Delete the table's rows that no source row matches. All of the table is read."""
        return self._with("not matched by source", "delete", condition, None)

    def withSchemaEvolution(self) -> MergeBuilder:  # noqa: N802
        """Add columns that only the source has to the table, as nullable ones, in the same commit: all of them if a
        clause takes all columns, else those that a clause sets by the same name. ``whenMatchedUpdateAll`` then leaves
        columns as they are that the source lacks, and ``whenNotMatchedInsertAll`` makes them null. It is the
        same as ``merge_schema=True``."""
        return replace(self, evolves=True)

    @overload
    def execute(self, *, explain: Literal[False] = False) -> UpsertResult: ...

    @overload
    def execute(self, *, explain: Literal[True]) -> TransactionPlan: ...

    @partial(observed, operation="merge")
    @checked
    def execute(self, *, explain: bool = False) -> UpsertResult | TransactionPlan:
        """Run the merge as one transaction.

        :param explain: only say what it would do: rows that match, are updated, deleted and inserted, and what would be
            written. All checks are made, and nothing is written.
        :raises lakemerge.FilterError: a condition or value is not understood, or the condition of the merge does not
            compare the whole key.
        :raises lakemerge.FrameError: a column cannot be set, or the source lacks columns.
        :raises lakemerge.InputError: several source rows match one row, or would be inserted under one key; or no row
            can reach a clause.
        :raises lakemerge.CommitConflictError: other writers kept changing the same keys.
        """
        check_order(self.clauses)
        return self.run(self.clauses, self.evolves, explain)

    def _with(self, side: Side, action: Any, condition: Any, values: Values | None) -> MergeBuilder:
        if not (condition is None or isinstance(condition, str) or is_spark_column(condition)):
            raise InputError(
                f"{argument('condition')} is SQL text, or a Column of Spark, not {shown(condition)}; to set columns, "
                f"name the parameter, {argument('set', '...')} or {argument('values', '...')}"
            )
        if values is not None:
            mapping(values, "values" if action == "insert" else "set")
        return replace(self, clauses=(*self.clauses, Clause(side, action, condition, values)))


def _needed(values: Values | None, name: str) -> Values:
    if not values:
        raise InputError(f"the clause needs {argument(name, '{column: value, ...}')}")
    return values
