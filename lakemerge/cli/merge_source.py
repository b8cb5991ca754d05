"""The commands of merge sources. CONFIG.json says where the output is, which tables the datasets are, and the source::

    {"output": "lake/customers", "tables": {"crm": "lake/crm", "shop": {"table": "lake/shop", "deleted": "is_gone"}},
     "source": {"type": "merge", "version": 2, "datasets": ["crm c", "shop s"], "equality": ["c.email = s.mail"]}}

The source, or the whole pipe around it, is Sesam's JSON. Relative paths are relative to the folder of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from lakemerge.cli.arguments import duration, storage_options
from lakemerge.cli.output import JsonOption, document, say_lines
from lakemerge.cli.service import stopping
from lakemerge.errors import MergeConfigError, NotATableError
from lakemerge.merge_source import Dataset, MergeConfig, MergeSource, RunResult
from lakemerge.storage import absolute_location

__all__ = ["app"]

app = typer.Typer(
    help="Merge rows of several tables that are about the same entity.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ConfigArgument = Annotated[
    Path,
    typer.Argument(
        help="A JSON file: output, tables, and source, which is Sesam's JSON of the source or its pipe. "
        "Paths in it are relative to its folder."
    ),
]
StorageOption = Annotated[
    list[str] | None, typer.Option("--storage-option", "-o", help="NAME=VALUE for the stores of all tables.")
]


@dataclass(frozen=True, slots=True)
class _Job:
    """The contents of a configuration file."""

    output: str
    config: MergeConfig

    @staticmethod
    def read(path: Path) -> _Job:
        """Raises :class:`MergeConfigError`."""
        try:
            told = orjson.loads(path.read_bytes())
        except OSError as error:
            raise MergeConfigError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise MergeConfigError(f"{path} cannot be read as JSON: {error}") from error
        parts = ("output", "tables", "source")
        if not isinstance(told, dict) or set(told) != set(parts) or not isinstance(told["output"], str):
            raise MergeConfigError(f"{path} must have the entries output (a path), tables and source, and no others")
        if not isinstance(told["tables"], dict) or not isinstance(told["source"], dict):
            raise MergeConfigError(f"{path}: tables and source must be objects")
        folder = str(path.resolve().parent)
        tables = {name: _dataset(name, given, folder) for name, given in told["tables"].items()}
        output = absolute_location(told["output"], folder)
        return _Job(output, MergeConfig.from_sesam(told["source"], tables))

    def run(self, storage: Sequence[str] | None, *, full: bool, dry_run: bool) -> RunResult:
        """A run of the source, which the first one creates. A dry run does not."""
        try:
            source = self.opened(storage, create=not dry_run)
        except NotATableError:
            if not dry_run:
                raise
            return MergeSource.preview(self.output, self.config, storage_options=storage_options(storage or ()))
        return source.run(full=full, dry_run=dry_run, config=self.config)

    def opened(self, storage: Sequence[str] | None, *, create: bool = False) -> MergeSource:
        options = storage_options(storage or ())
        try:
            return MergeSource.open(self.output, storage_options=options)
        except NotATableError:
            if not create:
                raise
            return MergeSource.create(self.output, self.config, storage_options=options)


def _dataset(name: str, given: Any, folder: str) -> Dataset:
    if isinstance(given, str):
        return Dataset(absolute_location(given, folder))
    if (
        not isinstance(given, dict)
        or not isinstance(given.get("table"), str)
        or set(given) - {"table", "id", "deleted"}
    ):
        raise MergeConfigError(f"tables: {name!r} must be a path, or an object of table, id and deleted only")
    return Dataset(**{**given, "table": absolute_location(given["table"], folder)})


@app.command()
def run(
    config: ConfigArgument,
    storage: StorageOption = None,
    full: Annotated[bool, typer.Option("--full", help="Read everything. Only differences are written.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: JsonOption = False,
) -> None:
    """Merge what changed since the last run. The first run creates the output. A dry run creates and writes nothing.

    The configuration in the file holds from this run on.
    """
    job = _Job.read(config)
    _show(job.run(storage, full=full, dry_run=dry_run), json=json)


@app.command()
def follow(
    config: ConfigArgument,
    storage: StorageOption = None,
    every: Annotated[
        str, typer.Option(help="How often to run, such as 5m. With supports_signalling, changes start a run earlier.")
    ] = "60s",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, one for each run.")] = False,
) -> None:
    """Repeat runs until SIGTERM or Ctrl-C. A run that has begun is finished."""
    job, pause = _Job.read(config), duration(every)
    with stopping() as stop:
        source = job.opened(storage, create=True)
        _show(source.run(config=job.config), json=json)
        for result in source.follow(every=pause, stop=stop):
            _show(result, json=json)


@app.command()
def explain(
    config: ConfigArgument,
    output_id: Annotated[str, typer.Argument(metavar="ID", help="An _id of the output, such as '0|a1|1|b1'.")],
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Show the members of an entity, and which rules and values hold them together."""
    _show(_Job.read(config).opened(storage).explain(output_id), json=json)


@app.command()
def check(config: ConfigArgument, storage: StorageOption = None, json: JsonOption = False) -> None:
    """Cluster all rows anew and compare with state and output. The exit code is 4 if something is wrong."""
    result = _Job.read(config).opened(storage).check()
    _show(result, json=json)
    if not result.ok:
        raise typer.Exit(4)


@app.command()
def report(
    config: ConfigArgument,
    storage: StorageOption = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the largest clusters and widest values to show.")] = 20,
    json: JsonOption = False,
) -> None:
    """Show entities, clusters, the largest clusters, and the values that most entities share."""
    _show(_Job.read(config).opened(storage).report(top=top), json=json)


def _show(result: object, *, json: bool) -> None:
    if json:
        document(result)
    else:
        say_lines(str(result))
