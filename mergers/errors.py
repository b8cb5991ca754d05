"""The root of every error LakeMerge raises, and the errors of mergers.

Errors are grouped by what a caller does about them: fix the input, fix the table, install something, or try again. Each
has a stable ``code``, and its facts as attributes. All of them survive pickling, because Spark sends them from
executors to the driver.
"""

from __future__ import annotations

from typing import ClassVar

from mergers.wording import Speller, plain, printable, worded

__all__ = [
    "InputError",
    "InstallError",
    "LakeMergeError",
    "MergeOverflowError",
    "MergeValueError",
    "MergerConfigurationError",
    "MergerContractError",
    "MergerMissingError",
    "MergerRegistrationError",
    "RecordRefusedError",
    "RetryError",
    "TableError",
]


class LakeMergeError(Exception):
    """Root of all errors. ``code`` is stable across versions; ``facts`` hold the particulars."""

    code: ClassVar[str] = "lakemerge"

    def __init__(self, message: str, **facts: object) -> None:
        """:param message: the text, with its parameters marked (:mod:`mergers.wording`). Control characters in it are
        escaped; facts keep them."""
        self.message = printable(plain(message), lines=True)
        super().__init__(self.message)
        self.facts: dict[str, object] = {name: _plain(fact) for name, fact in facts.items()}
        self._marked = message

    def __getattr__(self, name: str) -> object:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"

    def worded(self, spell: Speller) -> str:
        """The message for a reader who has other names for parameters; see :func:`mergers.wording.worded`."""
        return printable(worded(self._marked, spell), lines=True)

    def __reduce__(self) -> tuple[object, tuple[type[LakeMergeError], str, dict[str, object]]]:
        return _rebuild, (type(self), self._marked, self.facts)


def _plain(fact: object) -> object:
    if isinstance(fact, str):
        return plain(fact)
    return tuple(map(_plain, fact)) if type(fact) is tuple else fact


def _rebuild(kind: type[LakeMergeError], message: str, facts: dict[str, object]) -> LakeMergeError:
    return kind(message, **facts)


class InputError(LakeMergeError):
    """The caller's input cannot be used. Nothing was committed. Fix the input."""

    code = "input"


class TableError(LakeMergeError):
    """The table is damaged, foreign, or of a version this library does not understand."""

    code = "table"


class InstallError(LakeMergeError):
    """Something is not installed or not registered. The message says what."""

    code = "install"


class RetryError(LakeMergeError):
    """The operation did not take effect, or may not have. The message says which, and what to do."""

    code = "retry"


class MergerConfigurationError(InputError):
    """A merger's options do not fit the table; every problem is listed in ``problems``."""

    code = "merger-configuration"


class MergerRegistrationError(InputError):
    """A merger class cannot be registered: no UUID, or an id or name that is already taken."""

    code = "merger-registration"


class RecordRefusedError(InputError):
    """The table's merger does not accept a record of this kind."""

    code = "record-refused"


class MergeOverflowError(LakeMergeError):
    """The merge of a key gives no value: a total does not fit its column, a rule or condition of
    ``expression`` fails, or a value has more than 2 GiB. ``key`` says where, and so does ``column``,
    unless a condition failed. The records stay in the logs."""

    code = "merge-overflow"


class MergeValueError(LakeMergeError):
    """A stored value cannot be merged, such as bytes that are no sketch, or the merge leaves null in a NOT NULL
    column; ``key`` and ``column`` say which."""

    code = "merge-value"


class MergerContractError(LakeMergeError):
    """A merger returned something its contract does not allow. Fix the merger."""

    code = "merger-contract"


class MergerMissingError(InstallError):
    """The table names a merger that nobody registered."""

    code = "merger-missing"
