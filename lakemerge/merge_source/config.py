"""The configuration of a merge source: its datasets, when entities are the same, and how to combine them."""

from __future__ import annotations

import copy
import datetime as dt
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, get_args

from lakemerge._internal.arguments import shown
from lakemerge.errors import InputError, MergeConfigError
from lakemerge.merge_source.datasets import Dataset, TableLike
from lakemerge.merge_source.rules import Rules, parse_rules
from lakemerge.merge_source.sesam import load_sesam
from lakemerge.merge_source.survivorship import Survivors, parse_survivorship
from lakemerge.quantities import milliseconds_of
from lakemerge.table.table import LakeTable
from mergers.logs import logger

__all__ = ["MergeConfig"]

Identity = Literal["composite", "first", "stable"]
Strategy = Literal["default", "compact", "list"]
TypeConflicts = Literal["refuse", "string"]
Transitive = Literal["values", "entities"]
Oversize = Literal["leave_out", "fail"]

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "identity": get_args(Identity),
    "strategy": get_args(Strategy),
    "type_conflicts": get_args(TypeConflicts),
    "transitive": get_args(Transitive),
    "oversize": get_args(Oversize),
}
_NOT_STORED: Final = ("datasets", "rules", "survivors")
_FLAGS: Final = ("ignore_non_existent_datasets", "supports_signalling")
_ALIAS = re.compile(r"[^\s.`'\"(),=]+")

_logger = logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """A merge source's configuration. Everything is checked when it is made.

    :param datasets: in order, by alias. Never change the order: add new ones at the end.
    :param equality: pairs of expressions of two datasets or of one, as ``["eq", "a.x", ["lower", "b.y"]]`` or as
        ``"a.x = lower(b.y)"``.
    :param equality_sets: lists of expressions that are all equal.
    :param identity: ``composite``: ids of all members; ``first``: the id of the first member; ``stable``: a number that
        stays while the rows of the entity change, until it joins another entity.
    :param strategy: how members are combined: ``default`` (all values), ``compact`` (each value once), ``list`` (the
        members as they are).
    :param max_merged: how many entities may become one.
    :param oversize: what happens to a value that would make more one: ``leave_out``: it joins nobody, and the result
        names it; ``fail``: the run fails, and changes nothing.
    :param max_retired: which share of the entities a run may delete or retire without a successor. A run that would do
        so to more of them, and to more than one, fails and changes nothing.
    :param deleted_retention: how long an entity whose row is gone stays in the output, with ``_deleted`` and its last
        values, such as ``"30d"``, seconds or a timedelta; by default for ever. Later runs take it out of output and
        state.
    :param initial_datasets: names of the datasets that must be populated before anything is output; by default all.
    :param ignore_non_existent_datasets: whether one of these datasets may be missing.
    :param supports_signalling: whether :meth:`MergeSource.follow` runs as soon as an input commits.
    :param type_conflicts: columns of one name without a common type are refused, or become ``string``.
    :param overrides: a table whose rows say which rows of datasets are the same and which are different, whatever the
        rules say.
    :param one_per_dataset: names or aliases of the datasets of which an entity has at most one row.
    :param survivorship: for columns that are to hold one value, the rule that chooses it: ``first``, ``longest``,
        ``most_frequent``, ``union``, ``{"newest": column}``, ``{"priority": [datasets]}`` or ``{"expression": sql}``.
    :param transitive: ``values``: rules that share an expression work together; ``entities``: each rule works alone.
    :raises lakemerge.MergeConfigError: something cannot be used; every problem is listed.
    """

    datasets: Mapping[str, TableLike | Dataset]
    equality: Sequence[object] = ()
    equality_sets: Sequence[Sequence[object]] = ()
    identity: Identity = "composite"
    strategy: Strategy = "default"
    max_merged: int = 50_000
    oversize: Oversize = "leave_out"
    max_retired: float = 0.2
    deleted_retention: str | float | dt.timedelta | None = None
    initial_datasets: Sequence[str] | None = None
    ignore_non_existent_datasets: bool = True
    supports_signalling: bool = False
    version: int | None = 2
    type_conflicts: TypeConflicts = "refuse"
    transitive: Transitive = "values"
    overrides: TableLike | Dataset | None = None
    one_per_dataset: Sequence[str] = ()
    survivorship: Mapping[str, object] = field(default_factory=dict)
    rules: Rules = field(init=False, repr=False, compare=False)
    survivors: Survivors = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        problems: list[str] = []
        datasets = _datasets(self.datasets, problems)
        _check_choices(self, problems)
        names = {name for alias, dataset in datasets.items() for name in (alias, dataset.name)}
        initial = _named(self.initial_datasets, "initial_datasets", names, problems)
        single = _named(self.one_per_dataset, "one_per_dataset", names, problems)
        equality = _listed(self.equality, "equality", problems)
        sets = _listed(self.equality_sets, "equality_sets", problems)
        named = [(alias, str(dataset.name)) for alias, dataset in datasets.items()]
        survivors = parse_survivorship(self.survivorship, named, self.strategy, problems)
        overrides = _overrides(self.overrides, datasets, problems)
        transitive: object = self.transitive
        pairwise = isinstance(transitive, str) and transitive == "entities"
        rules = parse_rules(equality, sets, list(datasets), pairwise=pairwise, problems=problems)
        if problems:
            raise MergeConfigError(
                "the merge source cannot be configured that way: " + "; ".join(problems), problems=tuple(problems)
            )
        if self.version != 2:
            _logger.warning(
                "merge source version %s is deprecated and is read as version 2; set version to 2", self.version or 1
            )
        checked: dict[str, object] = {
            "datasets": datasets,
            "equality": equality,
            "equality_sets": sets,
            "initial_datasets": initial,
            "one_per_dataset": single or (),
            "overrides": overrides,
            "survivors": survivors,
            "survivorship": {rule.column: rule.told(list(datasets)) for rule in survivors.values()},
        }
        if self.deleted_retention is not None:
            kept = milliseconds_of(self.deleted_retention, "deleted_retention")
            checked["deleted_retention"] = dt.timedelta(milliseconds=kept)
        for name, value in (checked | {"rules": rules, "version": 2}).items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_sesam(
        cls, source: str | os.PathLike[str] | Mapping[str, Any], tables: Mapping[str, TableLike | Dataset]
    ) -> MergeConfig:
        """From Sesam's JSON: the configuration of a pipe, or of its source.

        :param source: a mapping, JSON text or the path of a file.
        :param tables: the table behind each dataset id that the configuration names.
        :raises lakemerge.MergeConfigError: it cannot be used; every problem is listed.
        """
        return cls(**load_sesam(source, tables))

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(self.datasets)

    @property
    def inputs(self) -> tuple[Dataset, ...]:
        """The datasets by offset, each with a name."""
        return tuple(dataset for dataset in self.datasets.values() if isinstance(dataset, Dataset))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(dataset.name) for dataset in self.inputs)

    @property
    def override_dataset(self) -> Dataset | None:
        """The table of overrides, with a name."""
        return self.overrides if isinstance(self.overrides, Dataset) else None

    @property
    def single_offsets(self) -> frozenset[int]:
        """The offsets of the datasets of which an entity has at most one row."""
        pairs = zip(self.aliases, self.names, strict=True)
        wanted = set(self.one_per_dataset)
        return frozenset(offset for offset, pair in enumerate(pairs) if wanted & set(pair))

    def with_rules(self, rules: Rules) -> MergeConfig:
        """The configuration with its rules in another form of the same meaning."""
        changed = copy.copy(self)
        object.__setattr__(changed, "rules", rules)
        return changed

    @property
    def retention_ms(self) -> int | None:
        """``deleted_retention`` in milliseconds."""
        kept = self.deleted_retention
        return None if kept is None else milliseconds_of(kept, "deleted_retention")

    def to_json(self) -> dict[str, Any]:
        """The configuration as JSON, without credentials; :meth:`from_json` reads it."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_STORED}
        described = {
            alias: {"table": dataset.url, "name": dataset.name, "id": dataset.id_columns, "deleted": dataset.deleted}
            for alias, dataset in zip(self.aliases, self.inputs, strict=True)
        }
        kept = self.retention_ms
        one = self.override_dataset
        return told | {
            "datasets": described,
            "deleted_retention": None if kept is None else kept / 1000,
            "overrides": None if one is None else {"table": one.url, "name": one.name, "id": one.id_columns},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> MergeConfig:
        datasets = {alias: Dataset(**told) for alias, told in stored["datasets"].items()}
        overrides = None if stored["overrides"] is None else Dataset(**stored["overrides"])
        return cls(**{**stored, "datasets": datasets, "overrides": overrides})


def _datasets(given: Any, problems: list[str]) -> dict[str, Dataset]:
    if not isinstance(given, Mapping) or not given:
        problems.append("datasets must be a mapping of at least one alias to its table")
        return {}
    found: dict[str, Dataset] = {}
    for alias, value in given.items():
        if not isinstance(alias, str) or _ALIAS.fullmatch(alias) is None:
            problems.append(f"datasets: {alias!r} is not an alias; use a word without dots, quotes and brackets")
            continue
        if not isinstance(value, Dataset | str | os.PathLike | LakeTable):
            problems.append(f"datasets: {alias!r} must be a path, a LakeTable or a Dataset, not {shown(value)}")
            continue
        dataset = value if isinstance(value, Dataset) else Dataset(value)
        found[alias] = Dataset(
            dataset.table, dataset.name or alias, dataset.id_columns, dataset.deleted, dataset.storage_options
        )
    for what in ("name", "place"):
        values = [str(getattr(dataset, what)) for dataset in found.values()]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            problems.append(f"datasets: {', '.join(map(repr, twice))} appears twice; a dataset appears once")
    problems += [
        f"datasets: {dataset.name!r} is the name of dataset {alias!r} and the alias of another one; overrides and "
        "options could mean either, so rename one of them"
        for alias, dataset in found.items()
        if dataset.name != alias and dataset.name in found
    ]
    return found


def _check_choices(config: MergeConfig, problems: list[str]) -> None:
    for name, choices in _CHOICES.items():
        value = getattr(config, name)
        if not isinstance(value, str) or value not in choices:
            problems.append(f"{name} must be {' or '.join(map(repr, choices))}, not {shown(value)}")
    problems += [
        f"{name} must be true or false, not {shown(getattr(config, name))}"
        for name in _FLAGS
        if not isinstance(getattr(config, name), bool)
    ]
    limit: Any = config.max_merged
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        problems.append(f"max_merged must be a whole number from 1 on, not {shown(limit)}")
    share: Any = config.max_retired
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        problems.append(f"max_retired must be a share from 0 to 1, not {shown(share)}")
    if config.deleted_retention is not None:
        try:
            milliseconds_of(config.deleted_retention, "deleted_retention")
        except InputError as error:
            problems.append(error.message)
    version: Any = config.version
    if version is not None and (type(version) is not int or version not in (1, 2)):
        problems.append(f"version must be 2 (1 is read as 2), not {shown(version)}")


def _named(given: Any, option: str, known: set[str | None], problems: list[str]) -> tuple[str, ...] | None:
    """The names of datasets."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Sequence):
        problems.append(f"{option} must be a list of names, not {shown(given)}")
        return None
    unknown = [name for name in given if not isinstance(name, str) or name not in known]
    problems += [f"{option}: there is no dataset {shown(name)}" for name in unknown]
    return tuple(given)


def _overrides(given: Any, datasets: Mapping[str, Dataset], problems: list[str]) -> Dataset | None:
    if given is None:
        return None
    if not isinstance(given, Dataset | str | os.PathLike | LakeTable):
        problems.append(f"overrides must be a path, a LakeTable or a Dataset, not {shown(given)}")
        return None
    one = given if isinstance(given, Dataset) else Dataset(given)
    if one.deleted is not None:
        problems.append("overrides: deleted marks rows of datasets; to take an override back, delete its row")
    found = Dataset(one.table, one.name or "overrides", one.id_columns, None, one.storage_options)
    if found.place in {dataset.place for dataset in datasets.values()}:
        problems.append("overrides: the table is a dataset, too; it must be one of its own")
    return found


def _listed(given: Any, name: str, problems: list[str]) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        problems.append(f"{name} must be a list, not {shown(given)}")
        return ()
    return tuple(given)
