"""Open files of a store, whose reads and writes are passed to a watcher."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["WatchedInput", "WatchedOutput"]


class WatchedInput(io.RawIOBase):
    """``watch`` gets each read of ``file``, as a function without arguments, and gives the caller's bytes."""

    def __init__(self, file: pa.NativeFile, watch: Callable[[Callable[[], bytes]], bytes]) -> None:
        super().__init__()
        self._file, self._watch = file, watch

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        return self._watch(lambda: bytes(self._file.read(None if size < 0 else size)))

    def close(self) -> None:
        self._file.close()
        super().close()


class WatchedOutput(io.RawIOBase):
    """``watch`` gets each write to ``file``, as a function without arguments, and its bytes.
    Closing it leaves the file open: the store's own context ends it."""

    def __init__(self, file: pa.NativeFile, watch: Callable[[Callable[[], object], int], object]) -> None:
        super().__init__()
        self._file, self._watch = file, watch
        self._is_given_up = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size_bytes = memoryview(data).nbytes
        if not self._is_given_up:
            self._watch(lambda: self._file.write(data), size_bytes)
        return size_bytes

    def give_up(self) -> None:
        """Discard all later writes. The garbage collector ends a writer that failed, and may run anywhere, even within
        ``watch``."""
        self._is_given_up = True
