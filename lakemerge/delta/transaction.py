"""The identity of one commit, and whether the log may hold it.

A write that fails deletes its files only if its commit surely did not land and cannot land. Reading the log does not
prove that while a request may still be under way: it may be carried out after the files are gone. Proofs are that no
request was ever sent, or that every version that was tried is held by another commit, which was read back. So the mark
is set before each request, and cleared by such a proof alone (docs/table-format.md, 4.5).
"""

from __future__ import annotations

__all__ = ["Transaction"]


class Transaction:
    """One commit on its way into the log."""

    __slots__ = ("_may_land", "id")

    def __init__(self, txn_id: str) -> None:
        self.id = txn_id
        """The ``txnId`` of the commit. The names of the write's files contain it."""
        self._may_land = False

    def __repr__(self) -> str:
        return f"Transaction({self.id!r}, may_land={self._may_land})"

    @property
    def may_land(self) -> bool:
        """Whether the commit may be in the log, or may get there yet."""
        return self._may_land

    def send(self) -> None:
        """Say that a commit file is about to be sent, or was found in the log."""
        self._may_land = True

    def lose(self) -> None:
        """Say that no request of this commit can be carried out any more: the version that was tried is another's."""
        self._may_land = False
