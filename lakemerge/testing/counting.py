"""A store that counts its calls, for benchmarks and for tests of how much is read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from lakemerge.storage.base import FileStat, Put, Store
from lakemerge.testing.watched import WatchedInput, WatchedOutput

__all__ = ["CountingStore", "Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """``calls`` by method of the store, plus ``read`` and ``write`` on the files it opened; a method
    that was not called counts 0. ``files_listed`` are entries given out by ``list``,
    ``files_deleted`` those given to ``delete`` and ``delete_exact``."""

    calls: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    files_listed: int
    files_deleted: int


class CountingStore(Store):
    """Passes everything on to ``store``. Calls that raise an error count, too.

    A pickle holds the store, not the counts: each process counts its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"CountingStore({self._store!r})"

    def __reduce__(self) -> tuple[type[CountingStore], tuple[Store]]:
        return type(self), (self._store,)

    def counts(self) -> Counts:
        """The counts since the store was made or :meth:`reset`."""
        with self._lock:
            return Counts(
                calls=MappingProxyType(self._calls.copy()),
                bytes_read=self._sums["bytes_read"],
                bytes_written=self._sums["bytes_written"],
                files_listed=self._sums["files_listed"],
                files_deleted=self._sums["files_deleted"],
            )

    def reset(self) -> None:
        with self._lock:
            self._calls.clear()
            self._sums.clear()

    @property
    def url(self) -> str:
        return self._store.url

    def spark_url(self, path: str) -> str:
        return self._store.spark_url(path)

    def put_if_absent(self, path: str, data: bytes) -> Put:
        self._count("put_if_absent", bytes_written=len(data))
        return self._store.put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self._count("put", bytes_written=len(data))
        self._store.put(path, data)

    def get(self, path: str) -> bytes:
        self._count("get")
        data = self._store.get(path)
        self._add(bytes_read=len(data))
        return data

    def stat(self, path: str) -> FileStat | None:
        self._count("stat")
        return self._store.stat(path)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        self._count("list")
        return self._counted(self._store.list(folder, start_after=start_after))

    def folders(self, folder: str) -> Sequence[str]:
        self._count("list")
        return self._store.folders(folder)

    def delete_empty_folders(self, folder: str) -> None:
        self._store.delete_empty_folders(folder)

    def delete(self, paths: Sequence[str]) -> None:
        self._count("delete", files_deleted=len(paths))
        self._store.delete(paths)

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        self._count("delete_exact", files_deleted=len(files))
        return self._store.delete_exact(files)

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        self._count("replace_exact", bytes_written=len(data))
        return self._store.replace_exact(file, data)

    def sync(self, paths: Sequence[str]) -> None:
        self._count("sync")
        self._store.sync(paths)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        self._count("clean_up")
        return self._store.clean_up(before_ms=before_ms, dry_run=dry_run)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self._count("open_input")
        opened = self._store.open_input(path, size_bytes=size_bytes)
        return pa.PythonFile(WatchedInput(opened, self._read), mode="r")

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        self._count("open_output")
        return self._output(self._store.open_output(path))

    def _read(self, read: Callable[[], bytes]) -> bytes:
        data = read()
        self._count("read", bytes_read=len(data))
        return data

    def _write(self, write: Callable[[], object], size_bytes: int) -> None:
        self._count("write", bytes_written=size_bytes)
        write()

    def _count(self, method: str, **sums: int) -> None:
        with self._lock:
            self._calls[method] += 1
            self._sums.update(sums)

    def _add(self, **sums: int) -> None:
        with self._lock:
            self._sums.update(sums)

    def _counted(self, found: Iterator[FileStat]) -> Iterator[FileStat]:
        for file in found:
            self._add(files_listed=1)
            yield file

    @contextmanager
    def _output(self, inner: AbstractContextManager[pa.NativeFile]) -> Iterator[pa.NativeFile]:
        with inner as file:
            watched = WatchedOutput(file, self._write)
            counted = pa.PythonFile(watched, mode="w")
            try:
                yield counted
                counted.close()
            finally:
                watched.give_up()
