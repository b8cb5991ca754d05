"""What a store of objects needs of the client for its protocol: requests to one bucket, by keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

from lakemerge.storage.base import FileStat, Put

__all__ = ["ObjectClient", "Parts"]


class Parts(Protocol):
    """An upload in parts. Nothing of it is seen before it is finished."""

    def send(self, part: bytes) -> None:
        """Send a part that is not the last one. All of these have one size."""

    def finish(self, last: bytes) -> None:
        """Send the last part, which is not empty. Then the object is there, whole."""

    def abort(self) -> None:
        """End the upload. Nothing of it is ever seen."""


class ObjectClient(ABC):
    """A client for one bucket. It is thread-safe, and in a forked child it makes its own connections.

    A missing object raises :class:`FileNotFoundError`, and anything else that the store says raises
    :class:`lakemerge.errors.StoreError`, with the store's own code as ``store_code``. Passing failures are retried, but
    for :meth:`put_if_absent` and :meth:`replace`, which nothing sends a second time. No secret appears in an error, a
    log record or a ``repr``.

    The ``path`` of a :class:`FileStat` is here the key of an object. Its ``token`` tells the versions of an object
    apart.
    """

    condition: ClassVar[str]
    """The condition of a put-if-absent, as the protocol words it."""
    own_hosts: ClassVar[tuple[str, ...]]
    """How the names of the hosts end that the owner of the protocol runs, whose promises are documented."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    @abstractmethod
    def url(self, key: str) -> str:
        """The object as the user knows it."""

    @abstractmethod
    def host_of_writes(self) -> str:
        """The host to which conditional writes go. Raises :class:`lakemerge.errors.DependencyMissingError` if a package
        below would leave the conditions out."""

    @abstractmethod
    def look(self, key: str) -> FileStat:
        """Size, time and token of the object."""

    @abstractmethod
    def read(self, key: str, start: int | None = None, end: int | None = None, *, etag: str | None = None) -> bytes:
        """Read the object, or its bytes from ``start`` up to ``end`` (excluded).

        :param etag: the token of the version to read, with ``start`` and ``end``. If the object has another version,
            :class:`lakemerge.errors.StoreError` is raised.
        """

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Create or replace the object."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> Put:
        """Make one conditional request. See :meth:`lakemerge.storage.base.Store.put_if_absent`."""

    @abstractmethod
    def replace(self, key: str, data: bytes, *, etag: str) -> bool:
        """Replace the version with that token: ``False`` if the object has another one, or is not there. It is one
        request, after whose failure the object may be replaced or not."""

    @abstractmethod
    def delete(self, files: Sequence[tuple[str, str]]) -> Sequence[str]:
        """Delete the objects, each given by its key and token. With an empty token any version is deleted. Missing ones
        are passed over. Returns the keys of those that were left because their token is another one."""

    @abstractmethod
    def listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        """The objects whose keys begin with ``prefix`` and are greater than ``start_after``, sorted by their bytes."""

    @abstractmethod
    def prefixes(self, prefix: str) -> Iterator[str]:
        """The keys that begin with ``prefix`` as far as their next slash, each once, in any order."""

    @abstractmethod
    def begin(self, key: str) -> Parts:
        """Begin an upload in parts."""

    @abstractmethod
    def clean_up(self, prefix: str, *, before_ms: int, dry_run: bool) -> Sequence[FileStat]:
        """End the uploads that began before that time and were never finished, and return them. ``dry_run`` only
        returns them. Where the store ends them by itself, and tells nobody of them, this is nothing."""

    def delete_folders(self, prefix: str) -> None:  # noqa: B027 - most stores have no folders
        """Delete the empty folders of that prefix, where the store has folders."""
