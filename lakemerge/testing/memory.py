"""A store in the memory of this process, for tests of many orders of events: it is quick, and a whole state is copied
at once."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from lakemerge.storage.base import FileStat, Put, Store, check_path

__all__ = ["Bucket", "MemoryStore"]


@dataclass(frozen=True, slots=True)
class _Object:
    data: pa.Buffer
    modified_ms: int
    token: str


@dataclass(slots=True)
class Bucket:
    """Objects by their path. All stores of a bucket see the same ones. A pickle, which is for this process alone, is
    the same bucket."""

    name: str
    _objects: dict[str, _Object] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    written: int = 0
    """How many objects were ever written."""
    _names: list[bytes] = field(init=False, repr=False)
    """The paths as bytes, in order, so that a listing finds its first one at once."""

    def __post_init__(self) -> None:
        self._names = sorted(map(str.encode, self._objects))
        _buckets[self.name] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _bucket, (self.name,)

    def copy(self) -> Bucket:
        """Another bucket of the same name with the same objects. From now on the name is the copy's."""
        with self._lock:
            return Bucket(self.name, dict(self._objects), written=self.written)

    def age(self, milliseconds: int) -> None:
        """Make all objects older."""
        with self._lock:
            for path, found in self._objects.items():
                self._objects[path] = _Object(found.data, found.modified_ms - milliseconds, found.token)

    def write(self, path: str, data: bytes | pa.Buffer, *, absent: bool = False, instead_of: str | None = None) -> bool:
        """Write an object, and say whether it was written.

        :param absent: only if there is none.
        :param instead_of: only if the object there has this token.
        """
        with self._lock:
            there = self._objects.get(path)
            if (absent and there is not None) or (
                instead_of is not None and (there is None or there.token != instead_of)
            ):
                return False
            if there is None:
                insort(self._names, path.encode())
            self.written += 1
            now_ms = time.time_ns() // 1_000_000
            self._objects[path] = _Object(pa.py_buffer(data), now_ms, str(self.written))
            return True

    def read(self, path: str) -> _Object | None:
        return self._objects.get(path)

    def remove(self, path: str, *, token: str | None = None) -> bool:
        """Remove an object. It is false only if another one than that of the token is there."""
        with self._lock:
            there = self._objects.get(path)
            if there is not None and token is not None and there.token != token:
                return False
            if there is not None:
                del self._objects[path]
                del self._names[bisect_left(self._names, path.encode())]
            return True

    def contents(self) -> dict[str, bytes]:
        """All objects by their path."""
        with self._lock:
            return {path: found.data.to_pybytes() for path, found in self._objects.items()}

    def paths(self, prefix: str, *, after: str = "") -> list[str]:
        """Paths with the prefix, sorted as bytes.

        :param after: only those that come after this one.
        """
        begin = prefix.encode()
        with self._lock:
            start = max(bisect_left(self._names, begin), bisect_right(self._names, after.encode()))
            end = bisect_left(self._names, begin + b"\xff")  # a byte that no name has
            return [name.decode() for name in self._names[start:end]]


_buckets: dict[str, Bucket] = {}


def _bucket(name: str) -> Bucket:
    return _buckets[name]


class MemoryStore(Store):
    """A folder of a bucket. Every promise of :class:`lakemerge.storage.base.Store` holds within one process."""

    def __init__(self, bucket: Bucket, folder: str = "") -> None:
        self.bucket = bucket
        self.prefix = f"{folder}/" if folder else ""

    def __repr__(self) -> str:
        return f"MemoryStore({self.url!r})"

    @property
    def url(self) -> str:
        return f"memory://{self.bucket.name}/{self.prefix}".rstrip("/")

    def spark_url(self, path: str) -> str:
        return f"{self.url}/{check_path(path)}"

    def put_if_absent(self, path: str, data: bytes) -> Put:
        return Put.CREATED if self.bucket.write(self._at(path), data, absent=True) else Put.EXISTS

    def put(self, path: str, data: bytes) -> None:
        self.bucket.write(self._at(path), data)

    def get(self, path: str) -> bytes:
        return self._object(path).data.to_pybytes()

    def stat(self, path: str) -> FileStat | None:
        found = self.bucket.read(self._at(path))
        return None if found is None else _file_stat(path, found)

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        prefix = f"{self._at(folder)}/" if folder else self.prefix
        places = self.bucket.paths(prefix, after=self.prefix + start_after if start_after else "")
        found = ((place.removeprefix(self.prefix), self.bucket.read(place)) for place in places)
        return iter([_file_stat(path, there) for path, there in found if there is not None])

    def folders(self, folder: str) -> Sequence[str]:
        prefix = f"{self._at(folder)}/" if folder else self.prefix
        rests = (path.removeprefix(prefix).partition("/") for path in self.bucket.paths(prefix))
        return sorted({name for name, slash, _ in rests if slash})

    def delete(self, paths: Sequence[str]) -> None:
        for path in [self._at(path) for path in paths]:
            self.bucket.remove(path)

    def delete_empty_folders(self, folder: str) -> None:
        """Nothing: there are no folders without files."""

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        places = [self._at(file.path) for file in files]
        return tuple(
            file for file, at in zip(files, places, strict=True) if not self.bucket.remove(at, token=file.token)
        )

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        return self.bucket.write(self._at(file.path), data, instead_of=file.token)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_path(path)

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        """Nothing: a file that was not finished is nowhere."""
        return ()

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        return pa.BufferReader(self._object(path).data)

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return self._output(self._at(path))

    @contextmanager
    def _output(self, place: str) -> Iterator[pa.NativeFile]:
        file = pa.BufferOutputStream()
        yield file
        self.bucket.write(place, file.getvalue())

    def _at(self, path: str) -> str:
        return self.prefix + check_path(path)

    def _object(self, path: str) -> _Object:
        found = self.bucket.read(self._at(path))
        if found is None:
            raise FileNotFoundError(2, "No such object", f"{self.url}/{path}")
        return found


def _file_stat(path: str, found: _Object) -> FileStat:
    return FileStat(path, found.data.size, found.modified_ms, found.token)
