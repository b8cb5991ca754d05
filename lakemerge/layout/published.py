"""What other Delta engines see of a version.

They see the base files, and in a table that publishes by deletion vectors also what minor compactions merged. A file
slice shows its rows as of one version. All file slices together show a version of the table if none lacks a record that
this version has. Source: docs/table-format.md, section 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakemerge.layout.view import FileSlice, TableView

__all__ = ["Published", "is_shown", "oldest_hidden", "published_of"]


@dataclass(frozen=True, slots=True)
class Published:
    """What other engines see."""

    version: int
    """The newest version whose rows they see, except in file slices that lag behind."""
    behind: int
    """How many file slices lag behind that version. The view is that version only if there are none."""
    oldest: int | None
    """The oldest version that may have a record which they do not see; ``None`` if they see all."""


def is_shown(file_slice: FileSlice) -> bool:
    """Whether other engines see all that a file slice has."""
    return not file_slice.blocks and not _is_merged_unseen(file_slice)


def published_of(view: TableView, file_slices: Sequence[FileSlice] | None = None) -> Published:
    """What other engines see of a version."""
    slices = view.file_slices if file_slices is None else file_slices
    through = max((_shown_through(each) for each in slices), default=-1)
    lacking = [(each, oldest) for each in slices if (oldest := oldest_hidden(each)) is not None]
    # The versions of rows that were merged and not published are not known.
    late = [oldest for each, oldest in lacking if oldest > through and not _is_merged_unseen(each)]
    newest = min((oldest - 1 for oldest in late), default=view.version)
    return Published(newest, len(lacking) - len(late), min((oldest for _, oldest in lacking), default=None))


def _is_merged_unseen(file_slice: FileSlice) -> bool:
    return file_slice.minor is not None and not file_slice.minor.published


def _shown_through(file_slice: FileSlice) -> int:
    """The version through which the records of a file slice are in what other engines see. Those of the reset of an
    overwrite count, since it took the others away for everybody."""
    if file_slice.base is None:
        return file_slice.reset
    minor = file_slice.minor
    own = file_slice.base.merged_through if minor is None or not minor.published else minor.through
    return max(own, file_slice.reset)


def oldest_hidden(file_slice: FileSlice) -> int | None:
    """The oldest version that may have a record which other engines do not see; ``None`` if there is none."""
    minor, base = file_slice.minor, file_slice.base
    if minor is not None and not minor.published and base is not None:
        return max(base.merged_through, file_slice.reset) + 1
    return file_slice.oldest_live
