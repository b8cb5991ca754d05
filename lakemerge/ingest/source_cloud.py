"""Files that land in a bucket of Google Cloud Storage or a container of Azure.

Every read names the generation or ETag that was listed, so no window holds parts of two versions. A delete names it,
too. A move reads that version, writes it to its new place, and then deletes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from lakemerge.errors import StoreError
from lakemerge.ingest.source import FileUnreadableError, Outcome, Source, SourceFile, changed, gone, is_hidden
from lakemerge.storage.azure import AzureStore
from lakemerge.storage.base import FileStat
from lakemerge.storage.cloud_client import OtherVersionError
from lakemerge.storage.gcs import GCSStore
from lakemerge.storage.object_input import ObjectInput

__all__ = ["CloudSource", "root_of"]

_UNREADABLE: Final = frozenset(
    {
        "forbidden",
        "403",
        "AuthorizationPermissionMismatch",
        "AuthorizationFailure",
        "BlobArchived",
        "BlobBeingRehydrated",
    }
)
"""Errors of one object: no permission, or a tier from which it has to be brought back before a read."""
_PIECE_BYTES: Final = 16 << 20


class CloudSource(Source):
    """One bucket or container. Options are those of the store; pickles carry them, secrets included.

    :param root: ``gs://bucket``, ``az://container`` or ``abfss://container@account...``.
    """

    def __init__(self, root: str, storage_options: Mapping[str, object]) -> None:
        self._root, self._options = root, storage_options
        self._store: GCSStore | AzureStore = (
            GCSStore(root, storage_options) if root.startswith("gs://") else AzureStore(root, storage_options)
        )

    def __repr__(self) -> str:
        return f"CloudSource({self._root!r})"

    def __reduce__(self) -> tuple[type[CloudSource], tuple[str, Mapping[str, object]]]:
        return type(self), (self._root, self._options)

    def list(self, folder: str, *, recursive: bool) -> Iterator[SourceFile]:
        prefix = self._key(folder).rstrip("/")
        for file in self._store.list(prefix):
            parts = file.path[len(prefix) :].lstrip("/").split("/")
            if (recursive or len(parts) == 1) and not any(map(is_hidden, parts)):
                yield self._file(file)

    def stat(self, path: str) -> SourceFile | None:
        key = self._key(path)
        found = self._store.stat(key) if key and not key.endswith("/") else None
        return None if found is None else self._file(found)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[pa.NativeFile]:
        opened = ObjectInput(self._store.client, self._key(file.path), file.size, etag=file.token)
        with self._readable(file.path), pa.PythonFile(opened, mode="r") as data:
            yield data

    def delete(self, file: SourceFile) -> Outcome:
        there = self.stat(file.path)
        if there is None:
            return Outcome.GONE
        if there.token != file.token or self._store.client.delete([(self._key(file.path), file.token)]):
            return Outcome.CHANGED
        return Outcome.DONE

    def move(self, file: SourceFile, target: str) -> Outcome:
        there = self.stat(file.path)
        if there is None or there.token != file.token:
            return Outcome.GONE if there is None else Outcome.CHANGED
        try:
            self._copy(file, target)
        except FileNotFoundError:
            return Outcome.GONE
        except OtherVersionError:
            return Outcome.GONE if self.stat(file.path) is None else Outcome.CHANGED
        return self.delete(file)

    def archived(self, folder: str) -> Iterator[tuple[SourceFile, int]]:
        for file in self._store.list(self._key(folder).rstrip("/")):
            yield self._file(file), file.modified_ms

    @contextmanager
    def _readable(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise gone(path) from error
        except OtherVersionError as error:
            # Stores say this of a missing object, too.
            raise (gone(path) if self.stat(path) is None else changed(path)) from error
        except StoreError as error:
            if error.facts.get("store_code") not in _UNREADABLE:
                raise
            raise FileUnreadableError(f"{path} cannot be read: {error.facts['store_code']}", path=path) from error

    def _copy(self, file: SourceFile, target: str) -> None:
        to = self if target.startswith(f"{self._root}/") else CloudSource(root_of(target), self._options)
        source = ObjectInput(self._store.client, self._key(file.path), file.size, etag=file.token)
        with to._store.open_output(to._key(target)) as copy:
            while piece := source.read(_PIECE_BYTES):
                copy.write(piece)

    def _key(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    def _file(self, file: FileStat) -> SourceFile:
        return SourceFile(f"{self._root}/{file.path}", file.size_bytes, file.token, file.modified_ms * 1_000_000)


def root_of(path: str) -> str:
    """Scheme and bucket of a whole path."""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
