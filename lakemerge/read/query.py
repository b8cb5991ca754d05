"""SQL over one version of a table, by DuckDB. DuckDB plans the query, and asks the table's own scan for the columns and
conditions that it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import DependencyMissingError, FilterError, InputError
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.sandbox import check_query, sandbox_config
from lakemerge.read.scan import scan
from mergers.wording import argument

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

__all__ = ["SELF", "query"]

SELF: Final = "self"
"""The name of the table in a query."""
_STORED: Final = "_lm_stored"
_EXAMPLE: Final = "SELECT count(*) FROM self"
_INTERRUPTED_AGAIN_S: Final = 0.1


def query(handle: Handle, view: TableView, sql: str, *, sandbox: bool = False) -> pa.Table:
    """See :meth:`lakemerge.LakeTable.query`."""
    try:
        importlib.import_module("duckdb")
    except ModuleNotFoundError as error:
        if error.name != "duckdb":
            raise
        raise DependencyMissingError(
            "a query needs DuckDB: pip install 'lakemerge[query]'; without it, use to_arrow with a filter and columns"
        ) from error
    given: object = sql
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"a query is a text such as {_EXAMPLE!r}, not {sql!r}")
    if not isinstance(sandbox, bool):
        raise InputError(f"{argument('sandbox')} must be True or False, not {sandbox!r}")
    try:
        return _query(handle, view, sql, sandbox=sandbox, pushing=True)
    except _NotPushedError:
        return _query(handle, view, sql, sandbox=sandbox, pushing=False)


class _NotPushedError(Exception):
    """A condition may be the cause of a failure, because DuckDB left it to the table's scan, or tried to."""


def _query(handle: Handle, view: TableView, sql: str, *, sandbox: bool, pushing: bool) -> pa.Table:
    """The answer of a database that is made for the query.

    :param pushing: whether DuckDB gives conditions to the table's scan. It cannot express all of them for Arrow, such
        as an ``IS DISTINCT FROM`` in an ``OR``, and Arrow cannot evaluate all that DuckDB can.
    :raises _NotPushedError: the query may succeed without.
    """
    import duckdb

    failures: list[Exception] = []
    with duckdb.connect(":memory:", config=sandbox_config(handle.settings) if sandbox else {}) as connection:
        # A name in the query must not find a variable of this module. Times without a zone are UTC, as in filters.
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET TimeZone = 'UTC'")
        connection.register(_STORED, _stored(handle, view, failures))
        columns = ", ".join(_column(field, pushing=pushing) for field in view.config.schema)
        connection.execute(f"CREATE TEMP VIEW {SELF} AS SELECT {columns} FROM {_STORED}")  # noqa: S608 - quoted names
        if sandbox:
            connection.execute("SET lock_configuration = true")
        try:
            if sandbox:
                check_query(connection, sql, SELF)
            statements = connection.extract_statements(sql)
            if not statements or duckdb.ExpectedResultType.NOTHING in statements[-1].expected_result_type:
                raise InputError(f"the query gives no rows; write one such as {_EXAMPLE!r}")
            answer = _interruptible(connection, partial(_answered, connection, sql))
            # DuckDB 2 gives the number of rows that it wrote.
            return pa.table({}) if statements[-1].type is duckdb.StatementType.COPY else answer
        except duckdb.Error as error:
            of_condition = isinstance(error, duckdb.NotSupportedError | duckdb.InternalError) and not failures
            if pushing and (of_condition or any(isinstance(one, FilterError) for one in failures)):
                raise _NotPushedError from error
            if failures:
                raise failures[0] from error
            raise InputError(
                f"DuckDB cannot answer the query: {error}. The table is called {SELF}, and its columns are "
                f"{', '.join(view.config.schema.names)}"
            ) from error


def _answered(connection: DuckDBPyConnection, sql: str) -> pa.Table:
    relation: DuckDBPyRelation | None = connection.sql(sql)
    return pa.table({}) if relation is None else relation.to_arrow_table()


def _interruptible(connection: DuckDBPyConnection, work: Callable[[], pa.Table]) -> pa.Table:
    """Work in another thread. The caller's thread waits, so that Ctrl-C interrupts the query at once. If DuckDB worked
    in the main thread, it would see an interrupt late, or the table's scan would see it and fail."""
    with thread_pool(1, name="lakemerge-query") as pool:
        answer = pool.submit(work)
        try:
            return answer.result()
        except BaseException:
            while not answer.done():  # an interrupt is lost on a query that only begins
                connection.interrupt()
                wait([answer], timeout=_INTERRUPTED_AGAIN_S)
            raise


def _stored(handle: Handle, view: TableView, failures: list[Exception]) -> object:
    """A version as a dataset for DuckDB, which asks for the schema, and for a scanner of columns and a condition.

    :param failures: the errors of scans are added to it, because DuckDB passes on only their text.
    """
    import pyarrow.dataset as ds  # loads pandas where that is installed

    class Stored(ds.Dataset):  # type: ignore[misc] # pyarrow has no types
        def __init__(self) -> None:
            """Do not call the base class's ``__init__``, which raises an error."""

        @property
        def schema(self) -> pa.Schema:
            return view.config.schema

        def scanner(self, *, columns: Sequence[str], filter: pc.Expression | None = None) -> _Scanner:
            try:
                return _Scanner(scan(handle, view, columns=columns, filter=filter), failures)
            except Exception as error:
                failures.append(error)
                raise

    return Stored()


class _Scanner:
    """All that DuckDB wants of a scanner. Arrow's own reads ahead in threads of Arrow's pool. A query that needs few
    rows leaves such a thread in the middle of the scan, and the process then ends with SIGABRT, or never."""

    def __init__(self, reader: pa.RecordBatchReader, failures: list[Exception]) -> None:
        self._reader, self._failures = reader, failures

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._reader.schema, _watched(self._reader, self._failures))


def _watched(reader: pa.RecordBatchReader, failures: list[Exception]) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except Exception as error:
        failures.append(error)
        raise


def _column(field: pa.Field, *, pushing: bool) -> str:
    """A column of the table, as DuckDB may use it in conditions.

    DuckDB passes on no condition on an expression, so a column on whose values DuckDB itself must evaluate conditions
    becomes an expression that returns each value unchanged. That is each column if conditions are not to be passed on.
    Otherwise it is floats, because NaN is the greatest number for DuckDB and equal to itself, and neither for Arrow.
    """
    name = '"' + field.name.replace('"', '""') + '"'
    if pa.types.is_floating(field.type):
        return f"-(-{name}) AS {name}"
    return f"[{name}][1] AS {name}" if pa.types.is_nested(field.type) or not pushing else name
