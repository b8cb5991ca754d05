"""Identifies a snapshot's commit file. So nobody works on another table that was put in the place of the first one."""

from __future__ import annotations

import hashlib

from lakemerge.storage.base import FileStat

__all__ = ["Fingerprint"]


class Fingerprint:
    """The commit file of one version, as it was read or written. Each commit holds a new transaction id, so no
    other table, and no other history of this table, has a file with the same bytes.

    It also remembers how the store last listed the file. This only saves reading the file again. It changes no answer.
    """

    __slots__ = ("_md5", "_seen", "_size_bytes")

    def __init__(self, data: bytes, seen: FileStat | None = None) -> None:
        # Not used as a secret. Object stores use the same sum as the token of a file that was put in one request.
        self._md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self._size_bytes = len(data)
        self._seen = seen

    def is_of(self, data: bytes) -> bool:
        return self == Fingerprint(data)

    def knows(self, found: FileStat) -> bool | None:
        """Whether a listed file is this one; ``None`` if only its content can tell."""
        if found.size_bytes != self._size_bytes:
            return False
        if found == self._seen and (found.token or found.modified_ms):
            return True
        return True if found.token == self._md5 else None

    def remember(self, found: FileStat) -> None:
        """Remember that the listed file was read, and is this one."""
        self._seen = found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint):
            return NotImplemented
        return (self._md5, self._size_bytes) == (other._md5, other._size_bytes)

    def __hash__(self) -> int:
        return hash(self._md5)
