"""Resets: what an overwrite made dead of the logs that are still in the table.

Source: docs/table-format.md, section 4; docs/merge-semantics.md, section 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from lakemerge._internal.cached import cached_property
from lakemerge.delta import DomainMetadata
from lakemerge.errors import TableDamagedError
from lakemerge.format.block_checks import partition_of
from lakemerge.format.keys import Partition
from lakemerge.format.names import RESET_DOMAIN
from lakemerge.format.values import whole_number

__all__ = ["Reset", "Resets"]


class Reset(NamedTuple):
    """One overwrite of a partition. No record of a version up to and including ``version`` counts there."""

    version: int
    partition: Partition | None
    """``None``: all partitions."""

    def covers(self, partition: Partition) -> bool:
        return self.partition is None or self.partition == partition


@dataclass(frozen=True)
class Resets:
    """The resets of a version. At most one is of all partitions, and at most one of each partition."""

    entries: tuple[Reset, ...] = ()

    @cached_property
    def _versions(self) -> Mapping[Partition | None, int]:
        return {entry.partition: entry.version for entry in self.entries}

    def through(self, partition: Partition) -> int:
        """The version through which the records of a partition are dead; -1 if none is. An overwrite has no records, so
        this is the version before it, as for the base files that it writes."""
        if not self.entries:
            return -1
        known = self._versions
        return max(known.get(None, 0), known.get(partition, 0)) - 1

    def with_entries(self, entries: Iterable[Reset]) -> Resets:
        """With later resets. What these cover goes."""
        latest: dict[Partition | None, int] = dict(self._versions)
        for entry in entries:
            latest[entry.partition] = max(entry.version, latest.get(entry.partition, 0))
        whole = latest.get(None, 0)
        left = (Reset(version, of) for of, version in latest.items() if of is None or version > whole)
        return Resets(tuple(sorted(left, key=_order)))

    def needed(self, oldest: Mapping[Partition, int]) -> Resets:
        """Without those that no record needs.

        :param oldest: for each partition that some log domain has a block of, the oldest version of a record.
        """
        everywhere = min(oldest.values(), default=None)

        def is_needed(entry: Reset) -> bool:
            found = everywhere if entry.partition is None else oldest.get(entry.partition)
            return found is not None and found <= entry.version

        return Resets(tuple(filter(is_needed, self.entries)))

    def domain(self) -> DomainMetadata:
        """The domain. Its removal, if there is no reset."""
        if not self.entries:
            return DomainMetadata(RESET_DOMAIN, "", True)
        body = {"resets": [[version, None if of is None else list(of)] for version, of in self.entries]}
        return DomainMetadata(RESET_DOMAIN, orjson.dumps(body).decode(), False)

    @staticmethod
    def of(domains: Mapping[str, DomainMetadata]) -> Resets:
        domain = domains.get(RESET_DOMAIN)
        return Resets() if domain is None else Resets(tuple(_parsed(domain)))


def _order(entry: Reset) -> tuple[int, tuple[tuple[bool, str], ...]]:
    return entry.version, tuple((value is not None, value or "") for value in entry.partition or ())


def _parsed(domain: DomainMetadata) -> Iterator[Reset]:
    try:
        for version, values in orjson.loads(domain.configuration)["resets"]:
            yield Reset(whole_number(version), None if values is None else partition_of(values))
    except (KeyError, ValueError, TypeError) as error:
        raise TableDamagedError(f"domain {domain.domain!r} is damaged: {error!r}", domain=domain.domain) from error
