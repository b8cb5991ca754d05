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
from lakemerge.results.plans import CompactionStrategy

__all__ = ["SCHEDULE_DEFAULTS", "Schedule", "schedule_problems"]

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
        "lakemerge.maintenance.inline": "false",
    }
)
"""Every property of the schedule, with its default."""

_WHOLE = ("afterCommits", "afterBytes")


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
    """Whether services that are due run after each upsert and delete."""

    @staticmethod
    def of(configuration: Mapping[str, str]) -> Schedule:
        """From table properties. Raises :class:`TableDamagedError` for values that no API sets."""
        values = {name: configuration.get(name, default) for name, default in SCHEDULE_DEFAULTS.items()}
        if problems := [problem for name, value in values.items() for problem in schedule_problems(name, value)]:
            raise TableDamagedError("; ".join(problems), problems=tuple(problems))
        logs = values["lakemerge.logCompaction.afterCommits"]
        vacuum = values["lakemerge.vacuum.afterMinutes"]
        return Schedule(
            compaction=_strategy(values, "lakemerge.compaction."),
            minor=_strategy(values, "lakemerge.minorCompaction."),
            logs_after_commits=None if logs == OFF else int(logs),
            vacuum_after_minutes=None if vacuum == OFF else float(vacuum),
            inline=values["lakemerge.maintenance.inline"] == "true",
        )


def schedule_problems(name: str, value: object) -> list[str]:
    """What is wrong with the value of a schedule's property, if anything."""
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
