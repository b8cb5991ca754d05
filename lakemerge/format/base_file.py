"""Base files, as values.

Source: docs/table-format.md, sections 2 and 3. A *bucket* is a pair (partition values, bucket number). Its base files
divide its key space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson

from lakemerge.delta import AddFile
from lakemerge.errors import TableDamagedError
from lakemerge.format.keys import BucketId, Key, KeyKinds, check_kinds, key_from_json, key_to_json
from lakemerge.format.names import SLICE_TAG, WINNER_TAG
from lakemerge.format.values import INT32_LIMIT, bucket_count, optional_path, whole_number

__all__ = ["BaseFile", "BaseFiles", "DecodedFiles", "paths_of", "rows_of"]

_MISREAD = (AttributeError, KeyError, ValueError, TypeError)
"""What a tag raises that is not as ours are."""


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A Delta ``add`` that holds merged rows of a bucket, sorted by key, for keys >= ``lower``."""

    add: AddFile
    bucket_id: BucketId
    buckets: int
    lower: Key | None
    """The smallest key for which this file is responsible; ``None`` if its range is open below. The range ends where
    that of the bucket's next file begins."""
    merged_through: int
    """Logs of versions up to and including this one are in the file."""
    ordinal: int
    """The value of ``_lm_file`` in the file."""
    rows: int
    tombstones: str | None
    """Path of the file's tombstones."""
    tombstone_bytes: int
    """The size of that file."""

    @property
    def paths(self) -> tuple[str, ...]:
        """See :func:`paths_of`."""
        return paths_of(self.add)

    @staticmethod
    def tag(
        *,
        bucket: int,
        buckets: int,
        lower: Key | None,
        through: int,
        ordinal: int,
        rows: int,
        tombstones: str | None,
        tombstone_bytes: int = 0,
    ) -> str:
        """The value of :data:`SLICE_TAG`."""
        body: dict[str, object] = {
            "bucket": bucket,
            "buckets": buckets,
            "through": through,
            "ordinal": ordinal,
            "rows": rows,
        }
        if lower is not None:
            body["from"] = key_to_json(lower)
        if tombstones is not None:
            body |= {"tombstones": tombstones, "tombstoneBytes": tombstone_bytes}
        return orjson.dumps(body).decode()

    def merged_to(self, version: int) -> AddFile:
        """The same file for a commit that makes it the state after all records up to a version."""
        tag = orjson.dumps(_body(self.add) | {"through": version}).decode()
        return replace(self.add, tags={**self.add.tags, SLICE_TAG: tag})

    @staticmethod
    def of(add: AddFile, stored_partition_by: Sequence[str]) -> BaseFile:
        """Read an ``add`` and its tag.

        :param stored_partition_by: the partition columns, as ``partitionValues`` names them.
        """
        try:  # not a context manager: a table may have a million files
            body = _body(add)
            partition = tuple(add.partition_values[name] for name in stored_partition_by)
            buckets = bucket_count(body["buckets"])
            return BaseFile(
                add=add,
                bucket_id=BucketId(partition, whole_number(body["bucket"], below=buckets)),
                buckets=buckets,
                lower=key_from_json(body["from"]) if "from" in body else None,
                merged_through=whole_number(body["through"]),
                ordinal=whole_number(body["ordinal"], below=INT32_LIMIT),
                rows=_rows(body),
                tombstones=_tombstones(body),
                tombstone_bytes=whole_number(body.get("tombstoneBytes", 0)),
            )
        except _MISREAD as error:
            raise _unreadable(add, error) from error


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The base files of a version."""

    by_path: Mapping[str, BaseFile]
    by_bucket: Mapping[BucketId, Sequence[BaseFile]]
    """The base files of each bucket, in no particular order."""
    of_minors: frozenset[str]
    """Paths of winner files, and of base files with deletion vectors. Minor compactions tell of them."""

    def changed_to(self, gone: Collection[str], fresh: Sequence[AddFile], new: Sequence[BaseFile]) -> BaseFiles:
        """Those of another version.

        :param gone: paths of files that are not in the table any more, or that came again with another ``add``.
        :param fresh: the ``add`` of each file that is new, or came again.
        :param new: the base files among them.
        """
        by_path, by_bucket = dict(self.by_path), dict(self.by_bucket)
        lost = [file for path in gone if (file := by_path.pop(path, None)) is not None]
        for bucket_id in {file.bucket_id for file in lost}:
            left = [file for file in by_bucket.pop(bucket_id) if file.add.path in by_path]
            if left:
                by_bucket[bucket_id] = left
        came: dict[BucketId, list[BaseFile]] = defaultdict(list)
        for file in new:
            by_path[file.add.path] = file
            came[file.bucket_id].append(file)
        for bucket_id, files in came.items():
            by_bucket[bucket_id] = [*by_bucket.get(bucket_id, ()), *files]
        told = (add.path for add in fresh if add.vector is not None or WINNER_TAG in add.tags)
        return BaseFiles(by_path, by_bucket, self.of_minors.difference(gone).union(told))


_NO_FILES = BaseFiles({}, {}, frozenset())


class DecodedFiles:
    """The base files that were decoded last. A version has most files of the version before it. So a read after each
    commit decodes only files that are new, and touches only their buckets."""

    def __init__(self) -> None:
        self._known: tuple[object, Mapping[str, AddFile], BaseFiles] = (None, {}, _NO_FILES)

    def __reduce__(self) -> tuple[type[DecodedFiles], tuple[()]]:
        return DecodedFiles, ()  # executors have no use for them

    def read(self, adds: Mapping[str, AddFile], stored_partition_by: Sequence[str], kinds: KeyKinds) -> BaseFiles:
        """The base files of a version.

        :param adds: the version's data files, by path.
        :param stored_partition_by: as for :meth:`BaseFile.of`.
        :param kinds: the kinds of the table's keys.
        """
        of, before, known = self._known
        meaning = (tuple(stored_partition_by), kinds)
        if of != meaning:
            before, known = {}, _NO_FILES
        # These two look at each file of the table, so they do as little as can be.
        fresh = [add for path, add in adds.items() if before.get(path) is not add]
        gone = [path for path in before if path not in adds]
        if fresh or gone:
            own = [add for add in fresh if WINNER_TAG not in add.tags]
            new = [_checked(BaseFile.of(add, stored_partition_by), kinds) for add in own]
            gone += [add.path for add in fresh if add.path in before]
            known = known.changed_to(gone, fresh, new)
        self._known = (meaning, adds, known)
        return known


def _checked(file: BaseFile, kinds: KeyKinds) -> BaseFile:
    try:
        check_kinds(file.lower, kinds)
    except TypeError as error:
        raise TableDamagedError(f"the tag of file {file.add.path!r}: {error}", path=file.add.path) from error
    return file


def rows_of(adds: Iterable[AddFile]) -> int:
    """The rows that the tags of base files tell, together. Winner files among them do not count."""
    total = 0
    for add in adds:
        if WINNER_TAG not in add.tags:
            with _naming(add):
                total += _rows(_body(add))
    return total


def paths_of(add: AddFile) -> tuple[str, ...]:
    """A base or winner file and, where it has any, its tombstones and its deletion vectors."""
    tombstones = None
    if WINNER_TAG not in add.tags:
        with _naming(add):
            tombstones = _tombstones(_body(add))
    vectors = None if add.vector is None else add.vector.path
    return tuple(path for path in (add.path, tombstones, vectors) if path is not None)


def _body(add: AddFile) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(add.tags[SLICE_TAG])
    return body


def _rows(body: Mapping[str, Any]) -> int:
    return whole_number(body["rows"], below=INT32_LIMIT)


def _tombstones(body: Mapping[str, Any]) -> str | None:
    return optional_path(body.get("tombstones"))


@contextmanager
def _naming(add: AddFile) -> Iterator[None]:
    try:
        yield
    except _MISREAD as error:
        raise _unreadable(add, error) from error


def _unreadable(add: AddFile, error: Exception) -> TableDamagedError:
    return TableDamagedError(
        f"file {add.path!r} is in the table without a readable {SLICE_TAG!r} tag ({error!r}); another writer "
        "than LakeMerge must have added it",
        path=add.path,
    )
