"""The position of a reader of the change feed.

An offset names what is read next: a version, and the place of a unit among the units of that version
(:mod:`lakemerge.feed.units`). Both follow from the table alone. So a batch that is repeated has the same rows, even if
limits, settings or the table's tip have changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lakemerge.errors import InputError
from lakemerge.format.values import whole_number

__all__ = ["Offset"]


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """What is read next."""

    version: int
    position: int = 0
    """How many units of the version were read before."""
    of_rows: bool = False
    """Whether the units are all rows of the version, with which a stream begins, and not the changes of its commit."""

    @property
    def needed_version(self) -> int:
        """The oldest version that the reader still needs: the one before the next commit, or the one whose rows are
        read."""
        return self.version if self.of_rows else max(0, self.version - 1)

    def to_json(self) -> dict[str, object]:
        return {"version": self.version, "position": self.position, "snapshot": self.of_rows}

    @staticmethod
    def of(body: Mapping[str, object]) -> Offset:
        """The offset in JSON. Raises :class:`InputError` if it is none."""
        try:
            version, position = whole_number(body["version"]), whole_number(body["position"])
            return Offset(version, position, of_rows=bool(body.get("snapshot", False)))
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{body!r} is not an offset of a change feed: {error!r}") from error
