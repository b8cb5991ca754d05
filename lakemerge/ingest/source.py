"""Where files land: what ingest needs of a folder or bucket it reads from, beside the :class:`Store` of the table.

A file is its path, its size and the store's *token* (S3: the ETag; locally time of change in ns, size and inode),
never a time alone. Paths are whole: absolute local ones, or ``s3://bucket/key``. A source is picklable, since Spark
ships it to executors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from lakemerge.errors import InputError, RetryError

__all__ = ["FileChangedError", "FileGoneError", "FileUnreadableError", "Outcome", "Source", "SourceFile", "is_hidden"]

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload", ".swp", "~", "._COPYING_")
"""How names end while a file is being written, by the tools that write them."""


class SourceFile(NamedTuple):
    """One version of a file."""

    path: str
    size: int
    token: str
    modified_ns: int
    """By the source's own clock."""


class Outcome(Enum):
    """What became of a file that was to be moved or deleted."""

    DONE = "done"
    CHANGED = "changed"
    """Another version of it is there, and was left alone."""
    GONE = "gone"


class FileGoneError(RetryError):
    """A file that was listed is not there any more."""

    code = "file-gone"


class FileChangedError(RetryError):
    """A file has other bytes than the version that was listed."""

    code = "file-changed"


class FileUnreadableError(InputError):
    """A file is there and cannot be read, or holds something else than its format says."""

    code = "file-unreadable"


class Source(ABC):
    """See the module docstring. What a store fails with otherwise is raised as it is."""

    @abstractmethod
    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        """The files of a folder, sorted by path, hidden and unfinished ones left out (:func:`is_hidden`); of a folder
        that is not there, none."""

    @abstractmethod
    def stat(self, path: str) -> SourceFile | None:
        """The present version of a file; ``None`` where there is none, or a folder."""

    @abstractmethod
    def open(self, file: SourceFile) -> AbstractContextManager[pa.NativeFile]:
        """Open a version for random access.

        Raises :class:`FileGoneError` and :class:`FileUnreadableError`. Where the bytes that were read are not all of
        that version, :class:`FileChangedError` is raised, at the latest when the context ends."""

    @abstractmethod
    def delete(self, file: SourceFile) -> Outcome:
        """Delete a file if it still has that version."""

    @abstractmethod
    def move(self, file: SourceFile, target: str) -> Outcome:
        """Move a file, if it still has that version, to another path of the same kind of source."""

    @abstractmethod
    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        """All files below a folder, sorted by path, each with the time since when it is there in UTC epoch ms."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder is passed over: by its name it is not meant to be read, or not yet.

    Names that begin with a dot or an underscore (but ``_day=1``, a partition folder), as in Spark, and those that
    writers give to unfinished files.
    """
    first = name[:1]  # a million names are asked: no call that can be spared
    return first == "." or (first == "_" and "=" not in name) or name.endswith(_UNFINISHED)


def changed(path: str) -> FileChangedError:
    return FileChangedError(f"{path} changed after it was listed; the next scan finds what it is now", path=path)


def gone(path: str) -> FileGoneError:
    return FileGoneError(f"{path} is not there any more", path=path)
