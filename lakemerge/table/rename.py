"""Renaming a table: its folder gets another name, in one step.

Source: docs/table-format.md, section 4. Nothing in a table names its folder. Whoever has the table open by its old name
finds nothing there; a commit that was on its way to the old name fails, and is not in the table.
"""

from __future__ import annotations

from lakemerge.errors import InputError, TableExistsError
from lakemerge.handle import Handle
from lakemerge.storage import open_store
from lakemerge.storage.local import LocalStore

__all__ = ["rename_table"]


def rename_table(handle: Handle, path: str) -> None:
    """Give a table's folder another name.

    :param path: a local folder that is not there, or is empty.
    :raises lakemerge.NotATableError: there is no table, or a plain Delta table.
    :raises lakemerge.InputError: the table is in a store that has no folders.
    :raises lakemerge.TableExistsError: the new name is taken.
    """
    handle.view(handle.log.snapshot())  # raises for a plain Delta table
    store = handle.store
    if not isinstance(store, LocalStore):
        raise InputError(
            f"the table at {store.url} cannot be renamed: an object store has no folders, so each file would be "
            "copied, one after the other; make a table of the new name by CREATE TABLE ... AS SELECT, and drop this one"
        )
    target = open_store(path).url
    try:
        store.move(target)
    except FileExistsError as error:
        raise TableExistsError(f"the folder {target} has files already") from error
