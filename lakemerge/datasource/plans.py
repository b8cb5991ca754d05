"""Plans of native scans, for the jar: which files of a version have the rows of a query, and what the kernel merges."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import orjson

from lakemerge._internal.cache import Cache
from lakemerge.delta import check_table_id
from lakemerge.layout.view import TableView
from lakemerge.read.failed_keys import on_failed_keys
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import MergeSpec
from lakemerge.read.reads_per_write import note_read
from lakemerge.read.scan import in_mode
from lakemerge.spark.native import KernelRead, KernelTasks, kept_rows, plan_json, reachable
from lakemerge.table.kept import kept_table
from lakemerge.table.open_table import OpenTable
from mergers import Merger

__all__ = ["plan"]

_PLANS_BYTES: Final = 64 * 2**20
_plans: Cache[tuple[Hashable, ...], bytes] = Cache(_PLANS_BYTES, 1024)
"""Plans as they were answered. A version does not change, and queries of it are often the same."""


def plan(request: Mapping[str, Any], storage: Mapping[str, object], mergers: Sequence[type[Merger]]) -> bytes:
    """The plan of a native scan of a version, in JSON. It may be refused.

    :param request: ``path``, ``tableId``, ``version``; ``conditions`` that all rows meet that are needed; ``options``
        of the read; and how many ``tasks`` the cluster runs at a time.
    """
    kept = kept_table(request["path"], storage, mergers)
    table, view = kept.table, kept.at(request["version"])
    check_table_id(table.handle.store, request["tableId"], view.snapshot, since=view.version)
    # A folder that somebody brought back from a backup has other commits under the same numbers.
    asked = [request[name] for name in ("path", "tableId", "version", "options", "conditions", "tasks")]
    key = (orjson.dumps([asked, storage], option=orjson.OPT_SORT_KEYS), view.snapshot.digest, *mergers)
    found = _plans.get(key)
    if found is None:
        found = orjson.dumps(_planned(request, table, view))
        _plans.keep(key, found, len(found))
    return found


def _planned(request: Mapping[str, Any], table: OpenTable, view: TableView) -> object:
    options = {name.lower(): value for name, value in request["options"].items()}
    view = in_mode(view, options.pop("mode", "merged"))
    handle = on_failed_keys(table.handle, options.pop("failedkeys", "raise"))
    why, hadoop = reachable(handle.store)
    if options or why is not None:
        return {"refused": why or f"the read has the options {', '.join(sorted(options))}"}
    spec = MergeSpec.of(handle, view)
    condition = parse_filter(" AND ".join(request["conditions"]) or None, view.config.schema)
    file_slices = prune_file_slices(view, condition)
    note_read(view, file_slices)
    rows = kept_rows(handle, view, spec, file_slices, None)
    kernel = KernelTasks(KernelRead(handle.settings), request["tasks"]) if rows.kernel else None
    return plan_json(rows, handle.store, kernel, view.config) | {"hadoop": dict(hadoop)}
