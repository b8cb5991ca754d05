"""Where the namespaces and tables of a catalog are.

A catalog has a warehouse, whose folders are its namespaces. A folder in one of these is a table if it has a
``_delta_log``. Folders whose names begin with ``_`` or ``.`` are neither. A catalog without a warehouse has paths as
names of tables, and no namespaces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from lakemerge._internal.pools import thread_pool
from lakemerge.errors import InputError
from lakemerge.storage import Store, open_store

__all__ = ["NamespaceExistsError", "NoSuchNamespaceError", "Places"]

_MARKER = "_namespace.json"
"""The object that makes a folder a namespace before it has a table."""
_DEFAULT = "default"
_GIVEN_BY_SPARK = ("owner",)
_LISTED_AT_ONCE = 16


class NoSuchNamespaceError(InputError):
    """A catalog has no namespace of that name."""

    code = "no-such-namespace"


class NamespaceExistsError(InputError):
    """A catalog has a namespace of that name."""

    code = "namespace-exists"


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one catalog."""

    warehouse: str | None
    storage: Mapping[str, object]
    allowed: Sequence[str] = ()
    """Folders in which a catalog of paths finds tables; empty: anywhere."""

    def path(self, namespace: Sequence[str], name: str) -> str:
        """Where a table is, or would be. Raises :class:`InputError` for a name that no table can have."""
        if self.warehouse is None:
            if namespace:
                raise InputError("in this catalog a table's name is its path: write it in back quotes")
            return self._checked(name)
        namespace_name = self._single(namespace)
        return f"{self.warehouse.rstrip('/')}/{namespace_name}/{_name(name, 'table')}"

    def namespaces(self) -> list[str]:
        """All names, sorted. The default namespace is always there."""
        if self.warehouse is None:
            return []
        found = {name for name in self._store().folders("") if _is_shown(name)}
        tables = _with_log(self._store(), sorted(found))
        return sorted((found - set(tables)) | {_DEFAULT})

    def properties(self, namespace: Sequence[str]) -> Mapping[str, str]:
        """What a namespace was made with. Raises :class:`NoSuchNamespaceError`."""
        name, store = self._single(namespace), self._store()
        try:
            return {**orjson.loads(store.get(f"{name}/{_MARKER}")), "location": f"{store.url}/{name}"}
        except FileNotFoundError:
            if name != _DEFAULT and name not in self.namespaces():
                raise NoSuchNamespaceError(f"there is no namespace {name!r} in {store.url}") from None
            return {"location": f"{store.url}/{name}"}

    def create(self, namespace: Sequence[str], properties: Mapping[str, str]) -> None:
        """Make a namespace. Raises :class:`NamespaceExistsError`."""
        name, store = self._single(namespace), self._store()
        if "location" in properties:
            raise InputError("a namespace is a folder of the warehouse: leave out LOCATION")
        if name in self.namespaces() and name != _DEFAULT:
            raise NamespaceExistsError(f"there is a namespace {name!r} in {store.url}")
        kept = {key: value for key, value in properties.items() if key not in _GIVEN_BY_SPARK}
        store.put_if_absent(f"{name}/{_MARKER}", orjson.dumps(kept))

    def remove(self, namespace: Sequence[str]) -> bool:
        """Delete an empty namespace. Returns whether there was one. Raises :class:`InputError` if it has files."""
        name, store = self._single(namespace), self._store()
        if name not in self.namespaces():
            return False
        for file in store.list(name):
            if file.path != f"{name}/{_MARKER}":
                raise InputError(f"the folder {store.url}/{name} has files, such as {file.path}: remove these first")
        store.delete([f"{name}/{_MARKER}"])
        store.delete_empty_folders(name)
        return True

    def tables(self, namespace: Sequence[str]) -> list[str]:
        """The names of the tables in a namespace, sorted. Raises :class:`NoSuchNamespaceError`."""
        if self.warehouse is None:
            return []
        name, store = self._single(namespace), self._store()
        self.properties(namespace)
        found = [folder for folder in store.folders(name) if _is_shown(folder)]
        return [path.rpartition("/")[2] for path in _with_log(store, [f"{name}/{folder}" for folder in found])]

    def everywhere(self) -> list[str]:
        """The places of all tables, sorted: those in namespaces, and those beside them, which no catalog shows."""
        store = self._store()
        top = sorted(name for name in store.folders("") if _is_shown(name))
        beside = _with_log(store, top)
        found = [*beside]
        for namespace in sorted(set(top) - set(beside)):
            folders = [f"{namespace}/{name}" for name in store.folders(namespace) if _is_shown(name)]
            found += _with_log(store, folders)
        return [f"{str(self.warehouse).rstrip('/')}/{path}" for path in sorted(found)]

    def _store(self) -> Store:
        if self.warehouse is None:
            raise InputError("a catalog of paths has no namespaces")
        return open_store(self.warehouse, self.storage or None)

    @staticmethod
    def _single(namespace: Sequence[str]) -> str:
        if len(namespace) != 1:
            shown = ".".join(namespace)
            raise InputError(
                f"namespaces are not nested, and each table is in one: write CATALOG.NAMESPACE.TABLE, not {shown!r}"
                if namespace
                else "a table is in a namespace: write CATALOG.NAMESPACE.TABLE"
            )
        return _name(namespace[0], "namespace")

    def _checked(self, path: str) -> str:
        place = open_store(path, self.storage or None).url
        if "://" not in place and not os.path.isabs(os.path.expanduser(path).removeprefix("file:")):
            raise InputError(f"{path!r} is no absolute path: another process would look for it in another folder")
        if self.allowed and not any(_inside(place, allowed) for allowed in self.allowed):
            raise InputError(f"{place} is in none of the folders that this catalog allows")
        return path


def _inside(place: str, allowed: str) -> bool:
    top = open_store(allowed).url.rstrip("/")
    real, real_top = (place, top) if "://" in place else (os.path.realpath(place), os.path.realpath(top))
    return real == real_top or real.startswith(f"{real_top}/")


def _with_log(store: Store, folders: Sequence[str]) -> list[str]:
    """Those that have a Delta log."""

    def has_log(folder: str) -> bool:
        return "_delta_log" in store.folders(folder)

    with thread_pool(_LISTED_AT_ONCE) as pool:
        return [folder for folder, found in zip(folders, pool.map(has_log, folders), strict=True) if found]


def _is_shown(name: str) -> bool:
    return not name.startswith(("_", "."))


def _name(name: str, kind: str) -> str:
    if not name or not _is_shown(name) or any(mark in name for mark in "/\\:$\0"):
        raise InputError(
            f"{name!r} cannot be the name of a {kind}: it is a folder, so it has none of / \\ : $, and does not begin "
            "with _ or ."
        )
    return name
