"""Notes in the log about what a table cannot see by itself: rows that were sent somewhere, and links to other systems.

A note is a commit without records. Source: docs/guides/provenance.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from lakemerge._internal.arguments import shown
from lakemerge.commits.appends import commit_note
from lakemerge.commits.provenance import Provenance
from lakemerge.errors import InputError
from lakemerge.format.keys import Key, key_from_json, key_to_json, keys_at
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.read.lookup import sorted_keys
from mergers.keys import key_columns
from mergers.wording import argument

__all__ = ["commit_association", "commit_sent", "keys_of"]

_MOST_KEYS: Final = 1_000


def commit_sent(
    handle: Handle,
    view: TableView,
    to: str,
    *,
    since: int | None,
    version: int | None,
    keys: object,
    info: Mapping[str, object],
) -> int:
    """See :meth:`lakemerge.LakeTable.record_send`."""
    last = view.version if version is None else _version("version", version, view)
    if since is not None and _version("since", since, view) > last:
        raise InputError(f"{argument('since')} must not be above {argument('version')}")
    about: dict[str, object] = {"to": _place("to", to), "version": last}
    if since is not None:
        about["since"] = since
    return _commit(handle, view, Operation.SEND, about, keys, info)


def commit_association(
    handle: Handle,
    view: TableView,
    uri: str,
    *,
    version: int | None,
    keys: object,
    info: Mapping[str, object],
) -> int:
    """See :meth:`lakemerge.LakeTable.associate`."""
    about: dict[str, object] = {"uri": _place("uri", uri)}
    if version is not None:
        about["version"] = _version("version", version, view)
    return _commit(handle, view, Operation.ADD_INFO, about, keys, info)


def _commit(
    handle: Handle,
    view: TableView,
    operation: str,
    about: Mapping[str, object],
    keys: object,
    info: Mapping[str, object],
) -> int:
    parameters = {**about, **({} if keys is None else _keys(view, keys))}
    done = commit_note(handle, view, Provenance(operation, parameters, handle.new_transaction(), None, info=info))
    return done.version


def _keys(view: TableView, keys: object) -> dict[str, object]:
    table = sorted_keys([keys] if isinstance(keys, Mapping) else keys, view.config)
    if not 0 < table.num_rows <= _MOST_KEYS:
        raise InputError(
            f"a note names from 1 to {_MOST_KEYS:,} keys, not {table.num_rows:,}: name a version instead",
            keys=table.num_rows,
        )
    exact = keys_at(key_columns(table, view.config.key), range(table.num_rows))
    return {"keys": [key_to_json(key) for key in exact]}


def keys_of(parameters: Mapping[str, Any]) -> Sequence[Key] | None:
    """The keys that a note is about; ``None`` if it names none, and so is about all rows."""
    given = parameters.get("keys")
    if given is None:
        return None
    return [key_from_json(key) for key in (orjson.loads(given) if isinstance(given, str) else given)]


def _place(name: str, given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"{argument(name)} must be a name, a path or a URL, not {shown(given)}")
    return given


def _version(name: str, given: object, view: TableView) -> int:
    if type(given) is not int or not 0 <= given <= view.version:
        raise InputError(f"{argument(name)} must be a version from 0 to {view.version}, not {shown(given)}")
    return given
