"""Options after columns got other names: the parts that several mergers share.

Each function takes an option as it is kept, and gives it with other names. What is not given stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Rename", "by_column", "listed", "renamed", "sequence_names", "sequences"]

Rename = Callable[[Any, Mapping[str, str]], object]
"""Gives the value of an option with other names of columns."""


def renamed(
    options: Mapping[str, object], names: Mapping[str, str], changes: Mapping[str, Rename]
) -> Mapping[str, object]:
    """The options, some of which are changed."""
    return {
        option: changes[option](value, names) if option in changes and value is not None else value
        for option, value in options.items()
    }


def by_column(value: Mapping[str, object], names: Mapping[str, str]) -> object:
    """An object whose members are named by columns."""
    return {names.get(column, column): entry for column, entry in value.items()}


def listed(value: list[str], names: Mapping[str, str]) -> object:
    """A list of columns."""
    return [names.get(column, column) for column in value]


def sequences(value: Mapping[str, list[str]], names: Mapping[str, str]) -> object:
    """Sequence groups: columns with commas between them -> the members."""
    return {_group(group, names): listed(members, names) for group, members in value.items()}


def sequence_names(value: list[str], names: Mapping[str, str]) -> object:
    """A list of sequence groups."""
    return [_group(group, names) for group in value]


def _group(name: str, names: Mapping[str, str]) -> str:
    parts = [part.strip() for part in name.split(",")]
    return ",".join(names.get(part, part) for part in parts) if any(part in names for part in parts) else name
