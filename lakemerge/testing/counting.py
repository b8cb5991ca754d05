"""A store that counts what it is asked, for benchmarks and for tests of how much is read."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from lakemerge.storage.base import FileStat, Put, Store

__all__ = ["CountingStore", "Counts"]


@dataclass(frozen=True, slots=True)
class Counts:
    """``calls`` by method of the store, plus ``read`` and ``write`` on the files it opened; a method
    that was not called counts 0. ``files_listed`` are entries given out by ``list``,
    ``files_deleted`` paths given to ``delete``."""

    calls: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    files_listed: int
    files_deleted: int


class CountingStore(Store):
    """Passes everything on to ``store``. Calls that raise count too.

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
        """What was counted since the store was made or :meth:`reset`."""
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

    def delete(self, paths: Sequence[str]) -> None:
        self._count("delete", files_deleted=len(paths))
        self._store.delete(paths)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        self._count("clean_up")
        return self._store.clean_up(before_ms=before_ms, dry_run=dry_run)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        self._count("open_input")
        return pa.PythonFile(_Reader(self._store.open_input(path, size_bytes=size_bytes), self), mode="r")

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        self._count("open_output")
        return self._output(self._store.open_output(path))

    def count_read(self, size_bytes: int) -> None:
        """One read of a file that this store opened."""
        self._count("read", bytes_read=size_bytes)

    def count_write(self, size_bytes: int) -> None:
        """One write to a file that this store opened."""
        self._count("write", bytes_written=size_bytes)

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
            counted = pa.PythonFile(_Writer(file, self), mode="w")
            yield counted
            counted.close()


class _Reader(io.RawIOBase):
    def __init__(self, file: pa.NativeFile, store: CountingStore) -> None:
        super().__init__()
        self._file, self._store = file, store

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        data = bytes(self._file.read(None if size < 0 else size))
        self._store.count_read(len(data))
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


class _Writer(io.RawIOBase):
    """Closing it leaves the file open: the store's own context ends it."""

    def __init__(self, file: pa.NativeFile, store: CountingStore) -> None:
        super().__init__()
        self._file, self._store = file, store

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size_bytes = memoryview(data).nbytes
        self._store.count_write(size_bytes)
        self._file.write(data)
        return size_bytes
