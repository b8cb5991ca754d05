"""Files of deletion vectors: one for each commit that publishes, in a folder that has the commit's begin version in its
name.

Other readers take only letters and digits before the file's UUID, so the version stands there, and the UUID is the id
of the commit's transaction. Source: docs/table-format.md, section 11.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from lakemerge.delta.vectors import vector_file
from lakemerge.format.names import VECTOR_PREFIX
from lakemerge.storage.base import FileStat, Store

__all__ = ["VECTOR_FILE", "begin_of", "list_vector_files", "vector_place", "vectors_of"]

VECTOR_FILE: Final = re.compile(
    VECTOR_PREFIX + r"([0-9]{20})/deletion_vector_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin"
)
"""The paths of such files. Others below the root are not LakeMerge's."""
_DIGITS: Final = 20


def vector_place(name: str) -> tuple[str, uuid.UUID]:
    """Folder and UUID of the file of vectors of a write.

    :param name: :meth:`lakemerge.handle.Handle.write_name` of the write.
    """
    return VECTOR_PREFIX + name[:_DIGITS], uuid.UUID(name[_DIGITS + 1 :])


def vectors_of(name: str) -> str | None:
    """The path of that file; ``None`` if the write's transaction has no UUID, so that it has none."""
    try:
        return vector_file(*vector_place(name))[0]
    except ValueError:
        return None


def begin_of(path: str) -> int | None:
    """The version at which the commit of such a file began; ``None`` for other files."""
    found = VECTOR_FILE.fullmatch(path)
    return None if found is None else int(found[1])


def list_vector_files(store: Store, *, since: int = 0) -> Iterator[FileStat]:
    """The files of vectors whose commits began at a version or later, by that version."""
    begin = f"{VECTOR_PREFIX}{since:0{_DIGITS}d}"
    listed = takewhile(lambda file: file.path.startswith(VECTOR_PREFIX), store.list("", start_after=begin))
    return (file for file in listed if VECTOR_FILE.fullmatch(file.path))
