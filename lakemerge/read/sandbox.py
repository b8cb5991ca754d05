"""What SQL from outside may do: compute from the rows of one table, and nothing else.

Two walls stand one behind the other. DuckDB is set up without files, extensions, secrets and changes of its settings.
Before that, its own parser reads the query, and only harmless statements pass: one ``SELECT``, of the
table and of names that the query itself defines. So a function that takes an address in memory (``arrow_scan``), or
that a later DuckDB brings, is not called either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakemerge.errors import InputError
from lakemerge.options import Settings
from mergers.wording import argument

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["check_query", "sandbox_config"]

_SOURCES: Final = frozenset({"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "PIVOT", "SUBQUERY", "TABLE_FUNCTION"})
_DESCRIBED: Final = "SHOW_REF"
_TABLE_FUNCTIONS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})
_REFUSED_FUNCTIONS: Final = frozenset(
    {
        "current_setting",
        "getenv",
        "getvariable",
        "json_execute_serialized_sql",
        "json_serialize_plan",
        "pg_sleep",
        "sleep_ms",
        "write_log",
    }
)


def sandbox_config(settings: Settings) -> dict[str, str | bool | int | float | list[str]]:
    """DuckDB's settings when it is connected to; ``lock_configuration`` has to follow."""
    return {
        "enable_external_access": "false",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "temp_directory": "",
        "threads": str(settings.threads),
        "memory_limit": f"{settings.sandbox_memory_bytes}B",
    }


def check_query(connection: DuckDBPyConnection, sql: str, table: str) -> None:
    """Check a query before anything of it is bound to a table or run.

    :param table: the one table that it may name.
    :raises InputError: it is something else than a ``SELECT`` of that table, or it uses what is not allowed.
    """
    # All rows are fetched: DuckDB 2 does nothing else on a connection with an unfinished result.
    [(told,)] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        parsed: Mapping[str, Any] = json.loads(told)
    except RecursionError as error:
        raise _refused("it is nested too deeply") from error
    if parsed["error"]:
        if "Only SELECT" in parsed["error_message"]:
            raise _refused("it is not a SELECT")
        raise InputError(f"DuckDB cannot read the query: {parsed['error_message']}")
    statements = parsed["statements"]
    if len(statements) != 1:
        raise _refused(f"it is {len(statements)} statements")
    nodes = list(_nodes(statements))
    known = {table.lower()} | {str(name).lower() for node in nodes for name in _names(node)}
    for node in nodes:
        _check(node, known, table)


def _check(node: Mapping[str, Any], known: set[str], table: str) -> None:
    function = node.get("function_name")
    if isinstance(function, str) and function.lower() in _REFUSED_FUNCTIONS:
        raise _refused(f"it calls {function}")
    for source in _sources(node):
        kind = source.get("type")
        name = source.get("table_name") or ""
        if kind == "BASE_TABLE":
            place = [source[part] for part in ("catalog_name", "schema_name") if source.get(part)]
            if place or name.lower() not in known:
                raise _refused(f"it names {'.'.join([*place, name])!r}; the only table is {table}")
        elif kind == "TABLE_FUNCTION":
            called = str(source["function"].get("function_name"))
            if called.lower() not in _TABLE_FUNCTIONS:
                raise _refused(f"it reads from {called}")
        elif kind == _DESCRIBED:
            if source.get("query") is None:
                raise _refused(f"it shows {name}")
        elif kind not in _SOURCES:
            raise _refused(f"it reads from a {kind}")


def _sources(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Where a node gets rows from, and the node itself if it names what rows come from, wherever it stands."""
    if node.get("type") in ("BASE_TABLE", "TABLE_FUNCTION", _DESCRIBED):
        yield node
    parts = {"JOIN": ("left", "right"), "PIVOT": ("source",)}.get(str(node.get("type")), ("from_table",))
    for part in parts:
        source = node.get(part)
        if isinstance(source, dict):
            yield source


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """The names that a node defines by ``WITH``."""
    defined = node.get("cte_map")
    if isinstance(defined, dict):
        yield from (entry["key"] for entry in defined.get("map") or ())


def _nodes(tree: object) -> Iterator[Mapping[str, Any]]:
    left = [tree]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _refused(reason: str) -> InputError:
    return InputError(
        f"the query is refused, because {reason}: with {argument('sandbox')} a query is one SELECT over the table, "
        "without files, extensions and settings"
    )
