"""The commits by which a table forgets: the fence of vacuum, and tombstone expiry.

Source: docs/table-format.md, sections 6 and 7.
"""

from __future__ import annotations

from dataclasses import replace

from lakemerge.handle import Handle
from lakemerge.log import AlreadyDone, Attempt, Committed, Snapshot
from lakemerge.slices.expiry import Expiry, expiries_of, expiry_domain
from lakemerge.slices.records import RECORDS_DOMAIN, records_domain, records_from
from lakemerge.slices.view import TableView, Tile

__all__ = ["commit_expiry", "commit_fence", "merged_everywhere"]


def commit_fence(handle: Handle, begin: TableView, *, oldest: int, records: int) -> Snapshot:
    """From this commit on nobody reads a version below ``oldest`` but by a savepoint, and nothing that
    was begun below it can commit. Returns the version that has the fence.

    :param records: the version from which on records are kept; not above ``oldest``.
    """

    def build(tip: Snapshot | None, _: object) -> Attempt:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        state = handle.view(tip).state
        fenced = replace(
            state,
            oldest_version=max(state.oldest_version, oldest),
            fence_begin_version=max(state.fence_begin_version, oldest),
        )
        kept = max(records, records_from(tip))
        told = kept < fenced.oldest_version or RECORDS_DOMAIN in tip.domains
        return Attempt([fenced.domain(), *([records_domain(kept)] if told else [])])

    parameters = {"oldestVersion": oldest}
    outcome = handle.log.commit(begin.snapshot, build, operation="VACUUM FENCE", parameters=parameters)
    if isinstance(outcome, AlreadyDone):
        raise AssertionError("a fence has no application transaction")
    return outcome.snapshot


def commit_expiry(handle: Handle, begin: TableView, *, horizon: int) -> Committed | AlreadyDone:
    """Forget tombstones that were set at or below a version; not beyond what is compacted everywhere.
    Does nothing where that is forgotten already."""

    def build(tip: Snapshot | None, _: object) -> Attempt | AlreadyDone:
        if tip is None:
            raise AssertionError("the table exists: the commit began from a snapshot")
        view = handle.view(tip)
        merged = merged_everywhere(view)
        known = expiries_of(tip)
        expiry = Expiry(tip.version + 1, min(horizon, merged))
        if expiry.horizon <= max((old.horizon for old in known), default=-1):
            return AlreadyDone(tip.version)
        # Of those that every tile has folded the last says it all.
        folded = [old for old in known if old.version <= merged]
        return Attempt([expiry_domain([*folded[-1:], *(old for old in known if old not in folded), expiry])])

    return handle.log.commit(begin.snapshot, build, operation="EXPIRE TOMBSTONES", parameters={"horizon": horizon})


def merged_everywhere(view: TableView) -> int:
    """The version up to which no record is live in any tile."""
    return min((_oldest_live(tile) - 1 for tile in view.tiles if tile.blocks), default=view.version)


def _oldest_live(tile: Tile) -> int:
    oldest = min(block.version if block.packed_from is None else block.packed_from for block in tile.blocks)
    return max(oldest, tile.merged_through + 1)
