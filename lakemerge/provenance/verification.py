"""The result of :meth:`lakemerge.LakeTable.verify_merger`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakemerge.provenance.verdicts import shown_value
from lakemerge.results.display import Shown, counted
from mergers.wording import printable

__all__ = ["DeliveryCheck", "MergerVerification", "RefutedLaw"]

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefutedLaw:
    """The smallest history found whose rows depend on the delivery. Its text shows all of it."""

    key: _Row
    stored: _Row | None
    """The stored row before the records."""
    forgotten: bool
    """Whether the key is stored as deleted before the records."""
    records: tuple[tuple[int, str, _Row], ...]
    """Version, kind and columns of each record, in their order."""
    delivery: str
    """How the records come, in words."""
    expected: str
    """The row, if they come as they came."""
    found: str
    """The row after the other delivery."""

    def __str__(self) -> str:
        lines = [f"key {_values(self.key)}"]
        if self.stored is not None:
            lines.append(f"  stored: {_values(self.stored, self.key)}")
        elif self.forgotten:
            lines.append("  stored: deleted")
        for name, (version, kind, values) in zip(names_of(len(self.records)), self.records, strict=True):
            lines.append(f"  {name} (version {version}): {kind} {_values(values, self.key)}".rstrip())
        lines += [f"  as they came: {self.expected}", f"  {self.delivery}: {self.found}"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryCheck:
    """One way in which records were delivered again."""

    name: str
    """``compacted``, ``projected``, ``combined``, ``doubled``, ``shuffled`` or ``selective``."""
    law: str | None
    """The law that promises the same rows; ``None`` if every merger has to give them."""
    promised: bool
    """Whether the merger declares the law, or the caller requires it."""
    words: str
    histories: int
    """How many histories were delivered that way, each time counted."""
    counterexample: RefutedLaw | None

    @property
    def is_broken(self) -> bool:
        """Whether rows differ that may not."""
        return self.promised and self.counterexample is not None

    @property
    def verdict(self) -> str:
        """What was found, on one line."""
        if self.counterexample is None:
            found = "the same rows"
        else:
            found = "OTHER ROWS" if self.promised else "other rows, as nothing else is promised"
        of = "" if self.law is None else f" ({self.law.replace('_', '-')}{'' if self.promised else ', not declared'})"
        return f"{self.words}{of}: {found} in {counted(self.histories, 'history')}".replace("historys", "histories")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergerVerification(Shown):
    """What a merger made of a table's own records, delivered in other ways."""

    version: int
    begins: int
    """The version onto whose stored rows the records are folded."""
    merger: str
    options: Mapping[str, object]
    keys: int
    records: int
    seed: int
    checks: tuple[DeliveryCheck, ...]
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[DeliveryCheck, ...]:
        """The checks that found rows that differ, although they may not."""
        return tuple(check for check in self.checks if check.is_broken)

    @property
    def is_sound(self) -> bool:
        """Whether no promise was found broken. That is no proof."""
        return not self.broken

    def __str__(self) -> str:
        head = f"merger {self.merger!r} on {self.records:,} records of {counted(self.keys, 'key')}"
        lines = [f"{head}, versions {self.begins} to {self.version}"]
        for check in self.checks:
            lines.append(f"{'BROKEN' if check.is_broken else 'ok'}: {check.verdict}")
            if check.counterexample is not None:
                lines += [f"    {line}" for line in str(check.counterexample).splitlines()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(printable(line) for line in lines)

    def report(self) -> tuple[tuple[str, str], ...]:
        """Names and values to show to people, one pair a line."""
        return (
            ("merger", self.merger),
            ("records", f"{self.records:,} of {counted(self.keys, 'key')}"),
            *((check.name, check.verdict) for check in self.checks),
            *((check.name, str(check.counterexample)) for check in self.broken),
            *(("note", note) for note in self.notes),
        )


def names_of(count: int) -> list[str]:
    """Names of so many records: ``a``, ``b``, and so on."""
    return ["abcdefghijklmnopqrstuvwxyz"[place] if count <= 26 else f"r{place + 1}" for place in range(count)]


def values_of(row: _Row | None) -> str:
    """A row in words."""
    return "no row" if row is None else _values(row)


def _values(row: _Row, key: _Row | None = None) -> str:
    return ", ".join(f"{name} {shown_value(value)}" for name, value in row.items() if name not in (key or {}))
