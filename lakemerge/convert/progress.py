"""What a conversion has done so far: one file for each part of the table whose base files are written.

A part is noted by a put-if-absent. So of several processes that convert the same table at once, one notes it, and all
use the files of that one. The notes of a version and a definition are in a folder of their own, because they are of no
use to any other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from lakemerge.delta import AddFile, CommitInfo, Metadata, Snapshot, decode, encode
from lakemerge.errors import StoreError, TableDamagedError
from lakemerge.format.names import CONVERT_FOLDER
from lakemerge.storage.base import Put, Store
from mergers.logs import logger

__all__ = ["Done", "Progress"]

_logger = logger(__name__)

_NOTE = "lakemerge.step"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Done:
    """One part of the table that is written."""

    first_ordinal: int
    ordinals: int
    """How many it reserves from there on."""
    rows: int
    """The rows that were read for it."""
    buckets: int
    adds: tuple[AddFile, ...]

    @property
    def next_ordinal(self) -> int:
        return self.first_ordinal + self.ordinals


@dataclass(frozen=True, slots=True)
class Progress:
    """The notes of one conversion."""

    store: Store
    folder: str

    @staticmethod
    def of(store: Store, begin: Snapshot, defined: Metadata, arguments: object) -> Progress:
        """
        :param defined: the metadata that the table is to have.
        :param arguments: what else decides on the files, as JSON can hold it.
        """
        told = orjson.dumps(
            [
                begin.metadata.id,
                begin.version,
                begin.digest,
                defined.schema_string,
                list(defined.partition_columns),
                sorted(defined.configuration.items()),
                arguments,
            ]
        )
        return Progress(store, f"{CONVERT_FOLDER}/{begin.version:020d}-{hashlib.sha256(told).hexdigest()[:32]}")

    def done(self, step: int) -> Done | None:
        """``None``: the part is not written, or files of it are gone."""
        path = self._path(step)
        try:
            data = self.store.get(path)
        except FileNotFoundError:
            return None
        found = _decoded(data, path)
        if self._are_there(found.adds):
            return found
        _logger.warning("files of %s are gone, so that part is converted again", path)
        self.store.delete([path])
        return None

    def note(self, step: int, done: Done) -> Done:
        """Note a part, unless another process has. Returns what is noted."""
        path, data = self._path(step), _encoded(done)
        for _ in range(_TRIES):
            outcome = self.store.put_if_absent(path, data)
            if outcome is Put.CREATED:
                return done
            try:
                return _decoded(self.store.get(path), path)
            except FileNotFoundError:
                continue
        raise StoreError(f"the store did not tell whether {path} was written; convert the table again to go on")

    def check_there(self, parts: Iterable[Done]) -> None:
        """Raise :class:`TableDamagedError` if a file is gone that the commit is about to name."""
        if not self._are_there([add for part in parts for add in part.adds]):
            raise TableDamagedError(
                f"files that the conversion wrote are gone from {self.store.url}, as after a vacuum of another engine: "
                "convert the table again",
                url=self.store.url,
            )

    def forget(self) -> None:
        """Delete the notes."""
        if paths := [file.path for file in self.store.list(self.folder)]:
            self.store.delete(paths)
            self.store.delete_empty_folders(self.folder)

    def _path(self, step: int) -> str:
        return f"{self.folder}/{step:08d}.json"

    def _are_there(self, adds: Sequence[AddFile]) -> bool:
        by_folder: dict[str, dict[str, int]] = defaultdict(dict)
        for add in adds:
            by_folder[add.path.rpartition("/")[0]][add.path] = add.size_bytes
        for folder, wanted in by_folder.items():
            there: Mapping[str, int] = {file.path: file.size_bytes for file in self.store.list(folder)}
            if any(there.get(path) != size for path, size in wanted.items()):
                return False
        return True


def _encoded(done: Done) -> bytes:
    numbers = {
        "firstOrdinal": done.first_ordinal,
        "ordinals": done.ordinals,
        "rows": done.rows,
        "buckets": done.buckets,
    }
    return encode([CommitInfo({_NOTE: numbers}), *done.adds])


def _decoded(data: bytes, path: str) -> Done:
    actions = decode(data, path)
    info = next((action.fields for action in actions if isinstance(action, CommitInfo)), {})
    numbers = info.get(_NOTE)
    try:
        if not isinstance(numbers, dict):
            raise ValueError("it has no numbers")
        return Done(
            int(numbers["firstOrdinal"]),
            int(numbers["ordinals"]),
            int(numbers["rows"]),
            int(numbers["buckets"]),
            tuple(action for action in actions if isinstance(action, AddFile)),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(
            f"{path} is no note of a conversion ({error}): delete it, and convert the table again", path=path
        ) from error
