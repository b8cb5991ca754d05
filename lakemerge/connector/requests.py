"""Answers to the jar's requests: what a table is, and how one is made, changed and dropped.

A request is a JSON object. ``do`` says what is asked for, ``namespace`` and ``name`` which table it is about. The
answer is a JSON object, too. An error is an answer with its code and its message.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson

from compaction import maintain_landed
from lakemerge.connector.definitions import altered, created, shown_properties
from lakemerge.connector.details import DETAILS, detail_schema
from lakemerge.connector.jar import jar_version
from lakemerge.connector.places import Places
from lakemerge.connector.procedures import PROCEDURES, called, definition, place_of
from lakemerge.delta import check_table_id
from lakemerge.errors import (
    InputError,
    InstallError,
    LakeMergeError,
    NotATableError,
    TableExistsError,
)
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.travel import find_version
from lakemerge.layout.view import TableView
from lakemerge.schema.schema import from_delta_json, to_delta_json
from lakemerge.table.create import create_table
from lakemerge.table.drop import drop_table
from lakemerge.table.kept import KeptTable, kept_table
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import open_handle
from lakemerge.table.rename import rename_table
from lakemerge.table.table import LakeTable
from lakemerge.transactions.changing import TransactionOptions, delete_where
from lakemerge.write.overwrite import OverwriteRequest, overwrite_arrow
from mergers import Merger, default_registry

__all__ = ["answer"]

_CHANGES: Final = "changes"
"""Behind the name of a table and ``$``: what changed in it."""


class _NoSuchTableError(InputError):
    code = "no-such-table"


def answer(text: str, mergers: Sequence[type[Merger]] = ()) -> bytes:
    """The answer to a request, in JSON. Errors of this library are answers, too."""
    try:
        request = orjson.loads(text)
        if request["connector"] != jar_version():
            raise InstallError(
                "Spark has loaded the jar of another version of lakemerge: use the one that this version ships, "
                "which `lakemerge jar` prints, and start Spark anew"
            )
        found = _ANSWERS[request["do"]](request, _places(request), mergers)
    except LakeMergeError as error:
        found = {"error": {"code": error.code, "message": error.message}}
    return orjson.dumps(found)


def _places(request: Mapping[str, Any]) -> Places:
    allowed = request.get("allowedPaths", "")
    return Places(request.get("warehouse"), request["storage"], [part.strip() for part in allowed.split(",") if part])


def _handle(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> Handle:
    return open_handle(places.path(request["namespace"], request["name"]), places.storage or None, mergers, None)


def _namespaces(_: Mapping[str, Any], places: Places, __: object) -> object:
    return {"names": places.namespaces()}


def _namespace(request: Mapping[str, Any], places: Places, _: object) -> object:
    return {"properties": places.properties(request["namespace"])}


def _create_namespace(request: Mapping[str, Any], places: Places, _: object) -> object:
    places.create(request["namespace"], request["properties"])
    return {}


def _drop_namespace(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    names = places.tables(request["namespace"])
    if names and not request["cascade"]:
        raise InputError(f"the namespace has {len(names)} tables, such as {names[0]!r}: drop these first, or CASCADE")
    for name in names:
        _drop({**request, "name": name}, places, mergers)
    return {"dropped": places.remove(request["namespace"])}


def _tables(request: Mapping[str, Any], places: Places, _: object) -> object:
    return {"names": places.tables(request["namespace"])}


def _load(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    name, _, detail = request["name"].rpartition("$") if places.warehouse else ("", "", "")
    if request.get("changes") or (name and detail == _CHANGES):
        path = places.path(request["namespace"], request["name"] if request.get("changes") else name)
        return _changes(path, _kept(path, places, mergers).table)
    if name and detail in DETAILS:
        path = places.path(request["namespace"], name)
        _view(path, request, places, mergers)
        return {"schema": detail_schema(detail), "rows": {"path": path, "detail": detail}}
    path = places.path(request["namespace"], request["name"])
    view = _view(path, request, places, mergers)
    config, metadata = view.config, view.snapshot.metadata
    return {
        "path": path,
        "id": metadata.id,
        "version": view.version,
        "schema": to_delta_json(config.schema),
        "key": list(config.key),
        "remembered": _remembered(view, mergers),
        "partitioning": list(config.partition_by),
        "constraints": dict(config.constraints),
        "properties": shown_properties(config, metadata, view.store.url),
    }


def _changes(path: str, table: OpenTable) -> object:
    """What Spark has to know of a table's changes. Options say which, and these come with the read."""
    from lakemerge.datasource.stream_source import stream_schema

    return {
        "schema": to_delta_json(stream_schema(table)),
        "changes": {"path": path, "id": table.standing.snapshot.metadata.id},
    }


def _plan(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    from lakemerge.datasource.plans import plan

    return orjson.Fragment(plan(request, places.storage, mergers))


def _remembered(view: TableView, mergers: Sequence[type[Merger]]) -> list[str]:
    """The columns that a clear has besides the key: the ordering, if the table's merger compares it."""
    registry = default_registry().extended(mergers) if mergers else default_registry()
    uses_ordering = view.config.merger(registry).traits(view.config.shape).uses_ordering
    return list(view.config.ordering) if uses_ordering else []


def _view(path: str, request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> TableView:
    """The version that is asked for. A version may be a number or the name of a savepoint."""
    kept = _kept(path, places, mergers)
    version, microseconds = request.get("version"), request.get("microseconds")
    if version is None and microseconds is None:
        return kept.latest
    handle, tip = kept.table.handle, kept.latest.snapshot
    if microseconds is not None:
        time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)
        return handle.view(find_version(handle.log, version=None, timestamp=time, savepoint=None, tip=tip))
    named = str(version)
    if named.isdecimal():
        return kept.at(int(named))
    return handle.view(find_version(handle.log, version=None, timestamp=None, savepoint=named, tip=tip))


def _kept(path: str, places: Places, mergers: Sequence[type[Merger]]) -> KeptTable:
    try:
        return kept_table(path, places.storage, mergers)
    except NotATableError as error:
        if "is a Delta table" in error.message:
            raise
        raise _NoSuchTableError(error.message) from error


def _create(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    _check_namespace(request, places)
    arguments = created(request)
    schema = from_delta_json(arguments.pop("schema"))
    replaces = request["do"] != "create"
    handle = _handle(request, places, mergers)
    if request["do"] == "replace" and not handle.log.exists():
        raise _NoSuchTableError("there is no table to replace")
    try:
        create_table(handle, schema, **arguments, name=request["name"], replace=replaces)
    except TableExistsError as error:
        if replaces:
            raise InputError(error.message) from error
        raise
    return {}


def _stage(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    """What the write of a table that is not there yet has to know of it."""
    _check_namespace(request, places)
    what = request["what"]
    handle = _handle(request, places, mergers)
    there = handle.log.exists()
    if what == "create" and there:
        raise TableExistsError(f"there is already a table at {handle.store.url}")
    if what == "replace" and not there:
        raise _NoSuchTableError("there is no table to replace")
    told = {"name": request["name"], "replace": what != "create", "mustExist": what == "replace"}
    return {"path": places.path(request["namespace"], request["name"]), "create": created(request) | told}


def _check_namespace(request: Mapping[str, Any], places: Places) -> None:
    if places.warehouse is not None:
        places.properties(request["namespace"])


def _alter(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    path = places.path(request["namespace"], request["name"])
    view = _view(path, {}, places, mergers)
    table = LakeTable.open(path, storage_options=places.storage or None, mergers=mergers)
    if arguments := altered(request["changes"], view.config.schema, view.config.constraints):
        table.alter(**arguments)
    return {}


def _truncate(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    table = _target(request, places, mergers)
    overwrite = OverwriteRequest(operation=Operation.TRUNCATE, txn=_txn(request))
    begin = table.view
    overwrite_arrow(table.handle, begin, table.schema.empty_table(), overwrite)
    maintain_landed(table.handle, begin.version)
    return {}


def _delete_all(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    """``DELETE FROM t``: each row is cleared, by this process, which streams them."""
    table = _target(request, places, mergers)
    begin = table.handle.view_at(request["version"], of=table.view.snapshot)
    options = TransactionOptions(txn=_txn(request), isolation=request["isolation"], retries=0)
    delete_where(table.handle, begin, "true", options, None)
    maintain_landed(table.handle, begin.version)
    return {}


def _target(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> OpenTable:
    """The table that a statement was planned for. Raises :class:`lakemerge.TableReplacedError`."""
    table = kept_table(request["path"], places.storage, mergers).table
    check_table_id(table.handle.store, request["tableId"], table.view.snapshot, since=table.view.version)
    return table


def _txn(request: Mapping[str, Any]) -> tuple[str, int] | None:
    return None if "txn" not in request else (request["txn"][0], request["txn"][1])


def _drop(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    return {"dropped": drop_table(_handle(request, places, mergers))}


def _procedures(request: Mapping[str, Any], _: Places, __: object) -> object:
    return {"names": sorted(PROCEDURES) if request["namespace"] == ["system"] else []}


def _procedure(request: Mapping[str, Any], _: Places, __: object) -> object:
    if request["namespace"] != ["system"] or request["name"] not in PROCEDURES:
        shown = ".".join([*request["namespace"], request["name"]])
        raise InputError(f"there is no procedure {shown}; there are system.{', system.'.join(sorted(PROCEDURES))}")
    return definition(request["name"])


def _call(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    arguments = dict(request["arguments"])
    namespace, name = place_of(arguments.pop("table"))
    path = places.path(namespace, name) if namespace or places.warehouse is None else name
    if PROCEDURES[request["name"]].makes_table:
        of = {"storage_options": places.storage or None, "mergers": mergers}
        return {"rows": called(request["name"], path, {**arguments, "of": of})}
    _view(path, {}, places, mergers)
    table = LakeTable.open(path, storage_options=places.storage or None, mergers=mergers)
    return {"rows": called(request["name"], table, arguments)}


def _rename(request: Mapping[str, Any], places: Places, mergers: Sequence[type[Merger]]) -> object:
    if places.warehouse is None:
        raise InputError("in a catalog of paths a table's name is its path: move the folder, when nobody writes")
    path = places.path(request["namespace"], request["name"])
    target = places.path(request["toNamespace"], request["to"])
    _view(path, {}, places, mergers)
    places.properties(request["toNamespace"])
    rename_table(_handle(request, places, mergers), target)
    return {}


_ANSWERS: Final[Mapping[str, Callable[[Mapping[str, Any], Places, Sequence[type[Merger]]], object]]] = {
    "namespaces": _namespaces,
    "namespace": _namespace,
    "create namespace": _create_namespace,
    "drop namespace": _drop_namespace,
    "tables": _tables,
    "load": _load,
    "plan": _plan,
    "create": _create,
    "replace": _create,
    "create or replace": _create,
    "stage": _stage,
    "alter": _alter,
    "delete all": _delete_all,
    "truncate": _truncate,
    "drop": _drop,
    "rename": _rename,
    "procedures": _procedures,
    "procedure": _procedure,
    "call": _call,
}
