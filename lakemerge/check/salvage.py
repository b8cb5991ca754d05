"""The part of a damaged table that can be understood, so that a check goes on after damage and finds all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import orjson

from lakemerge._internal.pools import thread_pool
from lakemerge.delta import AddFile, DomainMetadata, Snapshot, decode
from lakemerge.delta.listing import Listing
from lakemerge.errors import LakeMergeError, TableDamagedError
from lakemerge.format.block_index import DecodedLogs
from lakemerge.format.consumers import CONSUMER_DOMAIN_PREFIX, registrations_of
from lakemerge.format.conversion import CONVERSION_DOMAIN, Conversion
from lakemerge.format.expiries import expiries_of
from lakemerge.format.minor import Minor
from lakemerge.format.names import (
    EXPIRY_DOMAIN,
    LOG_DOMAIN_PREFIX,
    MINOR_DOMAIN_PREFIX,
    RESET_DOMAIN,
    SAVEPOINT_DOMAIN_PREFIX,
    STATE_DOMAIN,
    WINNER_TAG,
)
from lakemerge.format.reset import Resets
from lakemerge.format.savepoint import savepoints_of
from lakemerge.format.state import State
from lakemerge.handle import Handle
from lakemerge.layout.references import references
from lakemerge.layout.view import FileSlice, TableView
from mergers.interrupts import is_foreign

__all__ = ["Problem", "Sound", "damaged_commits", "newest_readable", "sound_part", "told"]

T = TypeVar("T")

_UNTOLD = "it has a deletion vector, or is a winner file, and no minor compaction that can be read tells of it"


@dataclass(frozen=True, slots=True)
class Problem:
    path: str | None
    text: str

    @staticmethod
    def of(error: Exception, path: str | None = None) -> Problem:
        return Problem(path or _path_of(error), told(error))


@dataclass(frozen=True, slots=True)
class Sound:
    """What can be understood of a version."""

    view: TableView
    """The version without adds and domains that are damaged."""
    file_slices: tuple[FileSlice, ...]
    is_whole: bool
    """Whether nothing was left out, so that file slices have all their logs and can be merged."""
    problems: tuple[Problem, ...]


def told(error: Exception) -> str:
    return error.message if isinstance(error, LakeMergeError) else f"it cannot be read: {error}"


def _path_of(error: Exception) -> str | None:
    path = error.facts.get("path") if isinstance(error, LakeMergeError) else None
    return path if isinstance(path, str) else None


def damaged_commits(handle: Handle, listing: Listing) -> Mapping[int, Problem]:
    """The listed commits that cannot be read or decoded, and why."""

    def problem(version: int) -> Problem | None:
        path = listing.commits[version].path
        try:
            decode(handle.store.get(path), path)
        except FileNotFoundError:
            return None  # a vacuum has deleted it since
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
            return Problem.of(error, path)
        return None

    versions = sorted(listing.commits)
    with thread_pool(handle.settings.threads) as pool:
        return {version: found for version, found in zip(versions, pool.map(problem, versions), strict=True) if found}


def newest_readable(handle: Handle, bad: Collection[int]) -> Snapshot | None:
    """The newest version before one of the ``bad`` ones that can be read."""
    for version in sorted({version - 1 for version in bad if version > 0}, reverse=True):
        try:
            snapshot = handle.log.snapshot(version=version)
            handle.view(snapshot)
        except (LakeMergeError, OSError) as error:
            if is_foreign(error):
                raise
        else:
            return snapshot
    return None


def sound_part(handle: Handle, snapshot: Snapshot) -> Sound:
    """What can be understood of a version whose log can be read, and what is wrong with the rest.

    Raises :class:`LakeMergeError` if the table's definition cannot be understood.
    """
    view = handle.view(snapshot)
    problems: list[Problem] = []
    files = _sound(snapshot.files, partial(_read_files, view), problems)
    logs = {name: domain for name, domain in snapshot.domains.items() if name.startswith(LOG_DOMAIN_PREFIX)}
    sound_logs = _sound(logs, partial(_read_logs, view), problems)
    others = {name: domain for name, domain in snapshot.domains.items() if name not in logs}
    sound_others = _sound(others, partial(_read_others, view), problems)
    # A minor entry of a base file that is left out is left out, too.
    without = {name for name, domain in sound_others.items() if _base_of(domain) in snapshot.files.keys() - files}
    domains = {name: domain for name, domain in (sound_others | sound_logs).items() if name not in without}
    told_of = dict(_told(files, domains))
    problems += [Problem(path, _UNTOLD) for path in files if path not in told_of]
    files = told_of
    domains = {name: domain for name, domain in domains.items() if (_base_of(domain) or "") in {"", *files}}
    is_whole = len(files) == len(snapshot.files) and len(domains) == len(snapshot.domains)
    part = view if is_whole else handle.view(replace(snapshot, files=files, domains=domains))
    try:
        return Sound(part, part.file_slices, is_whole, tuple(problems))
    except LakeMergeError as error:
        # Files that are left out may be why the others do not divide their bucket.
        alone = tuple(_alone(part))
        return Sound(part, alone, False, (*problems, Problem.of(error)) if is_whole else tuple(problems))


def _told(files: Mapping[str, AddFile], domains: Mapping[str, DomainMetadata]) -> Iterator[tuple[str, AddFile]]:
    """The files without those whose rows a minor entry tells that is left out."""
    minors = [Minor.of(domain) for name, domain in domains.items() if name.startswith(MINOR_DOMAIN_PREFIX)]
    known = {path for m in minors if m.published for path in (m.base, *(winner.path for winner in m.winners))}
    for path, add in files.items():
        if path in known or (add.vector is None and WINNER_TAG not in add.tags):
            yield path, add


def _read_files(view: TableView, some: Mapping[str, AddFile]) -> None:
    whole = len(some) == len(view.snapshot.files)
    _ = (view if whole else _apart(view, replace(view.snapshot, files=some))).base_files


def _read_logs(view: TableView, some: Mapping[str, DomainMetadata]) -> None:
    whole = len(some) == sum(name.startswith(LOG_DOMAIN_PREFIX) for name in view.snapshot.domains)
    try:
        _ = (view if whole else _apart(view, replace(view.snapshot, domains=some))).log_commits
    except OSError as error:
        if is_foreign(error):
            raise
        (name, *_), (domain, *_) = some.keys(), some.values()
        index = orjson.loads(domain.configuration).get("index", name)
        raise TableDamagedError(f"block index {index!r} cannot be read: {error}", path=index) from error


def _read_others(view: TableView, some: Mapping[str, DomainMetadata]) -> None:
    for name, domain in some.items():
        one = replace(view.snapshot, domains={name: domain})
        if name == STATE_DOMAIN:
            State.of(one)
        elif name == EXPIRY_DOMAIN:
            expiries_of(one)
        elif name == RESET_DOMAIN:
            Resets.of(one.domains)
        elif name.startswith(SAVEPOINT_DOMAIN_PREFIX):
            savepoints_of(one)
        elif name.startswith(CONSUMER_DOMAIN_PREFIX):
            registrations_of(one)
        elif name == CONVERSION_DOMAIN:
            Conversion.of(one)
        else:
            list(references([domain], view.store))
            base = _base_of(domain)
            if base is not None and base in view.snapshot.files:
                Minor.of(domain).with_adds(view.snapshot.files)
            if base is not None and base not in view.snapshot.files:
                raise TableDamagedError(
                    f"domain {name!r} is of base file {base!r}, which is not in the table", path=base
                )


def _apart(view: TableView, snapshot: Snapshot) -> TableView:
    return TableView(snapshot, view.config, view.store, DecodedLogs())


def _base_of(domain: DomainMetadata) -> str | None:
    """The base file of a minor entry; ``None`` for other domains."""
    return Minor.of(domain).base if domain.domain.startswith(MINOR_DOMAIN_PREFIX) else None


def _sound(parts: Mapping[str, T], read: Callable[[Mapping[str, T]], None], problems: list[Problem]) -> dict[str, T]:
    """The parts that can be read. What is wrong with the others is added to ``problems``. Each is read alone only if
    not all can be read at once."""
    try:
        read(parts)
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        sound = {}
        for name, part in parts.items():
            try:
                read({name: part})
            except (LakeMergeError, OSError) as error:
                if is_foreign(error):
                    raise
                problems.append(Problem.of(error))
            else:
                sound[name] = part
        return sound
    return dict(parts)


def _alone(view: TableView) -> Iterator[FileSlice]:
    """Each base file by itself, where it cannot be told how the files divide their buckets."""
    for base in view.base_files:
        yield FileSlice(base.bucket_id, base.buckets, base, base.lower, minor=view.minors.get(base.add.path))
