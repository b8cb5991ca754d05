"""The chain of commits: each commit says what its own file holds, and which file came before it.

``commitInfo`` has a member ``lakemerge.chain`` with ``lines`` and ``digest``, the count and the SHA-256 of all other
lines of the file, and ``previous``, the SHA-256 of the whole file of the commit before. So a reader finds a file that
lost lines, that has the content of another commit, or that belongs to a table that was here before, without another
request (docs/table-format.md, 4.75 and 4.76).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lakemerge.delta.actions import Action, CommitInfo, Protocol
from lakemerge.delta.listing import commit_path
from lakemerge.errors import TableDamagedError

__all__ = ["CHAIN", "Chain", "digest", "link", "previous_of"]

CHAIN: Final = "lakemerge.chain"
"""The member of ``commitInfo``."""
_LAKEMERGE: Final = "lakemerge"
"""The feature of writers that do so."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def link(rest: bytes, *, after: str | None) -> dict[str, object]:
    """What a commit says of its file.

    :param rest: all lines of the file but that of ``commitInfo``.
    :param after: the digest of the commit before; ``None`` for the first commit, or if it is not known.
    """
    said: dict[str, object] = {"lines": rest.count(b"\n"), "digest": digest(rest)}
    return said if after is None else {**said, "previous": after}


class Chain:
    """Follows commits, oldest first, and refuses one that does not fit the commit before it."""

    def __init__(self, before: str | None = None, *, is_linked: bool = False) -> None:
        """
        :param before: the digest of the commit before the first; ``None`` if there is none, or it is not known.
        :param is_linked: whether all commits have to say what they hold. Else they do from the first on that does.
        """
        self.digest = before
        """That of the last commit."""
        self._is_linked = is_linked

    def follow(self, data: bytes, actions: Sequence[Action], path: str) -> None:
        """Take the next commit. Raises :class:`TableDamagedError` that names the file."""
        said = _said(actions)
        if said is None:
            if self._is_linked:
                raise _damaged(path, "it does not say what it holds, while the commit before it does")
            self.digest = digest(data)
            return
        self._is_linked = True
        rest = _other_lines(data)
        if (said.get("lines"), said.get("digest")) != (rest.count(b"\n"), digest(rest)):
            raise _damaged(path, f"it says that it has {said.get('lines')} other lines, and these are not all there")
        previous = said.get("previous")
        is_first = path == commit_path(0)
        if (is_first and previous is not None) or (self.digest is not None and previous != self.digest):
            raise _damaged(path, "it was made for another commit before it: it belongs to another version or table")
        self.digest = digest(data)
        if any(isinstance(action, Protocol) and _LAKEMERGE not in action.writer_features for action in actions):
            self._is_linked = False  # the table is a plain one from here on, and others commit to it

    @property
    def is_linked(self) -> bool:
        """Whether the last commit said what it holds."""
        return self._is_linked


def previous_of(actions: Iterable[Action]) -> str | None:
    """The digest of the commit before, as a commit says it."""
    said = _said(actions)
    previous = None if said is None else said.get("previous")
    return previous if isinstance(previous, str) else None


def _said(actions: Iterable[Action]) -> Mapping[str, object] | None:
    info = next((action for action in actions if isinstance(action, CommitInfo)), None)
    said = None if info is None else info.fields.get(CHAIN)
    return said if isinstance(said, dict) else None


def _other_lines(data: bytes) -> bytes:
    """The file without the line of ``commitInfo``, which comes first."""
    return data[data.find(b"\n") + 1 :] if b"\n" in data else b""


def _damaged(path: str, what: str) -> TableDamagedError:
    return TableDamagedError(f"{path} is damaged: {what}. Restore the file from a backup", path=path)
