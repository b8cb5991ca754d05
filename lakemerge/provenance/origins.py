"""Where the records of a commit came from: what the commit says about itself, and the files of its ingest window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow.compute as pc

from lakemerge._internal.pools import thread_pool
from lakemerge.commits.past import PastCommit
from lakemerge.delta import Snapshot
from lakemerge.delta.actions import decode
from lakemerge.delta.listing import commit_path
from lakemerge.errors import TableDamagedError
from lakemerge.format.ingests import ingests_of
from lakemerge.format.ledger import FileState, ledger_tables
from lakemerge.format.operations import Operation
from lakemerge.handle import Handle

__all__ = ["UNKNOWN", "custody_of", "find_commits", "source_of", "window_files"]

UNKNOWN = "not known any more"

_MOST_FILES = 100
"""Of an ingest window, a replayed commit names so many files."""
_TOLD = ("path", "offset", "length", "rows")


def find_commits(handle: Handle, versions: Iterable[int]) -> dict[int, PastCommit]:
    """The commits of some versions, without those that were cleaned up. Each costs a request."""

    def found(version: int) -> PastCommit | None:
        path = commit_path(version)
        try:
            return PastCommit(version, decode(handle.store.get(path), path))
        except FileNotFoundError:
            return None

    wanted = sorted(set(versions))
    if not wanted:
        return {}
    with thread_pool(min(handle.store.reads_at_once, len(wanted))) as pool:
        return {commit.version: commit for commit in pool.map(found, wanted) if commit is not None}


def source_of(handle: Handle, tip: Snapshot, commit: PastCommit | None, *, is_packed: bool) -> dict[str, Any]:
    """Where a record came from: the ``operation``, the ``application`` and ``number`` of its ``txn``, the ``job``,
    ``window`` and ``files`` of an ingest, and the caller's ``info``; ``note`` if something is not known any more."""
    if is_packed:
        return {"note": f"where it came from is {UNKNOWN}: a log compaction rewrote it"}
    if commit is None:
        return {"note": f"where it came from is {UNKNOWN}: its commit was cleaned up"}
    source: dict[str, Any] = {"operation": commit.operation}
    if isinstance(txn_id := commit.fields.get("txnId"), str):
        source["txn_id"] = txn_id
    if commit.txn is not None:
        source |= {"application": commit.txn.app_id, "number": commit.txn.version}
    about = commit.fields.get("ingest")
    if isinstance(about, dict):
        source |= {"job": about.get("name"), "window": about.get("window")}
        files, note = window_files(handle, tip, about)
        source["files"] = files
        if note is not None:
            source["note"] = note
    info = commit.info
    if commit.operation == Operation.REPLAY and isinstance(told := info.get("replay"), dict):
        source["replayed"] = told
        info = {name: value for name, value in info.items() if name != "replay"}
    if info:
        source["info"] = info
    return source


def custody_of(handle: Handle, tip: Snapshot, commit: PastCommit) -> dict[str, Any]:
    """What another table is told of a commit that is replayed there: the table and the version, and all that
    :func:`source_of` knows. If the commit was a replay itself, that is in ``replayed``, and so on."""
    told: dict[str, Any] = {"version": commit.version, "table": handle.store.url, "tableId": tip.metadata.id}
    if commit.timestamp_ms is not None:
        told["timestamp"] = commit.timestamp_ms
    told |= source_of(handle, tip, commit, is_packed=False)
    if "files" in told:
        told["files"] = [file["path"] for file in told["files"][:_MOST_FILES]]
    return told


def window_files(handle: Handle, tip: Snapshot, about: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    """The files of one ingest window, each with the place of the piece that was taken up, and a note on what is not
    known."""
    job = ingests_of(tip).get(str(about.get("name")))
    if job is None:
        return [], f"the files of window {about.get('window')} are {UNKNOWN}: the job is not in the table"
    found: list[dict[str, Any]] = []
    try:
        for table in ledger_tables(handle.store, job.ledger):
            mine = pc.and_(
                pc.equal(table["window"], about.get("window")), pc.equal(table["state"], FileState.COMMITTED.value)
            )
            found += table.filter(mine).select(_TOLD).to_pylist()
    except TableDamagedError:
        return [], f"the files of window {about.get('window')} are {UNKNOWN}: the job's ledger is gone"
    if not found:
        return [], f"the files of window {about.get('window')} are {UNKNOWN}: the job was reset since"
    note = None if len(found) == 1 else "the record is of one of these files; which one is not written down"
    return found, note
