"""Reading an object by ranges: small reads with a block ahead, announced ones at the same time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lakemerge._internal.cache import Fetched
from lakemerge._internal.pools import thread_pool
from lakemerge.errors import StoreError
from lakemerge.storage.object_client import ObjectClient

__all__ = ["ObjectInput"]

_READ_AHEAD_BYTES = 64 << 10
_GAP_BYTES = 128 << 10
"""Two ranges with at most this between them are fetched as one: another request would take longer."""
_RANGE_BYTES = 16 << 20
"""A range is joined with the next one up to this size. Larger ones arrive sooner in two requests at the same time."""
_AT_ONCE = 16
"""How many ranges of a file are fetched at the same time."""


class ObjectInput(io.RawIOBase):
    """Random access by ranged requests. A small read fetches a block ahead, which serves the next reads. A large read,
    as Parquet readers make them, fetches exactly its bytes. Bytes that :meth:`will_read` has fetched are given once.

    :param etag: the ETag of the version to read; see :meth:`ObjectClient.read`.
    :param small: if the file is small and never changes: where it is kept whole.
    """

    def __init__(
        self, client: ObjectClient, key: str, size_bytes: int, *, etag: str | None = None, small: Fetched | None = None
    ) -> None:
        super().__init__()
        self._small = small
        self._client, self._key, self._size_bytes, self._etag = client, key, size_bytes, etag
        self._position = 0
        self._block_start, self._block = 0, b""
        self._ahead: list[_Ahead] = []

    def will_read(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch what the next reads want, all at the same time. They would ask one after the other.

        :param ranges: begin and end of each read, in bytes. They do not overlap.
        """
        self._ahead = []
        if self._small is not None or not ranges:
            return
        wanted = _joined(sorted(ranges))
        with thread_pool(min(_AT_ONCE, len(wanted))) as pool:
            blocks = pool.map(lambda joined: self._fetched(joined[0][0], joined[-1][1]), wanted)
            self._ahead = [_Ahead(joined[0][0], block, joined) for joined, block in zip(wanted, blocks, strict=True)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        start = self._position
        end = self._size_bytes if size < 0 else min(self._size_bytes, start + size)
        if end <= start:
            return b""
        ahead = self._taken(start, end)
        if ahead is not None:
            self._position = end
            return ahead
        if not (self._block_start <= start and end <= self._block_start + len(self._block)):
            if self._small is None:
                self._block_start, self._block = start, self._fetched(start, max(end, start + _READ_AHEAD_BYTES))
            else:
                whole = partial(self._fetched, 0, self._size_bytes)
                self._block_start, self._block = 0, self._small.get(self._key, whole)
        self._position = end
        return self._block[start - self._block_start : end - self._block_start]

    def close(self) -> None:
        self._ahead = []
        super().close()

    def _taken(self, start: int, end: int) -> bytes | None:
        """These bytes, if they were fetched ahead. A block is let go once all of it that was announced is read."""
        at, parts = start, []
        for block in self._ahead:
            if block.start <= at < block.start + len(block.data) and at < end:
                parts.append(block.data[at - block.start : end - block.start])
                at += len(parts[-1])
                block.unread = [part for part in block.unread if part[0] < start or end < part[1]]
        self._ahead = [block for block in self._ahead if block.unread]
        return b"".join(parts) if at == end else None

    def _fetched(self, start: int, end: int) -> bytes:
        end = min(self._size_bytes, end)
        block = self._client.read(self._key, start, end, etag=self._etag)
        if len(block) != end - start:
            url = self._client.url(self._key)
            raise StoreError(f"{url} ends at {start + len(block)}, not at {self._size_bytes} bytes", url=url)
        return block


@dataclass(slots=True)
class _Ahead:
    """Bytes that were fetched before they were read."""

    start: int
    data: bytes
    unread: list[tuple[int, int]]
    """The announced ranges that nobody has read yet."""


def _joined(ranges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Sorted ranges, with those in one list that one request fetches: small gaps are between them, and the whole is
    not large."""
    found: list[list[tuple[int, int]]] = []
    for start, end in ranges:
        if found and start - found[-1][-1][1] <= _GAP_BYTES and end - found[-1][0][0] <= _RANGE_BYTES:
            found[-1].append((start, end))
        else:
            found.append([(start, end)])
    return found
