"""Commits that give a version a name, or drop the name."""

from __future__ import annotations

from lakemerge.commits.base import commit_to
from lakemerge.delta import Attempt, DomainMetadata
from lakemerge.errors import InputError
from lakemerge.format.operations import Operation
from lakemerge.format.savepoint import Savepoint, check_savepoint_name, savepoints_of
from lakemerge.handle import Handle
from lakemerge.layout.travel import check_kept, check_version
from lakemerge.layout.view import TableView
from mergers.wording import argument

__all__ = ["drop_savepoint", "save_version"]


def save_version(handle: Handle, begin: TableView, name: str, version: int | None, *, hold: bool = False) -> Savepoint:
    """Name a version; see :meth:`lakemerge.LakeTable.savepoint`."""
    check_savepoint_name(name)
    check_version(version)
    saved = Savepoint(name, begin.version if version is None else version, handle.now_ms(), hold)
    if saved.version != begin.version:
        handle.log.snapshot(version=saved.version)  # raises if there is no such version

    def build(tip: TableView) -> Attempt:
        known = savepoints_of(tip.snapshot).get(name)
        if known is not None:
            raise InputError(
                f"savepoint {name!r} names version {known.version} already; drop it first, or choose another name",
                savepoint=name,
                version=known.version,
            )
        # If a vacuum's fence was first, it decides. A vacuum that comes later sees the savepoint.
        check_kept(saved.version, tip.snapshot)
        return Attempt([saved.domain()])

    parameters = {"name": name, "version": saved.version, **({"hold": True} if hold else {})}
    commit_to(handle, begin, build, operation=Operation.SAVEPOINT, parameters=parameters)
    return saved


def drop_savepoint(handle: Handle, begin: TableView, name: str, *, hold: bool = False) -> None:
    """Drop a name; see :meth:`lakemerge.LakeTable.drop_savepoint`."""

    def build(tip: TableView) -> Attempt:
        known = savepoints_of(tip.snapshot)
        if name not in known:
            raise InputError(f"there is no savepoint {name!r}; there are: {', '.join(known) or 'none'}", savepoint=name)
        if known[name].hold and not hold:
            raise InputError(
                f"savepoint {name!r} is a hold. If nobody needs it any more, release it with {argument('hold', True)}",
                savepoint=name,
            )
        return Attempt([DomainMetadata(known[name].domain_name, "", True)])

    commit_to(handle, begin, build, operation=Operation.DROP_SAVEPOINT, parameters={"name": name})
