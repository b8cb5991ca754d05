"""Verify a table: its log, the files it refers to, and what is in them. Nothing is changed but for a repair.

It checks everything that readers rely on: that the log can be replayed without its checkpoints, that files are there
with the right sizes, that rows are sorted by key, unique, and in the bucket and range of their file, and that
statistics are true (docs/table-format.md).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from lakemerge._internal.pools import thread_pool
from lakemerge.check.files import (
    Checked,
    check_beside,
    check_block,
    check_merge,
    check_stored,
    file_slice_paths,
    stored_parts,
)
from lakemerge.check.ingest import check_ingest, ingest_sizes
from lakemerge.check.kinds import (
    CHECKPOINT_DAMAGED,
    CHECKPOINT_FOREIGN,
    COMMIT_DAMAGED,
    COMMIT_MISSING,
    FILE_FOREIGN,
    FILE_MISSING,
    FILE_SIZE,
    LATEST_UNREADABLE,
    MERGER_UNKNOWN,
    METADATA_DAMAGED,
    OLD_COMMIT_MISSING,
    Kind,
)
from lakemerge.check.repair import repaired
from lakemerge.check.salvage import Problem, Sound, damaged_commits, newest_readable, sound_part, told
from lakemerge.delta import Snapshot
from lakemerge.delta.listing import Checkpoint, Listing, commit_path, list_log, no_log
from lakemerge.delta.log_replay import load, own_part, read_accepted
from lakemerge.errors import LakeMergeError, TableError
from lakemerge.format.conversion import Conversion, read_former
from lakemerge.format.ingests import ingests_of
from lakemerge.format.names import BASE_FOLDER, STATE_DOMAIN
from lakemerge.format.vectors import list_vector_files
from lakemerge.handle import Handle
from lakemerge.layout.references import snapshot_references
from lakemerge.read.merge import MergeSpec
from lakemerge.results.findings import CheckResult, Finding
from mergers.interrupts import is_foreign
from mergers.logs import logger

__all__ = ["check_table"]

_OURS = (BASE_FOLDER, "_lakemerge")
_FOREIGN = re.compile(r"(?:part-[^/]*\.parquet|deletion_vector_[^/]*\.bin)")

_logger = logger(__name__)


@dataclass(slots=True)
class _Report:
    version: int | None = None
    files: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, path: str | None, problem: object, kind: Kind, *, remedy: str | None = None) -> None:
        self.take(kind.found(path, problem, remedy=remedy))

    def take(self, finding: Finding) -> None:
        """Add a finding, unless the same is known of the file: two looks may meet the same damage."""
        if all((known.path, known.problem) != (finding.path, finding.problem) for known in self.findings):
            self.findings.append(finding)


def check_table(handle: Handle, *, repair: bool) -> CheckResult:
    """See :meth:`lakemerge.LakeTable.check`."""
    result = _checked(handle)
    if not repair or result.ok:
        return result
    done = repaired(handle, result.findings)
    return replace(_checked(handle), repaired=done) if done else result


def _checked(handle: Handle) -> CheckResult:
    """Raises :class:`NotATableError` if there is no table at all, and the store's error if it cannot list the table.
    Each file that cannot be read is a finding, and the check goes on with the others."""
    started = time.monotonic()
    report = _Report()
    listing = list_log(handle.store)
    if listing.latest is None:
        raise no_log(handle.store)
    log = _Report()
    own = own_part(handle.store, listing, STATE_DOMAIN)
    for stray in (found for found in listing.checkpoints if found not in own.checkpoints):
        log.add(
            stray.parts[0].path, "it is from an earlier table in this place, and readers skip it", CHECKPOINT_FOREIGN
        )
    damaged = _check_log(handle, own, log)
    snapshot = _opened(handle, damaged, report)
    for finding in log.findings:
        report.take(finding)
    if snapshot is not None:
        report.version = snapshot.version
        sound = sound_part(handle, snapshot)
        for problem in sound.problems:
            report.add(problem.path, problem.text, METADATA_DAMAGED)
        conversion = Conversion.of(sound.view.snapshot)
        _check_checkpoints(handle, own, report, since=0 if conversion is None else conversion.version)
        missing = _check_references(handle, sound, report)
        _logger.info("check of %s: %d base files", handle.store.url, len(sound.file_slices))
        _check_contents(handle, sound, missing, report)
        for job in ingests_of(sound.view.snapshot).values():
            for finding in check_ingest(handle.store, job, without=missing):
                report.take(finding)
    return CheckResult(
        version=report.version,
        commits=len(listing.commits),
        checkpoints=len(listing.checkpoints),
        files=report.files,
        rows=report.rows,
        seconds=time.monotonic() - started,
        findings=tuple(report.findings),
    )


def _check_log(handle: Handle, listing: Listing, report: _Report) -> set[int]:
    """Check that every commit can be decoded, and that none is missing between the first and the last. Returns the
    versions whose commits are damaged or missing."""
    newest = listing.checkpoints[-1].version if listing.checkpoints else -1
    known = [*listing.commits, *(c.version + 1 for c in listing.checkpoints)]
    last = -1 if listing.latest is None else listing.latest
    bad = set(range(min(known, default=0), last + 1)) - listing.commits.keys()
    for gap in sorted(bad):
        if gap <= newest:
            report.add(
                commit_path(gap), "this commit is missing, while older and newer ones are there", OLD_COMMIT_MISSING
            )
        else:
            report.add(commit_path(gap), "this commit is missing", COMMIT_MISSING)
    for version, problem in damaged_commits(handle, listing).items():
        report.add(problem.path, problem.text, COMMIT_DAMAGED)
        bad.add(version)
    return bad


def _opened(handle: Handle, damaged: set[int], report: _Report) -> Snapshot | None:
    """The latest version. If it cannot be read, the newest one below the damage, so that the rest of the table is
    checked, too."""
    try:
        snapshot = handle.log.snapshot()
        handle.view(snapshot)
    except (LakeMergeError, OSError) as error:
        if is_foreign(error):
            raise
        found = newest_readable(handle, damaged)
        remedy = LATEST_UNREADABLE.remedy
        if found is not None:
            remedy += f"; version {found.version} can be read, and its files were checked"
        report.add(Problem.of(error).path, told(error), LATEST_UNREADABLE, remedy=remedy)
        return found
    return snapshot


def _check_checkpoints(handle: Handle, listing: Listing, report: _Report, *, since: int) -> None:
    """Check that each checkpoint can be read and, if the commits before it are still there, agrees with them.

    :param since: the first version of the LakeMerge table. Checkpoints of other engines before it serve these alone.
    """
    for checkpoint in listing.checkpoints:
        if checkpoint.version < since:
            continue
        path = checkpoint.parts[0].path
        try:
            replay = read_accepted(handle.store, listing, checkpoint, STATE_DOMAIN)
        except FileNotFoundError:
            continue  # a vacuum has deleted it since
        except (TableError, OSError) as error:
            if is_foreign(error):
                raise
            report.add(path, told(error), CHECKPOINT_DAMAGED)
            continue
        expected = _rebuilt(handle, listing, checkpoint)
        if expected is None:
            continue
        for name in ("files", "domains", "txns", "metadata", "protocol"):
            if getattr(replay, name) != getattr(expected, name):
                report.add(path, f"its {name} are not what the commits say", CHECKPOINT_DAMAGED)


def _rebuilt(handle: Handle, listing: Listing, checkpoint: Checkpoint) -> Snapshot | None:
    """The version of a checkpoint, rebuilt from older files; ``None`` if these were cleaned up or are damaged."""
    older = replace(listing, checkpoints=tuple(c for c in listing.checkpoints if c.version < checkpoint.version))
    if older.earliest is None or older.earliest > checkpoint.version:
        return None
    try:
        return load(handle.store, older, checkpoint.version, required_domain=STATE_DOMAIN)
    except (TableError, OSError) as error:
        if is_foreign(error):
            raise
        return None


def _check_references(handle: Handle, sound: Sound, report: _Report) -> set[str]:
    """Report files that the version needs and that are missing. Returns their paths."""
    snapshot = sound.view.snapshot
    there = {stat.path: stat.size_bytes for folder in _OURS for stat in handle.store.list(folder)}
    there |= {stat.path: stat.size_bytes for stat in list_vector_files(handle.store)}
    named = snapshot_references(snapshot, handle.store)
    report.files = len(named)
    for path in _strays(handle, sound.view.snapshot):
        report.add(path, "no version names it: a write of another engine, which was refused, left it", FILE_FOREIGN)
    missing = named - there.keys()
    for path in sorted(missing):
        report.add(path, "this file is missing", FILE_MISSING)
    for path, size in _sizes(sound).items():
        if there.get(path, size) != size:
            report.add(path, f"it has {there[path]} bytes; the log says {size}", FILE_SIZE)
    return missing


def _strays(handle: Handle, snapshot: Snapshot) -> Iterator[str]:
    """Files at the root that look like data of another engine. LakeMerge writes none there, and never takes them for
    its own. Those that the table had before it was converted wait for a vacuum."""
    found = [file.path for file in handle.store.list("", start_after="base0") if _FOREIGN.fullmatch(file.path)]
    conversion = Conversion.of(snapshot) if found else None
    if conversion is not None:
        with contextlib.suppress(FileNotFoundError):
            former = {file.path for file in read_former(handle.store, conversion.former)}
            found = [path for path in found if path not in former]
    yield from found


def _sizes(sound: Sound) -> Mapping[str, int]:
    view = sound.view
    sizes = {path: add.size_bytes for path, add in view.snapshot.files.items()}
    sizes |= {block.file.path: block.file.size_bytes for commit in view.log_commits for block in commit.blocks}
    sizes |= {winner.path: winner.size_bytes for minor in view.minors.values() for winner in minor.winners}
    # Only the present tombstones are read. Files that were written before tags had this size have none.
    forgotten = {
        file_slice.tombstones: file_slice.tombstone_bytes
        for file_slice in sound.file_slices
        if file_slice.tombstone_bytes
    }
    sizes |= {path: size for path, size in forgotten.items() if path is not None}
    return sizes | ingest_sizes(ingests_of(view.snapshot))


def _check_contents(handle: Handle, sound: Sound, missing: set[str], report: _Report) -> None:
    """Check the files that are there. A file slice is merged only if all its files are whole, and all its logs are
    known."""
    view = sound.view
    try:
        merger = handle.merger(view)
    except LakeMergeError as error:
        report.add(None, error.message, MERGER_UNKNOWN)
        return
    spec = MergeSpec(handle.store, view.config, merger, handle.settings)
    blocks = [block for commit in view.log_commits for block in commit.blocks]
    statistics = {path: add.stats for path, add in view.snapshot.files.items()}
    jobs = [
        partial(check_stored, spec, file_slice, part)
        for file_slice in sound.file_slices
        for part in stored_parts(file_slice, statistics)
    ]
    jobs += [partial(check_block, spec, block) for block in blocks]
    jobs += [partial(check_beside, spec, file_slice) for file_slice in sound.file_slices]
    bad = set(missing)
    with thread_pool(handle.settings.threads) as pool:
        for checked in pool.map(lambda job: job(without=missing), jobs):
            bad.update(_taken(report, checked))
        whole = [
            file_slice
            for file_slice in sound.file_slices
            if sound.is_whole and not file_slice.is_clean and not bad & file_slice_paths(file_slice)
        ]
        for checked in pool.map(partial(check_merge, spec), whole):
            bad.update(_taken(report, checked))


def _taken(report: _Report, checked: Checked) -> Iterator[str]:
    report.rows += checked.rows
    for finding in checked.findings:
        report.take(finding)
        if finding.path is not None:
            yield finding.path
