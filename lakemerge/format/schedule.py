"""When table services are due: table properties, as typed values.

The thresholds of compactions are those of :class:`lakemerge.CompactionStrategy`. ``off`` switches a threshold off. A
service without any threshold is never due.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lakemerge.errors import TableDamagedError
from lakemerge.results.compactions import CompactionStrategy

__all__ = ["MAINTENANCE", "MAX_PENDING", "SCHEDULE_DEFAULTS", "Auto", "Schedule", "max_pending", "schedule_problems"]

MAINTENANCE: Final = "lakemerge.maintenance"
"""The property that new tables set to ``auto``."""

MAX_PENDING: Final = "lakemerge.maxPendingCommits"
"""The property that makes writers wait for maintenance."""

OFF: Final = "off"

SCHEDULE_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lakemerge.compaction.afterCommits": OFF,
        "lakemerge.compaction.afterBytes": OFF,
        "lakemerge.compaction.ratio": "0.5",
        "lakemerge.compaction.afterMinutes": "1440",
        "lakemerge.minorCompaction.afterCommits": "10",
        "lakemerge.minorCompaction.afterBytes": OFF,
        "lakemerge.minorCompaction.ratio": OFF,
        "lakemerge.minorCompaction.afterMinutes": OFF,
        "lakemerge.logCompaction.afterCommits": "100",
        "lakemerge.vacuum.afterMinutes": "1440",
        MAINTENANCE: OFF,
        "lakemerge.maintenance.readsPerWrite": "1",
        "lakemerge.maintenance.inline": "false",
        MAX_PENDING: OFF,
    }
)
"""Every property of the schedule, with its default."""

_WHOLE = ("afterCommits", "afterBytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """By what ``lakemerge.maintenance = auto`` decides after a write, and what it may do."""

    reads_per_write: float
    """Full reads that follow each write."""
    learns: bool = False
    """Whether the table leaves this number to what writers see."""
    full: bool = True
    """Whether full compaction has no threshold that the table sets; else that decides."""
    minor: bool = True
    """The same of minor compaction."""
    logs_after_commits: int | None = None
    """Commits with live logs from which on they are consolidated; ``None`` where the table sets this itself."""
    on_spark: bool = False
    """Whether reads run on Spark, as far as the writer knows: it does itself."""
    published_files: int = 0
    """How many base files the table has, if it publishes by deletion vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of :meth:`lakemerge.LakeTable.maintain`. ``None``: that service is never due."""

    compaction: CompactionStrategy | None
    minor: CompactionStrategy | None
    logs_after_commits: int | None
    """Log compaction is due when so many commits have live logs in the table."""
    vacuum_after_minutes: float | None
    """Vacuum is due so long after the last one that a schedule asked for."""
    inline: bool
    """Whether each write of rows is followed by what is due."""
    auto: Auto | None = None
    """What each write of rows is followed by where it is worth its cost; not with ``inline``."""

    @staticmethod
    def of(configuration: Mapping[str, str]) -> Schedule:
        """From table properties. Raises :class:`TableDamagedError` for values that no API sets."""
        values = {name: configuration.get(name, default) for name, default in SCHEDULE_DEFAULTS.items()}
        if problems := [problem for name, value in values.items() for problem in schedule_problems(name, value)]:
            raise TableDamagedError("; ".join(problems), problems=tuple(problems))
        logs = values["lakemerge.logCompaction.afterCommits"]
        inline = values["lakemerge.maintenance.inline"] == "true"
        vacuum = values["lakemerge.vacuum.afterMinutes"]
        return Schedule(
            compaction=_strategy(values, "lakemerge.compaction."),
            minor=_strategy(values, "lakemerge.minorCompaction."),
            logs_after_commits=None if logs == OFF else int(logs),
            vacuum_after_minutes=None if vacuum == OFF else float(vacuum),
            inline=inline,
            auto=None if inline or values[MAINTENANCE] == OFF else _auto(configuration, values),
        )


def _auto(configuration: Mapping[str, str], values: Mapping[str, str]) -> Auto:
    def is_free(prefix: str) -> bool:
        return not any(name.startswith(prefix) for name in configuration)

    reads = values["lakemerge.maintenance.readsPerWrite"]
    return Auto(
        reads_per_write=0.0 if reads == OFF else float(reads),
        learns="lakemerge.maintenance.readsPerWrite" not in configuration,
        full=is_free("lakemerge.compaction."),
        minor=is_free("lakemerge.minorCompaction."),
        logs_after_commits=int(values["lakemerge.logCompaction.afterCommits"])
        if is_free("lakemerge.logCompaction.")
        else None,
    )


def max_pending(configuration: Mapping[str, str]) -> int | None:
    """How many commits may wait for a compaction before a write maintains first. ``None``: any number.

    Raises :class:`TableDamagedError` for a value that no API sets.
    """
    value = configuration.get(MAX_PENDING, OFF)
    if problems := schedule_problems(MAX_PENDING, value):
        raise TableDamagedError("; ".join(problems), problems=tuple(problems))
    return None if value == OFF else int(value)


def schedule_problems(name: str, value: object) -> list[str]:
    """What is wrong with the value of a schedule's property, if anything."""
    if name == MAX_PENDING:
        if value == OFF or (isinstance(value, str) and _is_number(value, whole=True) and int(value) > 0):
            return []
        return [f"table property {name!r} is an integer from 1 on or {OFF!r}, not {value!r}"]
    if name == MAINTENANCE:
        return [] if value in ("auto", OFF) else [f"table property {name!r} is 'auto' or {OFF!r}, not {value!r}"]
    if name == "lakemerge.maintenance.inline":
        return [] if value in ("true", "false") else [f"table property {name!r} is 'true' or 'false', not {value!r}"]
    whole = name.endswith(_WHOLE)
    if value == OFF or (isinstance(value, str) and _is_number(value, whole=whole)):
        return []
    return [f"table property {name!r} is {'an integer' if whole else 'a number'} from 0 on or {OFF!r}, not {value!r}"]


def _is_number(text: str, *, whole: bool) -> bool:
    if whole:
        return text.isascii() and text.isdecimal()
    try:
        return 0 <= float(text) < math.inf
    except ValueError:
        return False


def _strategy(values: Mapping[str, str], prefix: str) -> CompactionStrategy | None:
    found = {
        name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix) and value != OFF
    }
    if not found:
        return None
    commits, size = found.get("afterCommits"), found.get("afterBytes")
    ratio, minutes = found.get("ratio"), found.get("afterMinutes")
    return CompactionStrategy(
        after_commits=None if commits is None else int(commits),
        after_bytes=None if size is None else int(size),
        ratio=None if ratio is None else float(ratio),
        after_minutes=None if minutes is None else float(minutes),
    )
