"""The keys of a version whose merge fails, and reads that leave them out.

Source: docs/merge-semantics.md, section 10.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import pyarrow.compute as pc

from lakemerge._internal.arguments import shown
from lakemerge._internal.pools import thread_pool
from lakemerge.errors import InputError
from lakemerge.handle import Handle
from lakemerge.layout.view import FileSlice, TableView
from lakemerge.read.failures import leave_out
from lakemerge.read.filter.filter import parse_filter
from lakemerge.read.filter.prune import prune_file_slices
from lakemerge.read.merge import failing_keys
from lakemerge.read.parquet.files import ParquetFiles
from lakemerge.read.sources import MergeSpec
from lakemerge.results.findings import FailedKey, FailedKeys
from mergers.wording import argument

__all__ = ["OnFailedKeys", "find_failed_keys", "on_failed_keys"]

OnFailedKeys = Literal["raise", "skip"]
"""What a read does about keys whose merge fails."""


def on_failed_keys(handle: Handle, given: object) -> Handle:
    """The handle for a read that does so. Raises :class:`InputError` for any other value."""
    if not isinstance(given, str) or given not in get_args(OnFailedKeys):
        known = ", ".join(map(repr, get_args(OnFailedKeys)))
        raise InputError(f"{argument('failed_keys')} must be one of {known}, not {shown(given)}")
    return handle if given == "raise" else replace(handle, leave_out=leave_out)


def find_failed_keys(handle: Handle, view: TableView, filter: str | pc.Expression | None) -> FailedKeys:
    """See :meth:`lakemerge.LakeTable.failed_keys`."""
    spec = MergeSpec.of(handle, view)
    condition = parse_filter(filter, view.config.schema)
    dirty = [part for part in prune_file_slices(view, condition, exact=True) if not part.is_merged]
    with thread_pool(handle.settings.threads) as pool:
        found = pool.map(lambda file_slice: _failing(spec, file_slice), dirty)
        return FailedKeys(version=view.version, keys=tuple(failed for part in found for failed in part))


def _failing(spec: MergeSpec, file_slice: FileSlice) -> list[FailedKey]:
    with ParquetFiles(spec.store) as files:
        return failing_keys(spec, file_slice, files)[0]
