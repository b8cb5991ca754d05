"""The commit from which on a table does not have certain keys any more, in any version that can be read.

Source: docs/table-format.md, section 14.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lakemerge.commits.base import commit_to, landed
from lakemerge.commits.retention import ConsumersChangedError
from lakemerge.delta import Action, Attempt, DomainMetadata, Snapshot
from lakemerge.errors import InputError
from lakemerge.format.consumers import registrations_of
from lakemerge.format.operations import Operation
from lakemerge.format.record_retention import RECORDS_DOMAIN, records_domain
from lakemerge.format.savepoint import check_no_holds, savepoints_of
from lakemerge.handle import Handle
from lakemerge.layout.references import check_domains
from lakemerge.layout.view import TableView
from mergers.wording import argument

__all__ = ["commit_forget"]


def commit_forget(
    handle: Handle, begin: TableView, *, keys: int, digest: str, fenced: bool, drop_savepoints: bool
) -> Snapshot:
    """Commit that the table has forgotten some keys. Returns the version that has the commit.

    It has no rows, and is valid at any tip: whoever calls it looks afterwards for what landed meanwhile. What it says
    of the keys is their number and a digest.

    :param fenced: whether the version is the oldest that can be read from now on, as after the fence of a vacuum.
    :param drop_savepoints: whether it drops the savepoints. Otherwise a savepoint refuses it.
    :raises ConsumersChangedError: there are consumers that ``begin`` lacks, which may need earlier versions.
    """
    known = {consumer.id for consumer in registrations_of(begin.snapshot).values()}

    def build(view: TableView) -> Attempt:
        check_no_holds(view.snapshot, "forget")
        check_domains(view.snapshot)
        if fenced and not drop_savepoints and not _same(known, view.snapshot):
            raise ConsumersChangedError("a consumer was registered meanwhile; try again")
        own = view.version + 1
        actions: list[Action] = []
        saved = savepoints_of(view.snapshot)
        if saved and not drop_savepoints:
            names = ", ".join(map(repr, saved))
            raise InputError(
                f"the table has the savepoints {names}, whose versions have the keys: drop them, or pass "
                f"{argument('drop_history', True)}",
                savepoints=tuple(saved),
            )
        actions += [DomainMetadata(savepoint.domain_name, "", True) for savepoint in saved.values()]
        if fenced:
            state = replace(view.state, oldest_version=own, fence_begin_version=own)
            actions.append(state.domain())
            if RECORDS_DOMAIN in view.snapshot.domains:
                actions.append(records_domain(own))
        return Attempt(actions)

    parameters = {"keys": keys, "digest": digest}
    return landed(commit_to(handle, begin, build, operation=Operation.FORGET, parameters=parameters)).snapshot


def _same(known: Collection[str], tip: Snapshot) -> bool:
    return all(consumer.id in known for consumer in registrations_of(tip).values())
