"""Whether the log in a folder is still the one that a snapshot was read from.

A folder may be emptied, and a table made in it anew, while a program holds an object of the first one. What that
program reads or writes from then on belongs to no table. So each look at the log begins at the snapshot's own
version, and each commit begins with such a look.

A table may also be replaced by a commit in its own log (docs/table-format.md, section 4). Then the log is the same, and
the id that the metadata has tells the two tables apart.
"""

from __future__ import annotations

from lakemerge.delta.listing import Listing, commit_path
from lakemerge.delta.snapshot import Snapshot
from lakemerge.errors import TableReplacedError
from lakemerge.storage.base import Store

__all__ = ["check_same_table", "check_table_id", "holds", "replaced_error"]


def holds(store: Store, snapshot: Snapshot, listing: Listing) -> bool:
    """Whether the log holds the commit of ``snapshot``, by a listing that begins there; ``False`` where the commit's
    file is gone, so that only the table's id can tell. Reads the file only where the listing does not tell enough.

    Raises :class:`TableReplacedError` where another commit has that version.
    """
    own, listed = snapshot.fingerprint, listing.commits.get(snapshot.version)
    if own is None:
        return False
    same = None if listed is None else own.knows(listed)
    if same is None:
        try:
            same = own.is_of(store.get(commit_path(snapshot.version)))
        except FileNotFoundError:
            return False
        if same and listed is not None:
            own.remember(listed)
    if not same:
        raise replaced_error(store, snapshot, "its log has another commit of that version")
    return True


def check_same_table(store: Store, snapshot: Snapshot, other: Snapshot) -> None:
    """Raise :class:`TableReplacedError` where ``other``, read later, is of another table."""
    check_table_id(store, snapshot.metadata.id, other, since=snapshot.version)


def check_table_id(store: Store, table_id: str, snapshot: Snapshot, *, since: int) -> None:
    """Raise :class:`TableReplacedError` if ``snapshot`` is of another table than the one with this id. The caller knows
    the version ``since`` of that table."""
    if snapshot.metadata.id != table_id:
        raise _replaced(store, since, f"the table that is there now has the id {snapshot.metadata.id}")


def replaced_error(store: Store, snapshot: Snapshot, evidence: str) -> TableReplacedError:
    return _replaced(store, snapshot.version, evidence)


def _replaced(store: Store, version: int, evidence: str) -> TableReplacedError:
    return TableReplacedError(
        f"the table at {store.url} was removed or re-created after its version {version} was read: "
        f"{evidence}. Nothing was written. Open it again with LakeTable.open",
        url=store.url,
        version=version,
    )
