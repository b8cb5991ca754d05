"""Another writer commits at a chosen call that a statement makes of the table's store, in whatever process that is.

The data sources of a session are replaced by ones whose tables are in :class:`MeddlingStore`. It goes along with the
table into tasks, and into the process that commits. What is done when stands in a folder beside the tables, so that all
processes count the same calls.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import lakemerge.table.opening
from lakemerge import LakeTable
from lakemerge.connector.source import CatalogSource
from lakemerge.datasource.source import LakeMergeDataSource
from lakemerge.storage import FileStat, LocalStore, Put, Store, open_store

__all__ = ["Meddler", "MeddlingStore"]

_CONTROL = "_control"
_meddles: set[int] = set()
"""Has an entry while this process is the other writer."""


class MeddlingStore(LocalStore):
    """A local table. At the call with the number that the control folder says, another writer commits before it."""

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._count(f"put_if_absent {path}")
        return super().put_if_absent(path, data)

    def get(self, path: str) -> bytes:
        self._count(f"get {path}")
        return super().get(path)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        self._count(f"list {folder}")
        return super().list(folder, start_after=start_after)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self._count(f"open_input {path}")
        return super().open_input(path, size_bytes=size_bytes)

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        self._count(f"open_output {path}")
        return super().open_output(path)

    def _count(self, call: str) -> None:
        control = Path(self.url).parent / _CONTROL
        if _meddles or not (control / "plan.json").exists():
            return
        with open(control / "calls", "a+") as calls:
            fcntl.flock(calls, fcntl.LOCK_EX)
            calls.seek(0)
            number = len(calls.readlines()) + 1
            calls.write(f"{call}\n")
            calls.flush()
            plan = json.loads((control / "plan.json").read_text())
            if number == plan["at"]:
                _meddles.add(number)
                try:
                    LakeTable.open(self.url).upsert(pa.Table.from_pylist([plan["row"]]))
                finally:
                    _meddles.clear()


def _meddling(url: str | os.PathLike[str], storage_options: Mapping[str, object] | None = None) -> Store:
    store = open_store(url, storage_options)
    return MeddlingStore(store.url) if type(store) is LocalStore else store


def _install() -> None:
    setattr(lakemerge.table.opening, "open_store", _meddling)  # noqa: B010 - it is no export of the module


class _Source(LakeMergeDataSource):
    def __init__(self, options: Any) -> None:
        _install()
        super().__init__(options)


class _Catalog(CatalogSource):
    def __init__(self, options: Any) -> None:
        _install()
        super().__init__(options)


class Meddler:
    """Chooses the call, and tells what happened."""

    def __init__(self, session: SparkSession, namespace: Path) -> None:
        """
        :param namespace: the folder of the tables.
        """
        session.dataSource.register(_Source)
        session.dataSource.register(_Catalog)
        self._control = namespace / _CONTROL

    def begin(self, at: int, row: Mapping[str, Any]) -> None:
        """Count calls from now on. Before the one with this number the row is upserted; 0 is never."""
        self._control.mkdir(exist_ok=True)
        (self._control / "plan.json").write_text(json.dumps({"at": at, "row": row}))
        (self._control / "calls").write_text("")

    def end(self) -> Sequence[str]:
        """The calls since."""
        (self._control / "plan.json").unlink()
        return (self._control / "calls").read_text().splitlines()
