"""The commits by which a table forgets: the fence of a vacuum, and a tombstone expiry.

Source: docs/table-format.md, sections 6 and 7.
"""

from __future__ import annotations

from dataclasses import replace

from lakemerge.commits.base import commit_to, landed
from lakemerge.delta import AlreadyDone, Attempt, Committed, Snapshot
from lakemerge.errors import CommitConflictError
from lakemerge.format.consumers import registrations_of
from lakemerge.format.expiries import Expiry, expiries_of, expiry_domain
from lakemerge.format.operations import Operation
from lakemerge.format.record_retention import RECORDS_DOMAIN, records_domain, records_from
from lakemerge.format.savepoint import check_no_holds
from lakemerge.handle import Handle
from lakemerge.layout.references import check_domains
from lakemerge.layout.view import TableView

__all__ = ["ConsumersChangedError", "commit_expiry", "commit_fence", "merged_everywhere"]


class ConsumersChangedError(CommitConflictError):
    """A consumer was registered while a vacuum looked for files to delete. It has to look again."""

    code = "consumers-changed"


def commit_fence(handle: Handle, begin: TableView, *, oldest: int, records: int) -> Snapshot:
    """Commit a fence. From this commit on a version below ``oldest`` can be read only through a savepoint, and a
    transaction begun below it cannot commit. Returns the version that has the fence.

    Raises :class:`ConsumersChangedError` if there are consumers that ``begin`` lacks, because they may need older
    versions.

    :param records: the version from which on records are kept. It is not above ``oldest``.
    """
    known = {consumer.id for consumer in registrations_of(begin.snapshot).values()}

    def build(view: TableView) -> Attempt:
        check_no_holds(view.snapshot, "a vacuum")
        check_domains(view.snapshot)
        if not known.issuperset(consumer.id for consumer in registrations_of(view.snapshot).values()):
            raise ConsumersChangedError("a consumer was registered while vacuum looked for what may go; try again")
        state = view.state
        fenced = replace(
            state,
            oldest_version=max(state.oldest_version, oldest),
            fence_begin_version=max(state.fence_begin_version, oldest),
        )
        kept = max(records, records_from(view.snapshot))
        told = kept < fenced.oldest_version or RECORDS_DOMAIN in view.snapshot.domains
        return Attempt([fenced.domain(), *([records_domain(kept)] if told else [])])

    parameters = {"oldestVersion": oldest}
    return landed(commit_to(handle, begin, build, operation=Operation.VACUUM_FENCE, parameters=parameters)).snapshot


def commit_expiry(handle: Handle, begin: TableView, *, horizon: int) -> Committed | AlreadyDone:
    """Forget tombstones that were set at or below a version, but none that are not compacted in every file slice. Does
    nothing if these are forgotten already."""

    def build(view: TableView) -> Attempt | AlreadyDone:
        merged = merged_everywhere(view)
        known = expiries_of(view.snapshot)
        expiry = Expiry(view.version + 1, min(horizon, merged))
        if expiry.horizon <= max((old.horizon for old in known), default=-1):
            return AlreadyDone(view.version)
        # Every file slice has folded these. The last one has the highest horizon, so it stands for all of them.
        folded = [old for old in known if old.version <= merged]
        return Attempt([expiry_domain([*folded[-1:], *(old for old in known if old not in folded), expiry])])

    return commit_to(handle, begin, build, operation=Operation.EXPIRE_TOMBSTONES, parameters={"horizon": horizon})


def merged_everywhere(view: TableView) -> int:
    """The version up to which no record is live in any file slice."""
    live = (file_slice.oldest_live for file_slice in view.file_slices)
    return min((oldest - 1 for oldest in live if oldest is not None), default=view.version)
