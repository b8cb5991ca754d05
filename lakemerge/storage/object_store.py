"""Tables in a bucket, whatever its protocol: what stores of objects have in common.

Put-if-absent is one request with a condition, which is sent once. Still no answer but success proves anything: whoever
commits reads the object back. Objects are deleted and replaced exactly by requests with a condition, too.

An endpoint that ignores the condition would lose commits. So unless the endpoint is that of the protocol's owner, the
first put-if-absent of a store object asks twice to create one empty object of the table
(``_lakemerge/.conditional-put``; it asks once if the object is there already). An endpoint that says yes twice is
refused. This shows that the condition is checked; it cannot show that the check is atomic.

Likewise such an endpoint is asked once to delete an object of the table under a wrong token
(``_lakemerge/.conditional-delete``). If it deletes that object, it ignores the condition, and each object is looked at
again just before.
"""

from __future__ import annotations

import io
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from lakemerge._internal.cache import Fetched
from lakemerge.errors import InputError, StoreError
from lakemerge.storage.base import FileStat, NothingCreatedError, Put, RangedFile, Store, check_path
from lakemerge.storage.object_client import ObjectClient, Parts
from lakemerge.storage.object_input import ObjectInput
from mergers.logs import logger

__all__ = ["BUCKET", "ObjectStore", "clean_prefix"]

_LOG = logger(__name__)

BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_PROBE = "_lakemerge/.conditional-put"
_DELETE_PROBE = "_lakemerge/.conditional-delete"
_PROBES = frozenset({_PROBE, _DELETE_PROBE})
_PART_SIZE_BYTES = 16 << 20
"""All parts but the last have this size, because some stores demand one size. 10 000 parts make 156 GiB."""
_WHOLE_BYTES = 512 << 10
"""A file of at most this size is fetched whole: one more request would take longer than its other bytes."""
_KEPT_BYTES = 32 << 20
"""Such files are kept up to this size in all, because every bucket reads its part of a log file."""
_KEPT_FILE_BYTES = 1 << 10
"""What each of them takes beside its bytes."""

_Client = TypeVar("_Client", bound=ObjectClient)


class ObjectStore(Store, Generic[_Client]):
    """A prefix of a bucket.

    Failures other than a missing file raise :class:`StoreError`. Objects whose keys are not clean paths (``a//b``,
    folder markers) are not listed. Pickles carry the options, secrets included.
    """

    reads_at_once = 16
    wrong_token: ClassVar[str]
    """A token that no object has, in the form that the store's tokens have."""

    def __init__(self, client: _Client, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._is_checked = False
        self._deletes_exactly: bool | None = None
        self._small = Fetched(_KEPT_BYTES, _KEPT_FILE_BYTES)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]: ...

    @property
    def client(self) -> _Client:
        """What makes the requests, by keys of the whole bucket."""
        return self._client

    @property
    def url(self) -> str:
        return self._client.url(self._prefix).rstrip("/")

    def spark_url(self, path: str) -> str:
        return self._client.url(self._key(path))

    def put_if_absent(self, path: str, data: bytes) -> Put:
        key = self._key(path)
        if not self._is_checked:
            try:
                self._is_checked = self._check_endpoint()
            except StoreError as error:
                raise NothingCreatedError(error.message, **error.facts) from error
            if not self._is_checked:
                return Put.UNKNOWN
        return self._client.put_if_absent(key, data)

    def put(self, path: str, data: bytes) -> None:
        self._client.write(self._key(path), data)

    def get(self, path: str) -> bytes:
        return self._client.read(self._key(path))

    def stat(self, path: str) -> FileStat | None:
        try:
            return replace(self._client.look(self._key(path)), path=path)
        except FileNotFoundError:
            return None

    def list(self, folder: str, *, start_after: str = "") -> Iterator[FileStat]:
        prefix = f"{self._key(folder)}/" if folder else self._root
        return self._listed(prefix, self._root + start_after if start_after else "")

    def folders(self, folder: str) -> Sequence[str]:
        prefix = f"{self._key(folder)}/" if folder else self._root
        names = {key[len(prefix) :].rstrip("/") for key in self._client.prefixes(prefix)}
        return sorted(name for name in names if name and _is_clean(name))

    def delete_empty_folders(self, folder: str) -> None:
        """Where there are no folders, nothing but this: with the root go the objects that tried out what the endpoint
        can do, which are never listed."""
        prefix = f"{self._key(folder)}/" if folder else self._root
        if not folder:
            self.delete(sorted(_PROBES))
        self._client.delete_folders(prefix)

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing but a check of the paths: an acknowledged write is durable, whoever made it."""
        for path in paths:
            check_path(path)

    def delete(self, paths: Sequence[str]) -> None:
        self._client.delete([(self._key(path), "") for path in paths])

    def delete_exact(self, files: Sequence[FileStat]) -> tuple[FileStat, ...]:
        keys = {self._key(file.path): file for file in files}
        if not keys:
            return ()
        if not self.deletes_in_one_step():
            seen = [(file, self.stat(file.path)) for file in files]
            changed = tuple(file for file, found in seen if found is not None and not file.is_same(found))
            self.delete([file.path for file in files if file not in changed])
            return changed
        left = self._client.delete([(key, file.token) for key, file in keys.items()])
        return tuple(keys[key] for key in left)

    def replace_exact(self, file: FileStat, data: bytes) -> bool:
        if not self._is_owners() and not file.is_same(self.stat(file.path)):
            return False
        return self._client.replace(self._key(file.path), data, etag=file.token)

    def deletes_in_one_step(self) -> bool:
        """Whether the endpoint deletes an object only under its token. See the module docstring."""
        if self._deletes_exactly is None:
            self._deletes_exactly = self._is_owners() or self._check_deletes()
        return self._deletes_exactly

    def replaces_in_one_step(self) -> bool:
        """Whether the endpoint replaces an object only under its token. An object is written to find out."""
        key = self._root + _DELETE_PROBE
        self._client.write(key, b"")
        try:
            replaced = self._client.replace(key, b"x", etag=self.wrong_token)
        except StoreError:
            replaced = False  # it does not know the field, and refuses all such requests
        is_left = self._client.look(key).size_bytes == 0
        self.delete([_DELETE_PROBE])
        return is_left and not replaced

    def clean_up(self, *, before_ms: int, dry_run: bool) -> tuple[FileStat, ...]:
        """Ends uploads in parts that were begun and never finished. Their parts are hidden, but take space."""
        found = self._client.clean_up(self._root, before_ms=before_ms, dry_run=dry_run)
        return tuple(replace(upload, path=upload.path[len(self._root) :]) for upload in found)

    def open_input(self, path: str, *, size_bytes: int | None = None) -> pa.NativeFile:
        """With ``size_bytes`` no request is made here, and a missing file is found by the first read. Only files that
        never change are opened with their size: if they are small, they are fetched whole, once."""
        key = self._key(path)
        small = None if size_bytes is None or size_bytes > _WHOLE_BYTES else self._small
        if size_bytes is None:
            size_bytes = self._client.look(key).size_bytes
        return RangedFile(ObjectInput(self._client, key, size_bytes, small=small), mode="r")

    def open_output(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return _output(self._client, self._key(path))

    @property
    def _root(self) -> str:
        return f"{self._prefix}/" if self._prefix else ""

    def _key(self, path: str) -> str:
        return self._root + check_path(path)

    def _is_owners(self) -> bool:
        """Whether the owner of the protocol runs the endpoint."""
        return self._client.host_of_writes().endswith(self._client.own_hosts)

    def _check_endpoint(self) -> bool:
        """Whether the endpoint is known to check the condition; ``False`` if it could not be asked. See the module
        docstring. Raises :class:`StoreError` if it ignores the condition."""
        if self._is_owners():
            return True
        outcomes = [self._client.put_if_absent(self._root + _PROBE, b"")]
        if outcomes[0] is Put.CREATED:
            outcomes.append(self._client.put_if_absent(self._root + _PROBE, b""))
        if outcomes == [Put.CREATED, Put.CREATED]:
            raise StoreError(
                f"the endpoint {self._client.host_of_writes()!r} ignores '{self._client.condition}', so two writers "
                "could overwrite each other's commits: it cannot be written; a newer version of the store may support "
                "conditional writes",
                url=self.url,
            )
        return Put.UNKNOWN not in outcomes

    def _check_deletes(self) -> bool:
        key = self._root + _DELETE_PROBE
        self._client.write(key, b"")
        try:
            refused = self._client.delete([(key, self.wrong_token)]) == [key]
        except StoreError:
            refused = False  # it does not know the field
        is_left = self.stat(_DELETE_PROBE) is not None
        self.delete([_DELETE_PROBE])
        return refused and is_left

    def _listed(self, prefix: str, start_after: str) -> Iterator[FileStat]:
        last = b""
        for file in self._client.listed(prefix, start_after):
            if file.path.encode() < last:
                raise StoreError(
                    f"bucket {self._client.bucket!r} does not list in order of keys (a directory bucket?), which "
                    "tables need",
                    url=self.url,
                )
            last = file.path.encode()
            path = file.path[len(self._root) :]
            if _is_clean(path) and path not in _PROBES:
                yield replace(file, path=path)


def clean_prefix(prefix: str) -> str:
    """The part of a URL behind the bucket: clean or empty."""
    prefix = prefix.rstrip("/")
    return check_path(prefix) if prefix else ""


def _is_clean(path: str) -> bool:
    try:
        check_path(path)
    except InputError:
        return False
    return True


class _Upload(io.RawIOBase):
    """Writes up to one part in one request at the end, and more in parts. It holds one part at a time. Closing it
    uploads nothing."""

    def __init__(self, client: ObjectClient, key: str) -> None:
        super().__init__()
        self._client, self._key = client, key
        self._buffer = bytearray()
        self._parts: Parts | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = rest = memoryview(data).cast("B")
        while rest:
            if len(self._buffer) == _PART_SIZE_BYTES:
                self._begun().send(self._taken())
            room = _PART_SIZE_BYTES - len(self._buffer)
            self._buffer += rest[:room]
            rest = rest[room:]
        return view.nbytes

    def finish(self) -> None:
        if self._parts is None:
            self._client.write(self._key, self._taken())
        else:
            self._parts.finish(self._taken())

    def abort(self) -> None:
        if self._parts is None:
            return
        try:
            self._parts.abort()
        except (StoreError, FileNotFoundError) as error:
            # The error that made us abort matters more. Vacuum, or the store, ends uploads that nobody completed.
            _LOG.warning("an upload may stay behind unfinished: %s", error)

    def _begun(self) -> Parts:
        if self._parts is None:
            self._parts = self._client.begin(self._key)
        return self._parts

    def _taken(self) -> bytes:
        part = bytes(self._buffer)
        self._buffer.clear()
        return part


@contextmanager
def _output(client: ObjectClient, key: str) -> Iterator[pa.NativeFile]:
    upload = _Upload(client, key)
    file = pa.PythonFile(upload, mode="w")
    try:
        yield file
        upload.finish()
    except BaseException:
        upload.abort()
        raise
    finally:
        file.close()
