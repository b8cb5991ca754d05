"""The options of the change feed in ``spark.read`` and ``spark.readStream``, under Delta's and Spark's names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from lakemerge.datasource.instants import one_version, without_zone
from lakemerge.errors import InputError, VersionNotFoundError
from lakemerge.feed.planner import Limits
from lakemerge.format.feed_offset import Offset
from lakemerge.layout.travel import epoch_ms, find_version
from lakemerge.quantities import byte_count
from lakemerge.table.open_table import OpenTable

__all__ = ["FEED_NAMES", "FEED_OPTIONS", "FeedOptions", "either", "flag", "number", "wants_feed", "word"]

FEED_NAMES = (
    "readChangeFeed", "readChangeData", "startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp",
    "deduplicationMode", "beforeImages", "maxBytesPerTrigger", "maxVersionsPerTrigger", "consumer", "schemaChanges",
)  # fmt: skip
FEED_OPTIONS = frozenset(name.lower() for name in FEED_NAMES)
_LATEST = "latest"
_MODES = ("none", "dropCarryovers", "netChanges")
"""Spark's words. A feed of LakeMerge never has carry-overs."""
_SCHEMA_CHANGES = ("keep", "stop")


def wants_feed(options: Mapping[str, str]) -> bool:
    """Whether a batch read asks for changes."""
    return flag(options, either(options, "readChangeFeed", "readChangeData"))


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """The options as given. :meth:`since`, :meth:`until` and :meth:`begin` look versions up."""

    starting_version: int | str | None
    starting_timestamp: str | None
    ending_version: int | None
    ending_timestamp: str | None
    net: bool
    before_images: bool
    limits: Limits
    consumer: str | None
    stop_at_schema: bool

    @staticmethod
    def of(options: Mapping[str, str]) -> FeedOptions:
        """Raises :class:`InputError` if options are wrong or contradict each other."""
        for one, other in (("startingVersion", "startingTimestamp"), ("endingVersion", "endingTimestamp")):
            if one in options and other in options:
                raise InputError(f"give {one} or {other}, not both")
        starting = options.get("startingVersion")
        latest = starting is not None and starting.lower() == _LATEST
        size, versions = options.get("maxBytesPerTrigger"), number(options, "maxVersionsPerTrigger")
        if versions is not None and versions < 1:
            raise InputError("option maxVersionsPerTrigger must be 1 or more")
        consumer = options.get("consumer")
        if consumer is not None and (starting is not None or "startingTimestamp" in options):
            raise InputError(
                "a consumer has a position of its own: give no startingVersion or startingTimestamp with it"
            )
        return FeedOptions(
            starting_version=_LATEST if latest else number(options, "startingVersion"),
            starting_timestamp=options.get("startingTimestamp"),
            ending_version=number(options, "endingVersion"),
            ending_timestamp=options.get("endingTimestamp"),
            net=word(options, "deduplicationMode", _MODES) == "netChanges",
            before_images=flag(options, "beforeImages", default=True),
            limits=Limits(None if size is None else byte_count(size), versions),
            consumer=consumer,
            stop_at_schema=word(options, "schemaChanges", _SCHEMA_CHANGES) == "stop",
        )

    @property
    def has_first(self) -> bool:
        """Whether an option says where the changes begin."""
        return self.starting_version is not None or self.starting_timestamp is not None

    def since(self, table: OpenTable) -> int:
        """The version after which a batch of changes begins."""
        first = self._first(table)
        if first is None:
            raise InputError(
                "changes begin at a version: give startingVersion (which is included) or startingTimestamp"
            )
        return max(0, first - 1)

    def until(self, table: OpenTable) -> int | None:
        """The last version to read; ``None``: no option limits it."""
        if self.ending_timestamp is None:
            return self.ending_version
        return _in_all_zones(self.ending_timestamp, "endingTimestamp", partial(self._until, table))

    def _until(self, table: OpenTable, timestamp: str | dt.datetime) -> int:
        try:
            found = find_version(table.handle.log, version=None, timestamp=timestamp, savepoint=None)
        except VersionNotFoundError as error:
            if _fact(error, "timestamp_ms") > _fact(error, "latest_ms"):
                return table.version
            raise
        return found.version

    def begin(self, table: OpenTable) -> Offset:
        """Where a new stream begins."""
        if self.consumer is not None:
            return table.consumers.position(self.consumer)
        first = self._first(table)
        return Offset(table.version, of_rows=True) if first is None else Offset(first)

    def _first(self, table: OpenTable) -> int | None:
        if self.starting_version == _LATEST:
            return table.version + 1
        if isinstance(self.starting_version, int):
            return self.starting_version
        if self.starting_timestamp is None:
            return None
        return _in_all_zones(self.starting_timestamp, "startingTimestamp", partial(self._first_at, table))

    def _first_at(self, table: OpenTable, timestamp: str | dt.datetime) -> int:
        try:
            found = find_version(table.handle.log, version=None, timestamp=timestamp, savepoint=None)
        except VersionNotFoundError as error:
            # A time before the first commit is the first commit, as with Delta.
            if _fact(error, "timestamp_ms") < _fact(error, "earliest_ms"):
                return _fact(error, "earliest")
            raise
        exact = table.handle.log.committed_ms(found.version) == epoch_ms(timestamp)
        return found.version if exact else found.version + 1


def _in_all_zones(text: str, option: str, version_at: Callable[[str | dt.datetime], int]) -> int:
    """The version that a time means. A time without a zone must mean it in every zone."""
    time = without_zone(text)
    return version_at(text) if time is None else one_version(time, option, version_at)


def _fact(error: VersionNotFoundError, name: str) -> int:
    value = error.facts.get(name)
    return value if isinstance(value, int) else 0


def flag(options: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InputError(f"option {name} must be true or false, not {text!r}")
    return text == "true"


def either(options: Mapping[str, str], name: str, alias: str) -> str:
    """Which of an option's two names is given."""
    if name in options and alias in options:
        raise InputError(f"options {name} and {alias} are one: give one of them")
    return alias if alias in options else name


def number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InputError(f"option {name} must be a whole number, not {text!r}") from None


def word(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """An option that is one of some words, whatever their case; by default the first."""
    text = options.get(name, words[0])
    found = next((word for word in words if word.lower() == text.lower()), None)
    if found is None:
        raise InputError(f"option {name} must be one of {', '.join(words)}, not {text!r}")
    return found
