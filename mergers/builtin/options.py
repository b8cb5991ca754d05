"""Reading a merger's options: every problem is collected, and then raised as one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mergers.contract import Merger, TableShape
from mergers.errors import MergerConfigurationError

__all__ = ["OptionReader"]


class OptionReader:
    """The options of one merger in the table's configuration.

    If an option is wrong, its getter adds to :attr:`problems` and returns the default. So one pass reports everything;
    :meth:`finish` raises the error.
    """

    def __init__(self, merger: type[Merger], options: Mapping[str, object], shape: TableShape) -> None:
        known = merger.known_options()
        self.merger = merger.name
        self.options = options
        self.shape = shape
        self.problems = [
            f"unknown option {name!r}; {merger.name} has: {', '.join(known) or 'none'}"
            for name in options
            if name not in known
        ]

    def flag(self, name: str) -> bool:
        """A boolean; false if it is not given."""
        value = self.options.get(name, False)
        if not isinstance(value, bool):
            self.problems.append(f"{name} must be true or false, not {value!r}")
            return False
        return value

    def text(self, name: str) -> str | None:
        value = self.options.get(name)
        if value is not None and not isinstance(value, str):
            self.problems.append(f"{name} must be a string, not {value!r}")
            return None
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self.options.get(name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problems.append(f"{name} must be an object, not {value!r}")
            return {}
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return self.strings(self.options.get(name, ()), name)

    def strings(self, value: object, what: str) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            self.problems.append(f"{what} must be a list of names, not {value!r}")
            return ()
        return tuple(value)

    def is_column(self, name: str, what: str) -> bool:
        """Whether the table has the column; notes a problem if not."""
        if name in self.shape.schema.names:
            return True
        self.problems.append(f"{what} names the unknown column {name!r}; columns: {self.shape.schema.names}")
        return False

    def nullable(self, columns: Iterable[str], why: str) -> None:
        """Note every NOT NULL column among those that a merge may leave null."""
        schema = self.shape.schema
        self.problems += [
            f"column {name!r} is NOT NULL, but {why}; declare it without NOT NULL"
            for name in columns
            if name in schema.names and not schema.field(name).nullable and name not in self.shape.key
        ]

    def finish(self) -> None:
        """Raise :class:`MergerConfigurationError` that lists every problem, if there is one."""
        if self.problems:
            raise MergerConfigurationError(
                f"{self.merger}: " + "; ".join(self.problems), merger=self.merger, problems=tuple(self.problems)
            )
