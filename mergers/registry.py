"""The registry of merger classes, by strategy id and name. Registration refuses conflicts. Nothing is ever imported by
name from a table's metadata.

Built-ins are always there. Users add classes by the decorator :func:`register_merger`, by the entry
point group ``lakemerge.mergers``, or for one table through ``LakeTable.open(mergers=[...])``.
"""

from __future__ import annotations

import difflib
import functools
import importlib.metadata
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from mergers.builtin.aggregate import Aggregate
from mergers.builtin.cdc import AwsDms, DebeziumMysql, DebeziumPostgres, OverwriteNonDefaults
from mergers.builtin.commit_time import CommitTime
from mergers.builtin.event_time import EventTime
from mergers.builtin.expression import Expression
from mergers.builtin.first_row import FirstRow
from mergers.builtin.partial_update import PartialUpdate
from mergers.contract import Merger
from mergers.errors import MergerMissingError, MergerRegistrationError
from mergers.logs import logger
from mergers.wording import in_python

__all__ = ["ENTRY_POINT_GROUP", "MergerRegistry", "default_registry", "register_merger"]

ENTRY_POINT_GROUP = "lakemerge.mergers"
_REGISTER = in_python(
    ", register the class with @register_merger, or pass mergers=[TheClass] to LakeTable.open; for Spark's "
    'format("lakemerge") call lakemerge.register(spark, mergers=[TheClass])'
)
_BUILTINS: tuple[type[Merger], ...] = (
    EventTime,
    CommitTime,
    FirstRow,
    PartialUpdate,
    Aggregate,
    Expression,
    DebeziumMysql,
    DebeziumPostgres,
    AwsDms,
    OverwriteNonDefaults,
)

M = TypeVar("M", bound=type[Merger])

_logger = logger(__name__)


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


class MergerRegistry:
    """A set of merger classes, found by UUID (from tables) or by name (from people).

    :param failures: why some classes could not be loaded. The error for a missing class shows this.
    """

    def __init__(self, mergers: Iterable[type[Merger]] = (), *, failures: Sequence[str] = ()) -> None:
        self._failures = tuple(failures)
        self._by_id: dict[str, type[Merger]] = {}
        for merger in mergers:
            self.add(merger)

    def __iter__(self) -> Iterator[type[Merger]]:
        return iter(self._by_id.values())

    def add(self, merger: type[Merger]) -> None:
        """Register a class. Raises :class:`MergerRegistrationError` if its UUID is missing or malformed, or if another
        class has its id or name."""
        if not isinstance(merger, type):
            raise MergerRegistrationError(
                f"an object of type {type(merger).__name__} is not a class; register the merger's class",
                merger=type(merger).__name__,
            )
        where = f"{merger.__module__}.{merger.__qualname__}"
        if not issubclass(merger, Merger):
            raise MergerRegistrationError(
                f"{where} is no merger: make it a subclass of RowMerger, or of Merger", merger=where
            )
        if lacking := sorted(merger.__abstractmethods__):
            raise MergerRegistrationError(
                f"{where} does not define {' and '.join(f'{name}()' for name in lacking)}, which its kind of merger "
                "needs: write it",
                merger=where,
            )
        merger_id, name = getattr(merger, "id", None), getattr(merger, "name", None)
        if not isinstance(merger_id, str) or not _is_uuid(merger_id):
            raise MergerRegistrationError(
                f"{where} needs a class attribute `id` that is a lower-case UUID, for example {uuid.uuid4()}",
                merger=where,
            )
        if not isinstance(name, str) or not name:
            raise MergerRegistrationError(f"{where} needs a class attribute `name`", merger=where)
        for other in self:
            # If a notebook cell is run twice, it defines the same class again. The newer class replaces the older.
            same = (other.__module__, other.__qualname__) == (merger.__module__, merger.__qualname__)
            if not same and merger_id == other.id:
                raise MergerRegistrationError(
                    f"{where} has the id {merger_id} of {other.__module__}.{other.__qualname__}; mint one of its own",
                    merger=where,
                )
            if not same and name == other.name:
                raise MergerRegistrationError(
                    f"{where} has the name {name!r} of {other.__module__}.{other.__qualname__}; choose another",
                    merger=where,
                )
        self._by_id[merger_id] = merger

    def extended(self, mergers: Iterable[type[Merger]]) -> MergerRegistry:
        """A registry with further classes; this one stays as it is."""
        registry = MergerRegistry(self, failures=self._failures)
        for merger in mergers:
            registry.add(merger)
        return registry

    def resolve(self, name_or_id: str) -> type[Merger]:
        """The class of that name or UUID. Raises :class:`MergerMissingError` that names near misses."""
        if name_or_id in self._by_id:
            return self._by_id[name_or_id]
        by_name = {merger.name: merger for merger in self}
        if name_or_id in by_name:
            return by_name[name_or_id]
        near = difflib.get_close_matches(name_or_id, by_name, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MergerMissingError(
            f"no merger {name_or_id!r} is registered.{hint} Registered: {', '.join(sorted(by_name))}."
            f"{in_python(' Register one with @register_merger, or pass it as mergers=[...].')}{self._told()}",
            merger=name_or_id,
        )

    def of_table(self, merger_id: str, name: str) -> type[Merger]:
        """The class that a table's metadata names, found only by UUID."""
        if merger_id not in self._by_id:
            raise MergerMissingError(
                f"this table merges by strategy {merger_id} (named {name!r} when it was created), "
                f"which nobody registered here. Install the package that holds it{_REGISTER}.{self._told()}",
                merger=merger_id,
                name=name,
            )
        return self._by_id[merger_id]

    def _told(self) -> str:
        return "".join(f" {failure}" for failure in self._failures)


@functools.cache
def default_registry() -> MergerRegistry:
    """The registry of this process: built-ins, installed entry points, and classes added by :func:`register_merger`.

    If an entry point gives no merger, that is logged, and the error for a missing merger names it. Tables with other
    mergers are not affected.
    """
    registry = MergerRegistry(_BUILTINS)
    failures = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            registry.add(entry.load())
        except Exception as error:  # noqa: BLE001 - importing somebody's module may raise anything
            package = "an unknown package" if entry.dist is None else f"package {entry.dist.name}"
            failures.append(
                f"The entry point {entry.name} = {entry.value} of {package} could not be used "
                f"({type(error).__name__}: {error}): repair or uninstall it."
            )
            _logger.warning("%s", failures[-1])
    return MergerRegistry(registry, failures=failures)


def register_merger(merger: M) -> M:
    """Class decorator: make a merger known to every table opened in this process."""
    default_registry().add(merger)
    return merger
