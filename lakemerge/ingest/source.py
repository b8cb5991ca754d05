"""Where files land: what ingest needs of the folders and buckets that it reads. The table's own store is a
:class:`Store`.

A version of a file is known by its path, its size and the store's *token*, never by a time alone. The token is the ETag
on S3 and Azure, the generation on Google Cloud Storage, and locally time of change in ns, size and inode. Paths are
whole: absolute local paths, or URLs such as ``s3://bucket/key``. A source is picklable, because Spark sends it to
executors.
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
"""Endings that tools give to the names of files while they write them."""


class SourceFile(NamedTuple):
    """One version of a file."""

    path: str
    size: int
    token: str
    modified_ns: int
    """The time of the last change, by the source's own clock."""


class Outcome(Enum):
    """What became of a file that should be moved or deleted."""

    DONE = "done"
    CHANGED = "changed"
    """Another version of it is there, and was not touched."""
    GONE = "gone"


class FileGoneError(RetryError):
    """A file that was listed is not there any more."""

    code = "file-gone"


class FileChangedError(RetryError):
    """A file has other bytes than the version that was listed."""

    code = "file-changed"


class FileUnreadableError(InputError):
    """A file is there but cannot be read, or does not have its format."""

    code = "file-unreadable"


class Source(ABC):
    """See the module docstring. Other errors of a store are raised as they are."""

    @abstractmethod
    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        """The files of a folder, sorted by path, without hidden and unfinished ones (:func:`is_hidden`). A missing
        folder has none."""

    @abstractmethod
    def stat(self, path: str) -> SourceFile | None:
        """The present version of a file; ``None`` if there is no file, or a folder."""

    @abstractmethod
    def open(self, file: SourceFile) -> AbstractContextManager[pa.NativeFile]:
        """Open a version for random access.

        Raises :class:`FileGoneError` and :class:`FileUnreadableError`. If some of the bytes read are not of that
        version, :class:`FileChangedError` is raised, at the latest when the context ends."""

    @abstractmethod
    def delete(self, file: SourceFile) -> Outcome:
        """Delete a file if it still has that version."""

    @abstractmethod
    def move(self, file: SourceFile, target: str) -> Outcome:
        """Move a file, if it still has that version, to another path of the same kind of source."""

    @abstractmethod
    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        """All files below a folder, sorted by path, each with the time when it came there, in UTC epoch ms."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder is passed over, because its name says that it is not to be read, or not yet.

    These are names that begin with a dot or an underscore, as in Spark (except ``_day=1``, a partition folder), and
    names that writers give to unfinished files.
    """
    first = name[:1]  # called for a million names, so every call counts
    return first == "." or (first == "_" and "=" not in name) or name.endswith(_UNFINISHED)


def changed(path: str) -> FileChangedError:
    return FileChangedError(f"{path} changed after it was listed; the next scan finds what it is now", path=path)


def gone(path: str) -> FileGoneError:
    return FileGoneError(f"{path} is not there any more", path=path)
