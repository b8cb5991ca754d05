"""Loads the configuration of Sesam's merge source, from the JSON of a pipe or of its source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import orjson

from lakemerge._internal.arguments import shown
from lakemerge.errors import MergeConfigError
from lakemerge.merge_source.datasets import Dataset, TableLike
from mergers.logs import logger

__all__ = ["load_sesam"]

_PROPERTIES: Final = frozenset(
    {
        "deleted_retention",
        "equality",
        "equality_sets",
        "identity",
        "ignore_non_existent_datasets",
        "initial_datasets",
        "max_merged",
        "max_retired",
        "one_per_dataset",
        "overrides",
        "oversize",
        "strategy",
        "survivorship",
        "supports_signalling",
        "transitive",
        "type_conflicts",
        "version",
    }
)
"""Properties of the source other than type and datasets. Of these ``deleted_retention``, ``max_retired``,
``one_per_dataset``, ``oversize``, ``overrides``, ``survivorship``, ``transitive`` and ``type_conflicts`` are not
Sesam's, nor is the identity ``stable``."""

_logger = logger(__name__)


def load_sesam(
    source: str | os.PathLike[str] | Mapping[str, Any], tables: Mapping[str, TableLike | Dataset]
) -> dict[str, Any]:
    """The arguments of :class:`MergeConfig`. Raises :class:`MergeConfigError` that lists every problem."""
    given = _source(_read(source))
    problems: list[str] = []
    if given.get("type", "merge") != "merge":
        problems.append(f"the source's type is {given['type']!r}; only 'merge' can be loaded")
    known = {*_PROPERTIES, "type", "datasets"}
    problems += [f"there is no property {name!r}" for name in given if name not in known]
    datasets = _datasets(given.get("datasets"), tables, problems)
    named = given.get("overrides")
    if named is not None and (not isinstance(named, str) or named not in tables):
        problems.append(f"overrides: no table is given for {named!r}; name it in tables")
    if problems:
        raise MergeConfigError("the configuration cannot be used: " + "; ".join(problems), problems=tuple(problems))
    arguments = {name: value for name, value in given.items() if name in _PROPERTIES}
    if named is not None:
        arguments["overrides"] = tables[named]
    return {"version": None, **arguments, "datasets": datasets}


def _read(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    text = source
    if not isinstance(source, str | os.PathLike):
        raise MergeConfigError(
            f"the configuration cannot be read: it must be a mapping, JSON text or a path, not {shown(source)}"
        )
    if not isinstance(source, str) or not source.lstrip().startswith("{"):
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, TypeError, ValueError) as error:
            raise MergeConfigError(f"the configuration {shown(source)} cannot be read: {error}") from error
    try:
        read = orjson.loads(text)
    except ValueError as error:
        raise MergeConfigError(f"the configuration is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise MergeConfigError("the configuration is not a JSON object")
    return read


def _source(given: Mapping[str, Any]) -> Mapping[str, Any]:
    source = given.get("source")
    if source is None:
        return given
    if not isinstance(source, Mapping):
        raise MergeConfigError(f"the pipe's source must be an object, not {source!r}")
    if "transform" in given:
        _logger.warning("the pipe's transform is not run: only its source is used")
    return source


def _datasets(given: Any, tables: Mapping[str, TableLike | Dataset], problems: list[str]) -> dict[str, Dataset]:
    """Alias -> dataset, from texts such as ``"name alias"``."""
    if not isinstance(given, list | tuple) or not given:
        problems.append('datasets must be a list such as ["customers c", "orders o"]')
        return {}
    found: dict[str, Dataset] = {}
    for item in given:
        parts = item.split() if isinstance(item, str) else []
        if len(parts) not in (1, 2):
            problems.append(f'datasets: {item!r} is not a dataset id and an alias, such as "customers c"')
            continue
        name, alias = parts[0], parts[-1]
        if name not in tables:
            problems.append(f"datasets: no table is given for {name!r}; name it in tables")
        elif alias in found:
            problems.append(f"datasets: the alias {alias!r} is used twice")
        else:
            table = tables[name]
            found[alias] = replace(table if isinstance(table, Dataset) else Dataset(table), name=name)
    return found
