"""Tables that this process keeps open for requests that come one by one, such as those of Spark's catalogs.

A later request for a table looks for newer commits only, and what was decoded of a version is not decoded again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from lakemerge.errors import NotATableError, TableReplacedError
from lakemerge.layout.travel import find_version
from lakemerge.layout.view import TableView
from lakemerge.table.open_table import OpenTable
from lakemerge.table.opening import find_snapshot, open_handle
from mergers import Merger

__all__ = ["KeptTable", "forget_tables", "kept_table"]

_TABLES: Final = 64
_VERSIONS: Final = 2
_kept: OrderedDict[tuple[str, str], KeptTable] = OrderedDict()


class KeptTable:
    """A table that stays open, and the earlier versions of it that were asked for last."""

    def __init__(self, table: OpenTable, mergers: Sequence[type[Merger]]) -> None:
        self.table = table
        self.mergers = tuple(mergers)
        """Those that it knows in addition to the installed ones."""
        self._earlier: OrderedDict[int, TableView] = OrderedDict()

    @property
    def latest(self) -> TableView:
        """The latest version when the table was asked for. Nothing is read."""
        return self.table.standing

    def at(self, version: int) -> TableView:
        """A version. The log is read for it if it was not asked for lately.

        :raises lakemerge.VersionNotFoundError: it is not in the history, or its files were vacuumed.
        """
        if version == self.latest.version:
            return self.latest
        view = self._earlier.pop(version, None)
        if view is None:
            handle = self.table.handle
            tip = self.latest.snapshot
            snapshot = find_version(handle.log, version=version, timestamp=None, savepoint=None, tip=tip)
            if snapshot.metadata.id != tip.metadata.id:
                # Versions on both sides of a replacement have different ids. So only the log itself can tell.
                handle.log.check_holds(tip)
            view = handle.view(snapshot)
        self._earlier[version] = view
        while len(self._earlier) > _VERSIONS:
            self._earlier.popitem(last=False)
        return view


def kept_table(path: str, storage: Mapping[str, object], mergers: Sequence[type[Merger]]) -> KeptTable:
    """The table at a path, which stands at its latest version. If it was asked for before, this costs one listing.

    :raises lakemerge.NotATableError: there is none.
    """
    key = (path, orjson.dumps(storage, option=orjson.OPT_SORT_KEYS).decode())
    found = _kept.pop(key, None)
    if found is not None and found.mergers != tuple(mergers):
        found = None  # whoever defines a merger anew wants the new one
    if found is not None:
        try:
            found.table.view  # noqa: B018 - follows the table's log
        except (TableReplacedError, NotATableError):
            found = None
    if found is None:
        handle = open_handle(path, storage or None, mergers, None)
        found = KeptTable(OpenTable.without_session(handle, find_snapshot(handle)), mergers)
    _kept[key] = found
    while len(_kept) > _TABLES:
        _kept.popitem(last=False)
    return found


def forget_tables() -> None:
    """Keep nothing, as in a new process."""
    _kept.clear()
