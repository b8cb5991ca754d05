"""Which events of a lineage a caller asks for: by kind, file, time and info."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import orjson

from lakemerge._internal.arguments import items, shown
from lakemerge._internal.near import did_you_mean
from lakemerge.errors import InputError
from lakemerge.layout.travel import epoch_ms
from lakemerge.provenance.lineage_events import KINDS, LineageEvent
from mergers.wording import argument

__all__ = ["Search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The conditions. An event has to meet all that are given."""

    kinds: frozenset[str] | None = None
    file: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None
    info: Mapping[str, object] | str | None = None

    @staticmethod
    def checked(
        *,
        kind: object,
        file: object,
        after: dt.datetime | str | None,
        before: dt.datetime | str | None,
        info: object,
    ) -> Search:
        """The arguments of :meth:`lakemerge.LakeTable.lineage`. Raises :class:`InputError`."""
        if file is not None and (not isinstance(file, str) or not file):
            raise InputError(
                f"{argument('file')} must be a path, a name or a pattern such as '*.csv', not {shown(file)}"
            )
        if info is not None and not isinstance(info, Mapping | str):
            raise InputError(
                f"{argument('info')} must be a mapping such as {{'job': 'nightly'}}, or text, not {shown(info)}"
            )
        return Search(
            kinds=None if kind is None else _kinds(kind),
            file=file,
            after_ms=epoch_ms(after),
            before_ms=epoch_ms(before),
            info=info,
        )

    @property
    def is_empty(self) -> bool:
        return self == Search()

    def among(self, events: Sequence[LineageEvent]) -> Iterator[LineageEvent]:
        """The events that meet the conditions. A file also finds the other events of a commit that names it: a window
        takes up a source file, and the same commit makes log files of it."""
        versions = {event.version for event in events if self.file is not None and _names(event, self.file)}
        for event in events:
            if self._is_asked_for(event) and (self.file is None or event.version in versions):
                yield event

    def _is_asked_for(self, event: LineageEvent) -> bool:
        if self.kinds is not None and event.kind not in self.kinds:
            return False
        if self.after_ms is not None and (event.timestamp_ms is None or event.timestamp_ms < self.after_ms):
            return False
        if self.before_ms is not None and (event.timestamp_ms is None or event.timestamp_ms >= self.before_ms):
            return False
        return self.info is None or _tells(event.details, self.info)


def _kinds(given: object) -> frozenset[str]:
    asked = (given,) if isinstance(given, str) else items(given, "kind", f"one of {', '.join(KINDS)}, or several")
    found = [one.upper() if isinstance(one, str) else one for one in asked]
    for one in found:
        if one not in KINDS:
            near = did_you_mean(one, KINDS) if isinstance(one, str) else ""
            raise InputError(
                f"{argument('kind')} must be one of {', '.join(KINDS)}, or several, not {shown(one)}{near}"
            )
    return frozenset(map(str, found))


def _names(event: LineageEvent, file: str) -> bool:
    return any(_is_named(text, file) for text in (*event.paths, *_texts(event.details)))


def _is_named(path: str, file: str) -> bool:
    """Whether a path is the one that is meant: by all of it, by its end, or by a pattern."""
    return (
        path == file
        or path.endswith(f"/{file}")
        or fnmatchcase(path, file)
        or fnmatchcase(path.rpartition("/")[2], file)
    )


def _texts(value: object) -> Iterator[str]:
    """All texts inside of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def _tells(details: Mapping[str, Any], info: Mapping[str, object] | str) -> bool:
    """Whether the details have such text somewhere, or all of the entries, at any depth."""
    if isinstance(info, str):
        return info in orjson.dumps(dict(details), default=str).decode() or any(
            info in text for text in _texts(details)
        )
    return all(_has(details, name, value) for name, value in info.items())


def _has(value: object, name: str, wanted: object) -> bool:
    if isinstance(value, Mapping):
        if name in value and (value[name] == wanted or str(value[name]) == str(wanted)):
            return True
        return any(_has(part, name, wanted) for part in value.values())
    return isinstance(value, list | tuple) and any(_has(part, name, wanted) for part in value)
