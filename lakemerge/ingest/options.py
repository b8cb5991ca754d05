"""What a caller says about an ingest job: which files, how they are gathered, and what happens to them afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from lakemerge._internal.arguments import check_fields, checked, shown
from lakemerge.bins import BinLimits
from lakemerge.errors import InputError
from lakemerge.ingest.discovery import Overwrites
from lakemerge.ingest.formats.choose import FORMATS
from lakemerge.ingest.places import Places, whole_path
from lakemerge.quantities import bytes_of, milliseconds_of

__all__ = ["After", "Archive", "BadRecords", "Bins", "Files", "Fragments", "Location"]

Location = str | os.PathLike[str]
Size = int | str
"""A number of bytes, or a text such as ``64MiB``."""
BadRecords = Literal["fail", "quarantine"]
After = Literal["keep", "delete", "archive"]

_NO_OPTIONS: Final[Mapping[str, Any]] = MappingProxyType({})


class Files:
    """The files of folders, or those that a caller lists.

    :param locations: folders and files, local paths (``~`` is the user's own folder) or URLs (``s3://``, ``gs://``, ``az://``,
        ``abfss://``); or one iterable of them, or a function that gives one at every scan.
    :param format: ``csv``, ``json`` (lines), ``parquet``, ``text``, ``avro`` or ``orc``.
    :param pattern: a regular expression that the whole name of a file matches; its named groups serve
        :class:`Bins` and :class:`Fragments`.
    :param recursive: whether folders inside of folders are looked into.
    :param block_bytes: size of the blocks that files are read in, where their format can be split.
    :param columns: the columns to read; others are left out. For CSV without a header: all columns, in their order.
    :param options: options of the format (docs/guides/ingest.md).
    :param settle: how long size and token of a file must stand still before it is read.
    :param overwrites: whether a file that changed after it was ingested is taken up again, or is refused.
    :param storage_options: options for buckets, as for tables.
    :raises lakemerge.InputError: something is wrong with the arguments. It is raised before anything is listed.
    """

    @checked
    def __init__(
        self,
        *locations: Location | Iterable[Location] | Callable[[], Iterable[Location]],
        format: str,  # noqa: A002 - what Spark and everybody else calls it
        pattern: str | None = None,
        recursive: bool = True,
        block_bytes: Size = 64 << 20,
        columns: Sequence[str] | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
        settle: object = 0,
        overwrites: Overwrites = "ingest",
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        if not locations:
            raise InputError("say where the files are: Files('s3://landing/orders/', format='json')")
        if format not in FORMATS:
            raise InputError(f"format must be one of {', '.join(sorted(FORMATS))}, not {format!r}")
        how: object = overwrites
        if not isinstance(how, str) or how not in ("ingest", "refuse"):
            raise InputError(f"overwrites must be 'ingest' or 'refuse', not {shown(overwrites)}")
        if isinstance(columns, str) or not all(isinstance(name, str) for name in columns or ()):
            raise InputError(f"columns must be a list of names, not {columns!r}")
        if not isinstance(options, Mapping):
            raise InputError(f"options must be a mapping of names to values, not {options!r}")
        self.format = format
        self.pattern = _compiled(pattern)
        self.recursive = recursive
        self.block_bytes = bytes_of(block_bytes, "block_bytes")
        self.columns = None if columns is None else tuple(columns)
        self.options = dict(options)
        self.settle_ms = milliseconds_of(settle, "settle")
        self.overwrites: Overwrites = overwrites
        self.places = Places(storage_options or {})
        self._locations = locations
        for location in locations:
            if isinstance(location, str | os.PathLike):
                whole_path(location)
        if self.block_bytes < 1:
            raise InputError("block_bytes must be at least 1")

    def __repr__(self) -> str:
        return f"Files({', '.join(map(repr, self.names))}, format={self.format!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """The locations, for people; empty if an iterable or a function gives them."""
        return tuple(whole_path(place) for place in self._locations if isinstance(place, str | os.PathLike))

    def locations(self) -> Iterator[str]:
        """Whole paths of all locations. An iterable that can be gone through once is empty the next time."""
        for given in self._locations:
            if isinstance(given, str | os.PathLike):
                yield whole_path(given)
            else:
                found = given() if callable(given) else given
                try:
                    each = iter(found)
                except TypeError:
                    what = shown(found)
                    raise InputError(f"a location must be a path, a URL or a list of them, not {what}") from None
                yield from map(whole_path, each)

    def groups(self, path: str) -> Mapping[str, str | None] | None:
        """The named groups of a file's name; ``None`` where the name does not match."""
        if self.pattern is None:
            return {}
        match = self.pattern.fullmatch(path.rpartition("/")[2])
        return None if match is None else match.groupdict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Files gathered until they are worth a window, as NiFi's MergeRecord gathers them.

    A bin is merged when it has both minima at the end of a scan, as soon as it has either maximum, when it is too old,
    or when another bin needs its place. For limits of records the records of files have to be counted: a footer says
    how many there are, and a file without one is read once to count them.
    """

    min_records: int | None = None
    max_records: int | None = None
    """A soft limit: a file whose records go beyond it still belongs to the bin."""
    min_bytes: Size | None = None
    max_bytes: Size | None = None
    """A hard limit, except for a file that is larger by itself."""
    max_age: object = None
    """The age is counted from when the first file of the bin was found."""
    max_bins: int | None = 5
    """How many bins are open at a time; the oldest one is merged to make room."""
    correlate: Sequence[str] = ()
    """Names of groups of the pattern, or of partition folders (``store=7``). Files with different values are never in
    one bin."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.limits()  # raises where they contradict each other
        if isinstance(self.correlate, str) or not all(isinstance(name, str) for name in self.correlate):
            raise InputError(f"correlate must be a list of names, not {self.correlate!r}")

    def limits(self) -> BinLimits:
        """The limits as numbers. Raises :class:`lakemerge.InputError` where they contradict each other."""
        return BinLimits(
            min_records=_number(self.min_records, "min_records") or 0,
            max_records=_number(self.max_records, "max_records"),
            min_bytes=0 if self.min_bytes is None else bytes_of(self.min_bytes, "min_bytes"),
            max_bytes=None if self.max_bytes is None else bytes_of(self.max_bytes, "max_bytes"),
            max_age_ms=None if self.max_age is None else milliseconds_of(self.max_age, "max_age"),
            max_bins=_number(self.max_bins, "max_bins"),
            fit=True,
        )

    @property
    def counts_records(self) -> bool:
        """Whether the records of files have to be counted."""
        return self.max_records is not None or (self.min_records or 0) > 1

    @property
    def has_sizes(self) -> bool:
        """Whether a bin waits for records or bytes, or is full at some number of them."""
        return any(v is not None for v in (self.min_records, self.max_records, self.min_bytes, self.max_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments:
    """Files that belong together, by named groups of the pattern, as NiFi's MergeRecord defragments.

    A set is merged when as many files are there as one of them says: in one commit, in the order of its indices. A set
    fails if its files contradict each other, or if it is not complete in time.
    """

    identifier: str = "identifier"
    """The group that all files of a set have in common."""
    index: str = "index"
    """The group with the number of a file in its set."""
    count: str = "count"
    """The group with the number of files in the set. It need not be in all names, but in one name of each set."""
    max_age: object = None
    """How long the job waits for a set, from when its first file was found."""
    max_bins: int | None = None
    """How many sets the job waits for at a time; the oldest one fails to make room."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.limits()

    def limits(self) -> BinLimits:
        """The limits as numbers."""
        return BinLimits(
            max_age_ms=None if self.max_age is None else milliseconds_of(self.max_age, "max_age"),
            max_bins=_number(self.max_bins, "max_bins"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Where files go after they were ingested, and how long they stay there."""

    folder: str | None = None
    """By default ``_archive`` in the folder that the file was found in."""
    max_age: object = None
    """Files that have been there for longer are deleted."""
    max_bytes: Size | None = None
    """While the archive has more bytes, the oldest files are deleted."""

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.max_age_ms, self.limit_bytes
        if self.folder is not None:
            whole_path(self.folder)

    @property
    def max_age_ms(self) -> int | None:
        """``max_age`` in milliseconds."""
        return None if self.max_age is None else milliseconds_of(self.max_age, "max_age")

    @property
    def limit_bytes(self) -> int | None:
        """``max_bytes`` as a number."""
        return None if self.max_bytes is None else bytes_of(self.max_bytes, "max_bytes")


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InputError(f"pattern {pattern!r} is not a regular expression: {error}", pattern=pattern) from error


def _number(value: Any, what: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise InputError(f"{what} must be a number from 0 on, not {value!r}")
    return value
