"""Rules after columns got other names: their texts, and the trees that tables keep of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakemerge.sql.parsing import renamed
from lakemerge.sql.trees import Tree, mapped

__all__ = ["renamed_rules"]

_SIDES = ("old", "new")


def renamed_rules(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The options of ``expression`` with other names of columns."""
    found = dict(options)
    for option in ("columns", "first"):
        if option in found:
            found[option] = {
                names.get(name, name): renamed(rule, names, _SIDES) for name, rule in found[option].items()
            }
    for option in ("ignore_when", "remove_when"):
        if found.get(option) is not None:
            found[option] = renamed(found[option], names, _SIDES)
    if "checked" in found:
        found["checked"] = _checked(found["checked"], names)
    return found


def _checked(kept: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = dict(kept)
    if "types" in found:
        found["types"] = {names.get(name, name): kind for name, kind in found["types"].items()}
    for option in ("columns", "first"):
        if option in found:
            found[option] = {names.get(name, name): _rule(rule, names) for name, rule in found[option].items()}
    for option in ("ignore_when", "remove_when"):
        if option in found:
            found[option] = _rule(found[option], names)
    return found


def _rule(kept: list[Any], names: Mapping[str, str]) -> list[Any]:
    text, tree = kept

    def changed(part: Tree) -> Tree | None:
        return [part[0], names.get(part[1], part[1])] if part[0] in (*_SIDES, "is_set") else None

    return [renamed(text, names, _SIDES), mapped(tree, changed)]
