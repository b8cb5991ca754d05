"""The records that a table still has, and the version onto which they are folded.

They are put together as a version of their own: the base files of an early version, and the logs of all later commits.
Where rows were overwritten, the base files of the overwrite stand, and earlier logs do not count.
Everything that reads tables can then read these records, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from lakemerge.commits.past import Past, PastCommit, read_commits, standing
from lakemerge.delta import AddFile, DomainMetadata, Metadata
from lakemerge.errors import InputError, VersionNotFoundError
from lakemerge.format.base_file import BaseFile
from lakemerge.format.block_index import log_paths
from lakemerge.format.config import TableConfig
from lakemerge.format.expiries import Expiry, expiries_of, expiry_domain
from lakemerge.format.minor import Minor
from lakemerge.format.names import EXPIRY_DOMAIN, LOG_DOMAIN_PREFIX, MINOR_DOMAIN_PREFIX, RESET_DOMAIN
from lakemerge.format.operations import Operation
from lakemerge.format.record_retention import records_from
from lakemerge.format.reset import Resets
from lakemerge.handle import Handle
from lakemerge.layout.view import TableView
from lakemerge.schema.names import NAMES
from mergers.interrupts import is_foreign
from mergers.wording import argument

__all__ = ["Retained", "check_since", "retained", "unpacked"]


@dataclass(frozen=True, slots=True)
class Retained:
    """Records in the order of their commits, and the version to which they were applied."""

    tip: TableView
    """The version that is examined."""
    start: TableView
    """The version whose stored rows and live logs the records are folded onto."""
    view: TableView
    """``start`` with the logs of all later commits, and what was overwritten in between. Merged, it gives the rows of
    the tip."""
    commits: tuple[PastCommit, ...]
    """The commits after ``start``, without those that a restore has undone."""
    expiries: tuple[Expiry, ...]
    is_loaded: bool
    """Whether ``start`` is the first load of the table, or the query that it is made of: records that became base
    files."""
    notes: tuple[str, ...]
    """Sentences on what is not known any more."""

    def configs(self) -> Sequence[tuple[int, TableConfig]]:
        """The definitions of the table, each with the first version for which it holds, oldest first."""
        url = self.tip.store.url
        changed = [(commit.version, commit.metadata) for commit in self.commits if commit.metadata is not None]
        later = [(version, TableConfig.of(metadata, url=url)) for version, metadata in changed]
        return [(self.start.version, self.start.config), *later]


def check_since(since: object, tip: TableView) -> None:
    if since is not None and (type(since) is not int or not 0 <= since <= tip.version):
        raise InputError(f"{argument('since')} must be a version from 0 to {tip.version}, not {since!r}")


def retained(handle: Handle, tip: TableView, since: int | None) -> Retained:
    """The records after version ``since``.

    :param since: ``None``: the records that are not compacted yet; 0: as far back as history goes.
    :raises VersionNotFoundError: some of the records after that version are gone.
    """
    check_since(since, tip)
    if since is None:
        return _assembled(handle, tip, tip, (), unpack=True)
    oldest = records_from(handle.log.update(tip.snapshot))
    if 0 < since < oldest:
        raise VersionNotFoundError(
            f"some records after version {since} are gone: records are known from version {oldest} on. "
            f"{argument('since', 0)} shows all that are left",
            version=since,
            earliest=oldest,
        )
    first = max(since, oldest)
    if first >= tip.version:
        return _assembled(handle, tip, tip, (), unpack=True)
    commits = read_commits(handle, since=first, until=tip.version)
    whole = standing(commits, first)
    past = _after_load(_since_renamed(handle, tip, whole, since))
    start = handle.view_at(past.start, of=tip.snapshot)
    made = {commit.version: commit for commit in commits}
    begun, replaced = made.get(past.start), made.get(whole.start)
    is_loaded = begun is not None and begun.is_load
    known = _assembled(handle, tip, start, past.commits, unpack=since == 0, is_loaded=is_loaded)
    if replaced is None or not replaced.replaces:
        return known
    note = f"the table was {replaced.replacement} at version {replaced.version}: its history begins there"
    return replace(known, notes=(*known.notes, note))


def unpacked(handle: Handle, view: TableView) -> TableView:
    """The version with its original logs instead of consolidated ones, if commits and files are still there."""
    domains = _original_logs(handle, view, view.snapshot.domains)
    return _with_domains(handle, view, domains) if domains is not None else view


def _since_renamed(handle: Handle, tip: TableView, past: Past, since: int) -> Past:
    """The commits since columns last got other names. Older records have the names of their time, which nobody can
    compare with those of now.

    Raises :class:`VersionNotFoundError` for a history that was asked to begin earlier.
    """
    for place in reversed(range(len(past.commits))):
        commit, changed = past.commits[place], past.commits[place].metadata
        if changed is not None and NAMES in changed.configuration:
            before = handle.view_at(commit.version - 1, of=tip.snapshot).config.names.epoch
            if before != handle.definition.of(changed, url=handle.store.url).names.epoch:
                if since:
                    raise VersionNotFoundError(
                        f"columns were renamed or dropped in version {commit.version}, and records before it have "
                        f"the names of their time: open version {commit.version - 1} for these, or ask for "
                        f"records since {argument('since', commit.version)}",
                        version=since,
                        earliest=commit.version,
                    )
                return Past(commit.version, past.commits[place + 1 :])
    return past


def _after_load(past: Past) -> Past:
    """History begins with the first load of a table, which writes base files where nothing was."""
    loads = [place for place, commit in enumerate(past.commits) if commit.is_load]
    if not loads:
        return past
    return Past(past.commits[loads[-1]].version, past.commits[loads[-1] + 1 :])


def _assembled(
    handle: Handle,
    tip: TableView,
    start: TableView,
    commits: tuple[PastCommit, ...],
    *,
    unpack: bool,
    is_loaded: bool = False,
) -> Retained:
    domains, files = dict(start.snapshot.domains), dict(start.snapshot.files)
    if unpack:
        domains = dict(_original_logs(handle, start, domains) or domains)
    notes, counts = [], [start.config.buckets or tip.config.buckets or 1]
    expiries = set(expiries_of(start.snapshot))
    epoch = tip.state.merger_epoch
    for commit in commits:
        for domain in commit.new_logs:
            domains[domain.domain] = domain
        if commit.overwrites:
            notes.append(_overwritten(commit, tip.config.stored_partition_by, files, domains, counts))
        for action in commit.actions:
            if isinstance(action, DomainMetadata) and action.domain == EXPIRY_DOMAIN and not action.removed:
                expiries.update(expiries_of(replace(start.snapshot, domains={EXPIRY_DOMAIN: action})))
    ordered = tuple(sorted(expiries, key=lambda expiry: expiry.version))
    if ordered:
        domains[EXPIRY_DOMAIN] = expiry_domain(ordered)
    if commits:
        domains = {name: _of_epoch(domain, epoch) for name, domain in domains.items()}
        domains["lakemerge.state"] = tip.snapshot.domains["lakemerge.state"]
    snapshot = replace(
        tip.snapshot,
        files=files,
        domains=domains,
        metadata=_with_buckets(tip, max(counts)),
        fingerprint=tip.snapshot.fingerprint,
    )
    view = handle.view(snapshot)
    packed = [commit for commit in view.log_commits if commit.packed_from is not None]
    notes += [
        f"the commits {commit.packed_from} to {commit.version} were consolidated: records that lost by then, and where "
        "the others came from, are not known any more"
        for commit in packed
    ]
    return Retained(tip, start, view, commits, ordered, is_loaded, tuple(notes))


def _overwritten(
    commit: PastCommit,
    stored_by: Sequence[str],
    files: dict[str, AddFile],
    domains: dict[str, DomainMetadata],
    counts: list[int],
) -> str:
    """Apply an overwrite to files and domains. Returns a sentence on it.

    :param counts: gets the bucket counts of the files that it wrote.
    """
    made = [BaseFile.of(action, stored_by) for action in commit.actions if isinstance(action, AddFile)]
    gone = {
        path
        for path, add in files.items()
        if any(reset.covers(tuple(add.partition_values[name] for name in stored_by)) for reset in commit.overwrites)
    }
    for path in gone:
        del files[path]
    files |= {base.add.path: base.add for base in made}
    counts += [base.buckets for base in made]
    for name in [name for name in domains if name.startswith(MINOR_DOMAIN_PREFIX)]:
        if Minor.of(domains[name]).base in gone:
            del domains[name]
    domains[RESET_DOMAIN] = Resets.of(domains).with_entries(commit.overwrites).domain()
    return f"{commit.overwritten} were overwritten at version {commit.version}: their history begins there"


def _with_domains(handle: Handle, view: TableView, domains: Mapping[str, DomainMetadata]) -> TableView:
    return TableView(replace(view.snapshot, domains=domains), view.config, handle.store, handle.decoded)


def _with_buckets(tip: TableView, buckets: int) -> Metadata:
    """The tip's definition, with the bucket count of the files. Later logs are mapped to it by hash."""
    metadata = tip.snapshot.metadata
    if tip.config.buckets is None or buckets == tip.config.buckets:
        return metadata
    entries = {**metadata.configuration, **replace(tip.config, buckets=buckets).configuration()}
    return replace(metadata, configuration=entries)


def _of_epoch(domain: DomainMetadata, epoch: int) -> DomainMetadata:
    """The domain of a log, as if it had been written under the present merger."""
    if not domain.domain.startswith(LOG_DOMAIN_PREFIX):
        return domain
    body = orjson.loads(domain.configuration)
    return replace(domain, configuration=orjson.dumps({**body, "mergerEpoch": epoch}).decode())


def _original_logs(
    handle: Handle, view: TableView, domains: Mapping[str, DomainMetadata]
) -> Mapping[str, DomainMetadata] | None:
    """Domains with the original logs instead of consolidated ones; ``None`` if nothing changes."""
    packed = {commit.domain_name: commit for commit in view.log_commits if commit.packed_from is not None}
    if not packed:
        return None
    first = min(commit.packed_from or 0 for commit in packed.values())
    try:
        commits = read_commits(handle, since=first - 1, until=view.version)
    except VersionNotFoundError:
        return None
    told: dict[str, DomainMetadata] = {}
    made_of: dict[str, tuple[str, ...]] = {}
    for commit in commits:
        logs = [a for a in commit.actions if isinstance(a, DomainMetadata) and a.domain.startswith(LOG_DOMAIN_PREFIX)]
        removed = tuple(log.domain for log in logs if log.removed)
        for log in logs:
            if not log.removed:
                told.setdefault(log.domain, log)
                if commit.operation == Operation.COMPACT_LOGS:
                    made_of.setdefault(log.domain, removed)
    left = {name: domain for name, domain in domains.items() if name not in packed}
    # Consolidated logs lack what was overwritten before, and may be the reason why its reset is gone.
    overwritten = [reset for commit in standing(commits, first - 1).commits for reset in commit.overwrites]
    if overwritten:
        left[RESET_DOMAIN] = Resets.of(domains).with_entries(overwritten).domain()
    for name in packed:
        originals = _resolved(name, made_of, told)
        if originals is None or not _are_there(handle, originals):
            left[name] = domains[name]
        else:
            left |= {domain.domain: domain for domain in originals}
    return left


def _resolved(
    name: str, made_of: Mapping[str, tuple[str, ...]], told: Mapping[str, DomainMetadata]
) -> list[DomainMetadata] | None:
    if name not in made_of:
        return [told[name]] if name in told and '"from"' not in told[name].configuration else None
    found: list[DomainMetadata] = []
    for part in made_of[name]:
        originals = _resolved(part, made_of, told)
        if originals is None:
            return None
        found += originals
    return found


def _are_there(handle: Handle, logs: Iterable[DomainMetadata]) -> bool:
    try:
        paths = {path for log in logs for path in log_paths(log, handle.store)}
    except Exception as error:  # an index that is gone, whatever the store calls it
        if is_foreign(error):
            raise
        return False
    return all(handle.store.stat(path) is not None for path in paths)
