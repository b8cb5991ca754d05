"""What LakeMerge needs of a store: immutable files, listing, and one atomic put-if-absent.

Paths are relative to the table's root, with ``/`` between parts, never absolute, never with
``..``: :func:`check_path` guards every method of every store. A store is picklable (Spark ships
it to executors) and opens its connection on first use.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol

import pyarrow as pa

from lakemerge.errors import InputError, LakeMergeError, StoreError
from mergers.interrupts import is_interrupt

__all__ = ["FileStat", "NothingCreatedError", "Put", "RangedFile", "Store", "check_path", "is_own_failure"]


_PLAIN = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_=.-]*)*")
"""Paths that are clean. Others may be, too."""


class Put(enum.Enum):
    """The outcome of a put-if-absent."""

    CREATED = "created"
    EXISTS = "exists"
    """There is a file already. It may be our own, from an attempt whose response was lost."""
    UNKNOWN = "unknown"
    """The store failed in a way that does not say whether the file was created."""


class NothingCreatedError(StoreError):
    """A put-if-absent created nothing and never will: no request was sent, or a local file system refused it."""


def is_own_failure(error: BaseException) -> bool:
    """Whether an exception can be a store's or this library's own, and so may be handled as one.

    Signal handlers and time limits raise exceptions of their own from inside any call. These say nothing about the
    store, and have to reach whoever set the limit. The ``TimeoutError`` of a handler has no error number, that of the
    system has one.
    """
    if is_interrupt(error):
        return False
    if isinstance(error, OSError):
        return error.errno is not None or not isinstance(error, TimeoutError)
    return isinstance(error, LakeMergeError | pa.ArrowException)


@dataclass(frozen=True, slots=True)
class FileStat:
    path: str
    size_bytes: int
    modified_ms: int
    """UTC epoch milliseconds by the store's own clock."""
    token: str = ""
    """A text that the store changes whenever the file is written: the ETag of an object, or inode and time of a local
    file. Empty if the store has none."""

    def is_same(self, other: FileStat | None) -> bool:
        """Whether nobody wrote the file in between. Times count only where the store has no tokens: some S3 servers
        list them in milliseconds, and tell those of one object in seconds."""
        if other is None or (self.path, self.size_bytes, self.token) != (other.path, other.size_bytes, other.token):
            return False
        return bool(self.token) or self.modified_ms == other.modified_ms


def check_path(path: str) -> str:
    """Return ``path`` if it is a clean relative path, else raise :class:`InputError`."""
    if _PLAIN.fullmatch(path):  # as nearly all are; a plan checks a hundred thousand
        return path
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or ":" in parts[0] or "\\" in path or "\0" in path:
        raise InputError(f"{path!r} is not a clean path inside the table", path=path)
    return path


class Ranged(Protocol):
    """A Python file that can be told what will be read."""

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None: ...


class RangedFile(pa.PythonFile):  # type: ignore[misc]  # pyarrow has no types
    """An input of a store where a request takes long: it may be told what will be read, and then asks for all of it at
    the same time. Whoever tells nothing reads the same bytes."""

    def __init__(self, handle: Ranged, mode: str) -> None:
        super().__init__()  # pyarrow takes the arguments before this
        self._handle = handle

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say what the next reads want: begin and end of each, in bytes. What was said before is forgotten."""
        self._handle.will_read(ranges)


class Store(ABC):
    """A folder in some storage. See the module docstring for paths."""

    reads_at_once: ClassVar[int] = 1
    """How many files to request at a time when a merge needs the first rows of several. It is more than one if a
    request takes much longer than the transfer of its bytes."""

    can_move: bool = False
    """Whether the root can get another name in one step, so that whoever knows the old one finds nothing there."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The root as the user knows it: an absolute local path, or ``s3://bucket/prefix``."""

    @abstractmethod
    def spark_url(self, path: str) -> str:
        """``path`` as Spark's readers and writers need it: ``file:///...`` or ``s3a://...``, without encoding.

        Spark does not decode percent-encoding (checked with 4.2): it would look for a file with ``%20`` in its name.
        Readers take ``*?[]{}`` and a backslash in it as patterns.
        """

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> Put:
        """Create the file with exactly ``data``, durable and visible at once, unless one is there.

        If any number of processes call this for one path, exactly one gets ``CREATED``. It must not be a check
        followed by a write. A request that was sent is never sent again by the store itself.

        Raises :class:`NothingCreatedError` only if nothing was created and nothing will be. Any other
        :class:`lakemerge.errors.StoreError` means the same as ``UNKNOWN``, and says why: an answer over a network, of
        whatever status, does not prove that the request was not carried out. Exceptions that are not the store's
        (:func:`is_own_failure`) pass through; after them nothing is known.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write the file whole, replacing what was there. Readers see the old or the new bytes."""

    @abstractmethod
    def get(self, path: str) -> bytes:
        """The whole file. Raises :class:`FileNotFoundError`."""

    @abstractmethod
    def stat(self, path: str) -> FileStat | None:
        """Size and time of the file, or ``None`` if there is none."""

    @abstractmethod
    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        """All files below ``folder`` (recursive; ``""`` is the root), sorted by path as bytes,
        whose path is greater than ``start_after`` (a full path). A missing folder is empty."""

    @abstractmethod
    def folders(self, folder: str) -> Sequence[str]:
        """The names of the folders in ``folder`` (``""`` is the root), sorted. A missing folder has none. Where files
        alone make a folder, as in an object store, these are the folders with files."""

    @abstractmethod
    def delete(self, paths: Sequence[str]) -> None:
        """Delete files. Missing files are passed over."""

    @abstractmethod
    def delete_empty_folders(self, folder: str) -> None:
        """Delete ``folder`` (``""`` is the root itself) and the folders in it, as far as they hold no files. An object
        store has no such folders. With the root goes what the store keeps there for itself."""

    @abstractmethod
    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        """Delete the very files that were listed, and not what was written under their names since. Missing files are
        passed over. Returns those that were left because another file has the name now.

        It is one step where the store has such a request. Else each file is looked at again just before.
        """

    @abstractmethod
    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        """Replace the very file that was listed: ``False`` if another file has the name now, or none. Readers see the
        old or the new bytes. As in :meth:`delete_exact`, some stores look again just before. If the answer is lost,
        :class:`lakemerge.errors.StoreError` is raised, and the file may or may not be replaced."""

    @abstractmethod
    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable that something else than this store wrote, such as Spark's own writer, and with them
        their names and all folders up to the root. When it returns, they are as durable as after :meth:`put`. Whoever
        commits such files calls it before.

        Raises :class:`FileNotFoundError` for a missing file where the store has to open it. An object store, whose
        writes are durable once they are acknowledged, does nothing.
        """

    @abstractmethod
    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        """Delete half-written files of killed writers. These are never listed. They are deleted if they were last
        touched before ``before_ms`` by the store's clock. Returns them; ``dry_run`` only returns them. A size is 0 if
        the store does not say it. If a writer at work is hit, its write fails, but nothing is lost that was reported as
        written."""

    @abstractmethod
    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        """Open for random access. A known ``size_bytes`` may save a request.
        Raises :class:`FileNotFoundError`; if the size was given, perhaps only at the first read."""

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """Open for streamed writing of a new file (multi-part on object stores). The file becomes
        visible, whole and durable, when the context ends; if it ends with an exception, nothing
        becomes visible. Closing the file early publishes nothing.

        The caller keeps names unique: an existing file is replaced."""
