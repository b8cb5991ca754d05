"""``MergeSource``: a table with one merged entity for each entity that several tables describe."""

from __future__ import annotations

import datetime as dt
import functools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from lakemerge._internal.arguments import checked, shown
from lakemerge.errors import InputError, NotATableError, TableDamagedError, TableExistsError
from lakemerge.merge_source.check import check
from lakemerge.merge_source.columns import found_in, warn_of_kinds
from lakemerge.merge_source.combine import OutputShape
from lakemerge.merge_source.config import MergeConfig
from lakemerge.merge_source.config_changes import shape_taken_up, taken_up
from lakemerge.merge_source.explain import entities_of, explain, report
from lakemerge.merge_source.inputs import Access, Input, is_of_a_dataset, open_input
from lakemerge.merge_source.override_findings import all_findings
from lakemerge.merge_source.overrides import open_overrides
from lakemerge.merge_source.publish import output_number
from lakemerge.merge_source.removed_entities import is_due
from lakemerge.merge_source.results import EntityExplanation, EntityFinding, Pending, Report, RunResult, SourceCheck
from lakemerge.merge_source.run import Tables, not_populated, run_once, with_tables
from lakemerge.merge_source.stable_ids import ids_of_now
from lakemerge.merge_source.state import KEY, SCHEMA, STATE_SETTINGS, Meta, State
from lakemerge.options import Settings
from lakemerge.quantities import milliseconds_of
from lakemerge.storage import absolute_location, location_of
from lakemerge.table.table import LakeTable
from mergers import Merger
from mergers.wording import argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MergeSource"]

_ROLE = "mergeSource.role"
_CONFIG = "mergeSource.config"
_SIGNAL_SECONDS = 1.0


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _understood(method: _Method) -> _Method:
    """A method that reads the state or the output. What stands there is taken at its word, since only runs write it: a
    value that no run writes is found where it is used."""

    @functools.wraps(method)
    def call(self: MergeSource, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if is_of_a_dataset(error):  # such as of its merger
                raise
            raise TableDamagedError(
                f"state or output of the merge source at {self.table.url} cannot be understood "
                f"({type(error).__name__}: {error}): was one of them changed by something else than a run? Restore "
                "both from a backup, or delete both and create the source again"
            ) from error

    return cast("_Method", call)


class MergeSource:
    """Finds by equality rules which rows of several tables are the same entity, and keeps a table with one merged row
    for each entity. Make one with :meth:`create` or :meth:`open`.
    """

    def __init__(self, tables: Tables, config: MergeConfig) -> None:
        self._tables = tables
        self._config = config

    @classmethod
    @checked
    def create(
        cls,
        output_path: str | os.PathLike[str],
        config: MergeConfig,
        *,
        spark: SparkSession | None = None,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> MergeSource:
        """Create the output, an empty table, and beside it the table of the source's state. Nothing is merged yet.

        :param storage_options: for both tables, and for datasets given by path without options of their own.
        :param mergers: merger classes of the datasets, in addition to the registered ones.
        :raises lakemerge.TableExistsError: there is a table at the path.
        :raises lakemerge.SchemaError: columns of one name have types without a common one.
        :raises lakemerge.MergeConfigError: a rule names a column that its table does not have.
        :raises lakemerge.NotATableError: none of the datasets has a table.
        """
        _check_config(config)
        access = Access(storage_options, tuple(mergers), settings)
        inputs = [open_input(place, one, access) for place, one in enumerate(config.inputs)]
        _check_some_table(inputs)
        schemas = [None if one.shape is None else one.shape.schema for one in inputs]
        warn_of_kinds(found_in(config, schemas).rules, config.aliases, schemas)
        open_overrides(config, access)
        shape = OutputShape.of([one.shape for one in inputs], config)
        options: dict[str, Any] = {"storage_options": storage_options, "merger": "commit-time"}
        try:
            LakeTable.create(
                output_path, shape.schema, key=["_id"], properties={_ROLE: "output"}, settings=settings, **options
            )
        except TableExistsError:
            if not _is_unfinished(output_path, storage_options):
                raise
        told = orjson.dumps(config.to_json()).decode()
        LakeTable.create(
            _state_path(output_path), SCHEMA, key=KEY, properties={_ROLE: "state", _CONFIG: told}, **options
        )
        return cls(_open_tables(output_path, access, spark), config)

    @classmethod
    @checked
    def preview(
        cls,
        output_path: str | os.PathLike[str],
        config: MergeConfig,
        *,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> RunResult:
        """What the first run of a source would do, before the source is created. The merged rows go through a temporary
        folder; nothing is written to the tables.

        The parameters and errors are those of :meth:`create`, and the errors of :meth:`run`.
        """
        _check_config(config)
        _check_free(output_path, storage_options)
        with tempfile.TemporaryDirectory() as folder:
            source = cls.create(
                os.path.join(folder, "output"),
                config,
                storage_options=storage_options,
                mergers=mergers,
                settings=settings,
            )
            return source.run(dry_run=True)

    @classmethod
    @checked
    def open(
        cls,
        output_path: str | os.PathLike[str],
        *,
        spark: SparkSession | None = None,
        storage_options: Mapping[str, object] | None = None,
        mergers: Sequence[type[Merger]] = (),
        settings: Settings | None = None,
    ) -> MergeSource:
        """Open a source by the path of its output, with the configuration of its last run.

        :raises lakemerge.NotATableError: there is no merge source at the path.
        """
        tables = _open_tables(output_path, Access(storage_options, tuple(mergers), settings), spark)
        return cls(tables, MergeConfig.from_json(State.at(tables.state).meta.config))

    @property
    def table(self) -> LakeTable:
        """The output. It follows the latest run."""
        return self._tables.output

    @property
    def config(self) -> MergeConfig:
        """The configuration of the last run."""
        return self._current(State.at(self._tables.state).meta)

    @property
    def populated(self) -> bool:
        """Whether all datasets that must be populated before anything is output are populated."""
        return not not_populated(self.config, self._inputs(self.config))

    @_understood
    @checked
    def run(self, *, full: bool = False, dry_run: bool = False, config: MergeConfig | None = None) -> RunResult:
        """Take up what changed in the datasets since the last run, and write the resulting changes to the output.

        :param full: look at everything, compare with the output itself, and write only differences. Needed if a dataset
            was removed, if the datasets are in another order, if a table was restored or made anew, or if a dataset has
            no record of what changed.
        :param dry_run: write nothing; only say what a run would do.
        :param config: the configuration from this run on. It is kept only if the run succeeds.
        :raises lakemerge.MaxMergedError: more entities would become one than ``max_merged`` allows, and ``oversize`` is
            ``fail``.
        :raises lakemerge.MaxRetiredError: more entities would be deleted or retired than ``max_retired`` allows.
        :raises lakemerge.MergeConfigError: a rule names a column that its table does not have.
        :raises lakemerge.DatasetsMissingError: a dataset that was taken up has no table any more.
        :raises lakemerge.IdCollisionError: two merged entities would have one id.
        :raises lakemerge.FullRunNeededError: it is not known what changed.
        :raises lakemerge.InputError: an id or the key of an override is null or there twice, or no number is left for a
            stable id.
        :raises lakemerge.DatasetsReorderedError: the datasets are in another order, and the run is no full one.
        :raises lakemerge.DatasetsRemovedError: a dataset is gone, and the run is no full one.
        """
        if config is not None:
            _check_config(config)
        result = run_once(self._tables, lambda meta: config or self._current(meta), full=full, dry_run=dry_run)
        if config is not None and not dry_run:
            self._config = config
        return result

    @_understood
    def pending(self) -> Pending:
        """What the next run would take up. It is falsy if there is nothing."""
        state = State.at(self._tables.state)
        meta = state.meta
        config = self._current(meta)
        known = dict(zip(config.names, ((one.table_id, one.version) for one in meta.datasets), strict=False))
        newer = {}
        for one in self._inputs(config):
            table_id, version = known.get(one.name, (None, None))
            # A table that was made anew may have the same version.
            if (table_id, version) != (one.table_id, one.version):
                newer[one.name] = (version, one.version)
        overrides = open_overrides(config, self._tables.access)
        if overrides is not None and overrides.state != meta.overrides:
            newer[overrides.input.name] = (
                None if meta.overrides is None else meta.overrides.version, overrides.state.version
            )  # fmt: skip
        kept = config.retention_ms
        # A look writes nothing, so it goes by this host's clock. A run goes by the store's.
        now_ms = self._tables.state.opened.handle.now_ms()
        return Pending(
            datasets=newer,
            unpublished=output_number(self.table) < meta.emitted_run,
            forgotten=kept is not None and is_due(state, now_ms - kept),
        )

    @checked
    def follow(self, *, every: float | dt.timedelta = 60, stop: threading.Event | None = None) -> Iterator[RunResult]:
        """Run again and again. Gives the result of each run that found something to do.

        With ``supports_signalling`` the datasets are checked at least every second, and a run begins as soon as one of
        them has a newer version. A run is never interrupted.

        :param every: seconds between runs.
        :param stop: when it is set, following ends after the run under way.
        """
        pause = milliseconds_of(every, argument("every")) / 1000
        if stop is not None and not (hasattr(stop, "is_set") and hasattr(stop, "wait")):
            raise InputError(f"{argument('stop')} must be a threading.Event, not {shown(stop)}")
        waiting = stop or threading.Event()
        before = State.at(self._tables.state).meta.run
        while not waiting.is_set():
            if self.pending():
                result = self.run()
                if result.number != before:
                    before = result.number
                    yield result
            step = min(pause, _SIGNAL_SECONDS) if self._config.supports_signalling else pause
            waiting.wait(step)

    @_understood
    @checked
    def entities(self, since: int | None = None) -> list[dict[str, Any]]:
        """The output in Sesam's form, in order of ``_updated``. Nulls are left out, and a value that is no list in its
        dataset is no list.

        :param since: only entities whose ``_updated`` is higher.
        """
        state = State.at(self._tables.state)
        condition = None if since is None else f"_updated > {int(since)}"
        rows = self.table.to_arrow(filter=condition)
        return list(entities_of(rows, shape_taken_up(state.meta), state))

    @_understood
    @checked
    def explain(self, output_id: str) -> EntityExplanation:
        """The members of an entity of the output, and the rules and values that join them.

        :raises lakemerge.InputError: the output has no such id.
        """
        state = State.at(self._tables.state)
        config = self._taken_up(state.meta)
        return explain(self.table, state, config, output_id, self._tables.access)

    @_understood
    def findings(self) -> tuple[EntityFinding, ...]:
        """What overrides and ``one_per_dataset`` did as of the last run: links that were cut, conflicts, and overrides
        that count for nothing or wait for a row. It reads the state and the table of overrides."""
        state = State.at(self._tables.state)
        config = self._taken_up(state.meta)
        return all_findings(state, config, open_overrides(config, self._tables.access))

    @_understood
    @checked
    def current_ids(self, output_id: str) -> list[str]:
        """The ids of the live entities that have what an id had, as ``$replaced_by`` and ``$split_into`` say: the id
        itself as long as it lives. Where ids are not stable, only that.

        :raises lakemerge.InputError: the output has no such id.
        """
        return ids_of_now(self.table, output_id)

    @_understood
    def check(self) -> SourceCheck:
        """Cluster and combine all rows anew, as of the versions taken up, and compare them with state and output. It
        changes nothing.

        :raises lakemerge.VersionNotFoundError: such a version cannot be read any more.
        """
        while True:
            state = State.at(self._tables.state)
            output = LakeTable(self.table.opened.handle, self.table.opened.view.snapshot, pinned=True, spark=None)
            if output_number(output) <= state.meta.emitted_run or output_number(output) <= state.number:
                break  # else a run was finished between the two looks
        return check(output, state, self._current(state.meta), self._tables.access)

    @_understood
    @checked
    def report(self, *, top: int = 20) -> Report:
        """Counts of entities and clusters, the largest clusters, and the values that most entities have.

        :param top: how many of the largest clusters and of the widest values.
        """
        state = State.at(self._tables.state)
        return report(state, self._taken_up(state.meta), top=top)

    def _inputs(self, config: MergeConfig) -> list[Input]:
        return [open_input(place, one, self._tables.access) for place, one in enumerate(config.inputs)]

    def _current(self, meta: Meta) -> MergeConfig:
        """The configuration of the last run, with the tables and credentials that this source was given."""
        return with_tables(MergeConfig.from_json(meta.config), self._config)

    def _taken_up(self, meta: Meta) -> MergeConfig:
        """The same, with rules over the columns that the datasets had."""
        return taken_up(meta, self._current(meta))

    def __repr__(self) -> str:
        return f"MergeSource({self.table.url!r}, datasets={list(self._config.names)})"


def _check_config(config: object) -> None:
    if not isinstance(config, MergeConfig):
        raise InputError(f"{argument('config')} must be a MergeConfig, not {shown(config)}")


def _state_path(output_path: str | os.PathLike[str]) -> str:
    """Beside the output itself, whatever link or spelling leads to it."""
    location = location_of(output_path)
    absolute = absolute_location(location)
    return (os.path.realpath(absolute) if os.path.isabs(absolute) else absolute) + "_state"


def _check_some_table(inputs: Sequence[Input]) -> None:
    if all(one.table is None for one in inputs):
        places = ", ".join(one.dataset.url for one in inputs)
        raise NotATableError(
            f"none of the datasets has a table: there is nothing at {places}; create one of the tables, or correct the "
            "paths",
            url=inputs[0].dataset.url,
        )


def _check_free(output_path: str | os.PathLike[str], storage_options: Mapping[str, object] | None) -> None:
    """Raise :class:`TableExistsError` if a source cannot be created at the path."""
    try:
        table = LakeTable.open(output_path, storage_options=storage_options)
    except NotATableError:
        return
    if not _is_unfinished(output_path, storage_options):
        raise TableExistsError(f"there is a table at {table.url}; choose another path", url=table.url)


def _is_unfinished(path: str | os.PathLike[str], storage_options: Mapping[str, object] | None) -> bool:
    """Whether there is an output but no state, because the creation of the source was cut short."""
    table = LakeTable.open(path, storage_options=storage_options)
    if table.version or table.opened.view.snapshot.metadata.configuration.get(_ROLE) != "output":
        return False
    try:
        LakeTable.open(_state_path(path), storage_options=storage_options)
    except NotATableError:
        return True
    return False


def _open_tables(output_path: str | os.PathLike[str], access: Access, spark: SparkSession | None) -> Tables:
    options: dict[str, Any] = {"storage_options": access.storage_options}
    small = replace(access.settings or Settings(), row_group_rows=STATE_SETTINGS.row_group_rows)
    try:
        state = LakeTable.open(_state_path(output_path), settings=small, **options)
    except NotATableError as error:
        raise NotATableError(
            f"there is no merge source at {os.fspath(output_path)}: it has no state table; make one with "
            "MergeSource.create",
            url=os.fspath(output_path),
        ) from error
    output = LakeTable.open(output_path, spark=spark, settings=access.settings, **options)
    return Tables(output, state, access, spark)
